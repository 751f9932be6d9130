"""README.md, docs/findings.md with the results of all studies in short, and docs/rely-on.md."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator

from tintype.study.pooling import PooledMetric
from tintype.study.results import SPEED, Comparison
from tintype.study.stats.estimate import CONFIDENCE
from tools.figures.claims import measured
from tools.figures.claims.studies import (
    ACCURACY,
    FID,
    FRECHET,
    LOSS,
    STAGES,
    TUNED,
    UNDECIDED,
    above_and_undecided,
    captions,
    every_study,
    millions,
    muon_replication,
    objectives,
    objectives_table,
    optimizers,
    phases,
    phases_photos,
    repa_e_is_above_the_frozen_vae,
    rise_of_bf16,
    routing_is_undecided,
    small_first_loses,
    tokenizers,
    tokenizers_photos,
)
from tools.figures.data import BASELINE, interval, pooled, relative, study, within
from tools.figures.pages import Block, Claim, Quote


def readme() -> Iterator[Claim]:
    """Three results, each with how far it can be trusted."""
    one = objectives()
    repa = one.compared("repa", ACCURACY)
    speed = one.compared("repa", SPEED)
    yield Quote(
        f"At {millions(one).removesuffix(' parameters')} parameters and 64 px, `repa` with VGG16 as its teacher raises "
        "[scene accuracy](studies/2026-11-15_objectives-mini/README.md) by "
        f"{magnitude(repa, 3)} (better), at {abs(100 * relative(speed)):.0f}% less speed; three seeds, not replicated",
        holds=repa.verdict == "better" and relative(speed) < 0 and len(one.results.seeds) == 3,
    )
    first, again, adaptive = optimizers(), muon_replication(), study("2026-11-17_adaptive-mini")
    bank = study("2026-11-17_bank-mini")
    later, fell = (bank.compared("muon 3e-3", metric) for metric in (FRECHET, ACCURACY))
    past = first.compared("muon 3e-3", FRECHET)
    yield Quote(
        "Three seeds leave `muon` at 3e-3 [undecided](studies/2026-11-15_optimizers-mini/README.md) in Fréchet "
        f"distance ({interval(past, 2)}). [{len(bank.results.seeds)} other "
        f"seeds](studies/2026-11-17_bank-mini/README.md) call it better by less ({interval(later, 2)}), and undecided "
        f"in scene accuracy, where {len(fell.collapsed)} of {len(bank.results.seeds)} runs collapse. At AdamW's 1e-3 "
        "Muon is worse in both primary metrics, on "
        "[ten fresh seeds](studies/2026-11-16_muon-replication-mini/README.md) and on "
        "[eight more](studies/2026-11-17_adaptive-mini/README.md)",
        holds=(past.verdict, later.verdict) == ("undecided", "better")
        and abs(later.difference) < abs(past.difference)
        and fell.verdict == "undecided"
        and again.verdicts(["muon 1e-3"], again.primary) == {"worse"}
        and adaptive.verdicts(["muon 1e-3"], again.primary) == {"worse"}
        and (len(again.results.seeds), len(adaptive.arm("muon 1e-3").runs)) == (10, 8),
    )
    told = captions()
    short = told.compared("short", ACCURACY)
    yield Quote(
        f"loses {magnitude(short, 3)} of accuracy [on long prompts](studies/2026-11-15_captions-mini/README.md) "
        "(worse). On short prompts every arm is above the baseline at every seed, yet undecided; three seeds, not "
        "replicated",
        holds=short.verdict == "worse" and above_and_undecided(told) and len(told.results.seeds) == 3,
    )


def finds() -> Iterator[Claim]:
    one = objectives()
    yield Quote(
        f"help a model of {millions(one)} at 64 px? The study has five arms with three seeds each, {one.setup()}"
    )
    yield Quote("intervals of a study hold together with a confidence of 95%", holds=one.results.confidence == 0.95)
    yield Block("objectives", objectives_table())
    yield Quote(
        "the effects of `tread` and `sprint` on scene accuracy and Fréchet distance are undecided. Whether these "
        "effects grow with the number of tokens is undecided too",
        holds=routing_is_undecided(),
    )
    yield measured.speed_of_routing()
    yield from finds_of_predictions()
    yield from finds_of_optimizers()
    yield from finds_of_spaces()
    yield from finds_of_data()
    yield from finds_of_stages()


def finds_of_predictions() -> Iterator[Claim]:
    grid, spread_out = study("2026-11-17_prediction-mini"), study("2026-11-17_dispersive-mini")
    worse = [arm for arm in grid.arms if "noise" in arm]
    yield Quote(
        f"with five seeds and {grid.setup()}. Predicting the noise, or a loss on the noise, is worse in both primary "
        "metrics. Predicting the clean image with a loss on clean images is worse in scene accuracy and undecided in "
        "Fréchet distance",
        holds=grid.verdicts(worse, grid.primary) == {"worse"}
        and [grid.compared("x, loss on x", metric).verdict for metric in (ACCURACY, FRECHET)] == ["worse", "undecided"]
        and len(worse) == 5
        and len(grid.results.seeds) == 5,
    )
    both = "2026-11-17_bank-mini", "2026-11-17_prediction-mini"
    accuracy, distance = (pooled("x-prediction", metric, *both) for metric in (ACCURACY, FRECHET))
    low, high = sorted(abs(end or 0.0) for end in (accuracy.difference.low, accuracy.difference.high))
    yield Quote(
        f"this arm loses {abs(accuracy.difference.value):.3f} [{low:.3f}, {high:.3f}] of scene accuracy (worse) and is "
        "better in Fréchet distance",
        holds=(accuracy.verdict, distance.verdict) == ("worse", "better"),
    )
    yield Quote(f"with a loss on velocities in {arm_runs(accuracy)} runs")
    yield Quote(
        "with the weights of its paper or of its authors' code, is worse in scene accuracy. In Fréchet distance one of "
        "its three arms is worse",
        holds=spread_out.verdicts(spread_out.arms, [ACCURACY]) == {"worse"}
        and sorted(spread_out.compared(arm, FRECHET).verdict for arm in spread_out.arms)
        == ["undecided", "undecided", "worse"],
    )


def finds_of_stages() -> Iterator[Claim]:
    one = study(STAGES)
    again = one.results.replication
    yield from small_first_loses(one)
    yield Quote(
        "(worse). This verdict holds on eight fresh seeds. With four times the images in this half of the steps, for "
        "about the same number of operations, both primary metrics are undecided",
        holds=again is not None
        and len(again.seeds) == 8
        and {row.outcome for row in again.rows if row.metric in one.primary} == {"holds"}
        and one.verdicts(["small first, more images"], one.primary) == UNDECIDED,
    )


def finds_of_optimizers() -> Iterator[Claim]:
    family = study("2026-11-17_muon-mini")
    yield Quote(
        "do not help at 1e-3 either. All five arms, with five seeds each, are worse in scene accuracy",
        holds=family.verdicts(family.arms, [ACCURACY]) == {"worse"}
        and (len(family.arms), len(family.results.seeds)) == (5, 5),
    )
    one = optimizers()
    muon = one.compared("muon 3e-3", FRECHET)
    yield Quote(
        f"**Muon at 3e-3** is undecided in Fréchet distance on three seeds ({interval(muon, 2)}) and on",
        holds=muon.verdict == "undecided" and len(one.results.seeds) == 3,
    )
    yield Quote(f"with three seeds and {one.setup()}.")
    again = muon_replication()
    fast, slow = (again.compared(arm, FRECHET) for arm in ("muon 3e-3", "muon 1e-3"))
    yield Quote(
        f"[ten fresh seeds](../studies/2026-11-16_muon-replication-mini/README.md) ({interval(fast, 2)})",
        holds=len(again.results.seeds) == 10 and again.verdicts(["muon 3e-3"], again.primary) == UNDECIDED,
    )
    bank = study("2026-11-17_bank-mini")
    later, fell = (bank.compared("muon 3e-3", metric) for metric in (FRECHET, ACCURACY))
    yield Quote(
        f"[{len(bank.results.seeds)} later seeds](../studies/2026-11-17_bank-mini/README.md), it is better "
        f"({interval(later, 2)}), and undecided in scene accuracy, where {len(fell.collapsed)} of "
        f"{len(bank.results.seeds)} runs collapse",
        holds=(later.verdict, fell.verdict) == ("better", "undecided"),
    )
    yield Quote(
        "In validation loss, Muon at 3e-3 is better",
        holds=one.verdicts(["muon 3e-3"], [LOSS])
        == again.verdicts(["muon 3e-3"], [LOSS])
        == bank.verdicts(["muon 3e-3"], [LOSS])
        == {"better"},
    )
    yield Quote(
        "**Muon at AdamW's 1e-3** is worse in both primary metrics on the ten fresh seeds (Fréchet distance "
        f"{interval(slow, 2)})",
        holds=again.verdicts(["muon 1e-3"], again.primary) == {"worse"},
    )
    yield Quote(
        "**With weights and moments in bf16**, the validation loss is above that of fp32 at every seed, by "
        f"{rise_of_bf16()}. This comparison is undecided",
        holds=one.verdicts(["bf16-storage"], [LOSS]) == UNDECIDED,
    )
    of_muon = ("2026-11-15_optimizers-mini", "2026-11-16_muon-replication-mini", "2026-11-17_adaptive-mini")
    quick = {metric: pooled("muon 3e-3", metric, *of_muon, "2026-11-17_bank-mini") for metric in (FRECHET, ACCURACY)}
    like_adamw = pooled("muon 1e-3", FRECHET, *of_muon, "2026-11-17_muon-mini")
    yield Quote(
        f"at {CONFIDENCE:.0%} each, Muon at 3e-3 is better in Fréchet distance "
        f"({within(quick[FRECHET].difference, 2)}) and undecided in scene accuracy, over four studies with "
        f"{arm_runs(quick[FRECHET])} runs of this arm. Muon at 1e-3 is worse in Fréchet distance "
        f"({within(like_adamw.difference, 2)}), over four studies with {arm_runs(like_adamw)} runs of this arm",
        holds=(quick[FRECHET].verdict, quick[ACCURACY].verdict, like_adamw.verdict) == ("better", "undecided", "worse")
        and not any(one.heterogeneity_p is None for one in (*quick.values(), like_adamw)),
    )
    yield measured.share_of_muon()


def arm_runs(one: PooledMetric) -> int:
    return sum(study.seeds for study in one.studies)


def finds_of_spaces() -> Iterator[Claim]:
    one = tokenizers_photos()
    vae, taef2 = (one.compared(arm, FID) for arm in ("small-vae", "taef2"))
    yield Quote(f"has the same 64 tokens and {one.setup()}:")
    yield Quote(f"FID is {one.mean(BASELINE, FID):.0f} in pixels.")
    yield Quote(
        f"FID is {vae.mean:.0f} in the latents of a `small-vae` trained on the same images ({interval(vae, 0)}, "
        f"{vae.verdict})"
    )
    yield Quote(f"FID is {taef2.mean:.0f} in the latents of TAEF2 ({interval(taef2, 0)}, {taef2.verdict})")
    yield Quote(
        "FID is higher than with the frozen tokenizer at every seed. The study does not test this difference",
        holds=repa_e_is_above_the_frozen_vae(),
    )
    scenes = tokenizers()
    accuracy = scenes.compared("taef2", ACCURACY)
    yield Quote(
        f"TAEF2 is better too (scene accuracy {interval(accuracy, 3)}), and the arms on `small-vae` are undecided",
        holds=scenes.verdicts(["taef2"], scenes.primary) == {"better"}
        and scenes.verdicts(["small-vae", *TUNED], scenes.primary) == UNDECIDED,
    )


def finds_of_data() -> Iterator[Claim]:
    one = captions()
    short = one.compared("short", ACCURACY)
    yield Quote(
        f"On long prompts, short captions lose {magnitude(short, 3)} of accuracy (worse), and a curriculum (long "
        "first, then mixed) is undecided. On short prompts every arm is above the baseline at every seed, yet "
        "undecided",
        holds=short.verdict == "worse"
        and above_and_undecided(one)
        and one.verdicts(["curriculum"], [ACCURACY]) == UNDECIDED,
    )
    scenes = phases()
    alone, accuracy = (scenes.compared("synthetic-only", metric) for metric in (FRECHET, ACCURACY))
    yield Quote(
        "is undecided, compared with real images only. Training on synthetic images only is worse in Fréchet distance "
        f"({interval(alone, 1)}) and undecided in scene accuracy",
        holds=scenes.verdicts(["synthetic-then-real"], scenes.primary) == UNDECIDED
        and (alone.verdict, accuracy.verdict) == ("worse", "undecided"),
    )
    photos = phases_photos()
    mixed, then, only = (
        interval(photos.compared(arm, FID), 0) for arm in ("mixed", "synthetic-then-real", "synthetic-only")
    )
    yield Quote(
        f"every arm that spends steps on illustrations is worse. FID is {photos.mean(BASELINE, FID):.0f} with "
        f"photographs only. The differences are {mixed} for a mixture, {then} with illustrations first, and {only} "
        "with illustrations only",
        holds=photos.verdicts(photos.arms, [FID]) == {"worse"},
    )


def limits() -> Iterator[Claim]:
    runs = [run for one in every_study() for arm in one.results.arms for run in arm.runs]
    most = max(run.parameters for run in runs)
    yield Quote(f"models of at most {math.ceil(most / 1e6)} million parameters")
    few = [one for one in every_study() if len(one.results.seeds) == 3]
    yield Quote("Most committed studies have three seeds", holds=2 * len(few) > len(every_study()))


def magnitude(one: Comparison, digits: int) -> str:
    """A difference and its interval without signs, where all of it has one."""
    low, high = sorted(abs(end or 0.0) for end in (one.low, one.high))
    assert (one.low or 0.0) * (one.high or 0.0) > 0
    return f"{abs(one.difference):.{digits}f} [{low:.{digits}f}, {high:.{digits}f}]"


def relies_on() -> Iterator[Claim]:
    yield from measured.calibration_in_short()
    accuracies = {
        round(study.results.resolution.reference[ACCURACY]["overall"], 3)
        for study in (objectives(), captions(), optimizers(), tokenizers())
    }
    yield Quote(
        f"is right on {100 * min(accuracies):.1f}% of the attributes that the evaluation checks in real 64 px renders",
        holds=len(accuracies) == 1,
    )
    yield Quote(f"a run that was killed at any of {measured.kill_points()} tried points ends bit-identical")


PAGES: dict[str, Callable[[], Iterable[Claim]]] = {
    "README.md": readme,
    "docs/findings.md": finds,
    "docs/limits.md": limits,
    "docs/rely-on.md": relies_on,
}
