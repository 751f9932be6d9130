"""README.md: its results, and what it says can be relied on."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from tintype.study.results import Comparison
from tools.figures.claims import measured
from tools.figures.claims.studies import (
    ACCURACY,
    ACCURACY_SHORT,
    FID,
    FRECHET,
    NOT_SHOWN,
    captions,
    millions,
    muon_replication,
    objectives,
    objectives_table,
    optimizers,
    phases,
    phases_photos,
    repa_e_is_above_the_frozen_vae,
    rise_of_bf16,
    routing_shows_nothing,
    tokenizers,
    tokenizers_photos,
)
from tools.figures.data import BASELINE, interval
from tools.figures.pages import Block, Claim, Quote


def page() -> Iterator[Claim]:
    yield from finds()
    yield from relies_on()


def finds() -> Iterator[Claim]:
    one = objectives()
    yield Quote(f"help a model of {millions(one)} at 64 px? Five arms, three seeds each, {one.setup()}")
    yield Quote("arm minus baseline with 95% intervals", holds=one.results.confidence == 0.95)
    yield Block("objectives", objectives_table())
    yield Quote(
        "no effect of `tread` or `sprint` on scene accuracy or Fréchet distance is shown, nor that it grows",
        holds=routing_shows_nothing(),
    )
    yield measured.speed_of_routing()
    yield from finds_of_optimizers()
    yield from finds_of_spaces()
    yield from finds_of_data()


def finds_of_optimizers() -> Iterator[Claim]:
    one = optimizers()
    muon = one.compared("muon 3e-3", FRECHET)
    yield Quote(
        f"{one.setup()}: three seeds called `muon` at 3e-3 better in Fréchet distance ({interval(muon, 2)})",
        holds=muon.verdict == "better",
    )
    again = muon_replication()
    fast, slow = (again.compared(arm, FRECHET) for arm in ("muon 3e-3", "muon 1e-3"))
    yield Quote(
        f"seeds](studies/2026-11-16_muon-replication-mini/README.md) do not show it** ({interval(fast, 2)})",
        holds=len(again.results.seeds) == 10 and again.verdicts(["muon 3e-3"], again.primary) == NOT_SHOWN,
    )
    yield Quote(
        "its validation loss is better there, and at AdamW's 1e-3 Muon is worse in both primary metrics (Fréchet "
        f"distance {interval(slow, 2)})",
        holds=again.verdicts(["muon 3e-3"], ["validation_loss"]) == {"better"}
        and again.verdicts(["muon 1e-3"], again.primary) == {"worse"},
    )
    yield Quote(
        "Weights and moments in bf16 have a validation loss above that of fp32 at every seed, by "
        f"{rise_of_bf16()}, which is not shown",
        holds=one.verdicts(["bf16-storage"], ["validation_loss"]) == NOT_SHOWN,
    )
    yield measured.share_of_muon()


def finds_of_spaces() -> Iterator[Claim]:
    one = tokenizers_photos()
    vae, taef2 = (one.compared(arm, FID) for arm in ("small-vae", "taef2"))
    yield Quote(
        f"{one.setup()}: FID {one.mean(BASELINE, FID):.0f} in pixels, {vae.mean:.0f} in the latents of a `small-vae` "
        f"trained on the same images ({interval(vae, 0)}, {vae.verdict}), {taef2.mean:.0f} in those of TAEF2 "
        f"({interval(taef2, 0)}, {taef2.verdict})"
    )
    yield Quote(
        "the FID is higher than with the frozen one at every seed, which the study does not test",
        holds=repa_e_is_above_the_frozen_vae(),
    )
    scenes = tokenizers()
    yield Quote("no arm has a verdict", holds=scenes.verdicts(scenes.arms, scenes.primary) == NOT_SHOWN)


def finds_of_data() -> Iterator[Claim]:
    one = captions()
    short = one.compared("short", ACCURACY)
    yield Quote(
        f"short captions lose {magnitude(short, 3)} of accuracy on long prompts (worse)", holds=short.verdict == "worse"
    )
    yield Quote(
        "On short prompts no arm's difference is shown, nor is that of a curriculum (long first, then mixed) on long "
        "ones",
        holds=one.verdicts(one.arms, [ACCURACY_SHORT]) == one.verdicts(["curriculum"], [ACCURACY]) == NOT_SHOWN,
    )
    scenes = phases()
    alone = scenes.compared("synthetic-only", FRECHET)
    yield Quote(
        "no difference from real ones alone is shown; synthetic ones alone have a Fréchet distance larger by "
        f"{magnitude(alone, 1)} (worse)",
        holds=scenes.verdicts(["synthetic-then-real"], scenes.primary) == NOT_SHOWN and alone.verdict == "worse",
    )
    photos = phases_photos()
    mixed, then, only = (
        interval(photos.compared(arm, FID), 0) for arm in ("mixed", "synthetic-then-real", "synthetic-only")
    )
    yield Quote(
        f"every arm that spends steps on illustrations is worse: an FID of {photos.mean(BASELINE, FID):.0f} with "
        f"photographs alone, {mixed} mixed, {then} illustrations first, {only} illustrations only",
        holds=photos.verdicts(photos.arms, [FID]) == {"worse"},
    )


def magnitude(one: Comparison, digits: int) -> str:
    """A difference and its interval without signs, where all of it has one."""
    low, high = sorted(abs(end or 0.0) for end in (one.low, one.high))
    assert (one.low or 0.0) * (one.high or 0.0) > 0
    return f"{abs(one.difference):.{digits}f} [{low:.{digits}f}, {high:.{digits}f}]"


def relies_on() -> Iterator[Claim]:
    yield from measured.calibration_in_short()
    accuracies = {
        round(study.results.reference[ACCURACY]["overall"], 3)
        for study in (objectives(), captions(), optimizers(), tokenizers())
    }
    yield Quote(
        f"It is right on {100 * min(accuracies):.1f}% of what the evaluation asks about real 64 px renders",
        holds=len(accuracies) == 1,
    )
    yield Quote(f"a run killed at any of {measured.kill_points()} tried points ends bit-identical")


PAGES: dict[str, Callable[[], Iterable[Claim]]] = {"README.md": page}
