"""The READMEs of the studies. The blocks that README.md shows too are made here."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from math import sqrt
from statistics import fmean, median, stdev, variance

from tintype.cost.plan import cost_of_plan, estimated_speed
from tintype.study.replicate import Claim as Claimed
from tintype.study.replicate import claims_of, replicated
from tintype.study.study import load_study
from tools.figures.data import (
    BASELINE,
    Study,
    data,
    each,
    interval,
    judged,
    percent,
    relative,
    signed,
    spread,
    study,
    table,
    within,
)
from tools.figures.pages import Block, Claim, Quote

UNDECIDED = {"undecided"}
LOSS = "validation_loss"
ACCURACY, ACCURACY_SHORT, FRECHET, FID, SPEED = (
    "scene_accuracy",
    "scene_accuracy_short",
    "fd_scenes",
    "fd_inception",
    "images_per_s",
)

STAGES = "2026-11-18_stages-mini"
BACKDROP_ONLY = 0.17
"""Scene accuracy of a model that draws only backdrop and light: docs/metrics.md, which a test compares."""

QUESTIONS = {
    "2026-11-15_captions-and-target-mini": "Short captions, and predicting the clean image",
    "2026-11-15_captions-mini": "Which captions?",
    "2026-11-15_objectives-mini": "Which objectives and alignment losses?",
    "2026-11-15_optimizers-mini": "Does Muon beat AdamW, and does bf16 storage cost quality?",
    "2026-11-15_phases-mini": "Synthetic images, real ones, in which order?",
    "2026-11-15_routing-mini": "Does token routing pay?",
    "2026-11-15_tokenizers-mini": "Which space, on scenes?",
    "2026-11-15_tokenizers-photos-mini": "Which space, on photographs?",
    "2026-11-16_muon-replication-mini": "Do Muon's verdicts hold on ten fresh seeds?",
    "2026-11-16_phases-photos-mini": "Illustrations, photographs, in which order?",
    "2026-11-17_bank-mini": "How far do seeds lie apart?",
    "2026-11-17_fp8-mini": "Does training with FP8 products cost quality?",
    "2026-11-17_adaptive-mini": "What do more seeds decide of the optimizers?",
    "2026-11-17_muon-mini": "Does a member of Muon's family beat AdamW at its learning rate?",
    "2026-11-17_dispersive-mini": "Does keeping the samples of a batch apart help?",
    "2026-11-17_prediction-mini": "Which prediction, and which loss?",
    "2026-11-18_stages-mini": "Should a small model begin with small images?",
}
"""The studies in studies/ that have verdicts, with their questions in short."""
REPLICATED = {"2026-11-15_optimizers-mini": "2026-11-16_muon-replication-mini"}
"""Studies of which arms were repeated on fresh seeds, and where."""


def captions() -> Study:
    return study("2026-11-15_captions-mini")


def captions_and_target() -> Study:
    return study("2026-11-15_captions-and-target-mini")


def objectives() -> Study:
    return study("2026-11-15_objectives-mini")


def optimizers() -> Study:
    return study("2026-11-15_optimizers-mini")


def muon_replication() -> Study:
    return study("2026-11-16_muon-replication-mini")


def phases() -> Study:
    return study("2026-11-15_phases-mini")


def routing() -> Study:
    return study("2026-11-15_routing-mini")


def tokenizers() -> Study:
    return study("2026-11-15_tokenizers-mini")


def tokenizers_photos() -> Study:
    return study("2026-11-15_tokenizers-photos-mini")


def phases_photos() -> Study:
    return study("2026-11-16_phases-photos-mini")


def every_study() -> list[Study]:
    """All studies that have verdicts, oldest first."""
    return [study(folder) for folder in QUESTIONS]


def above(one: Study, arm: str, other: str, metric: str) -> list[float]:
    """By how much `arm` is above `other`, seed by seed."""
    return [a - b for a, b in zip(one.values(arm, metric), one.values(other, metric), strict=True)]


def millions(one: Study) -> str:
    return f"{round(max(arm.runs[0].parameters for arm in one.results.arms[:1]) / 1e6)} million parameters"


def design(one: Study) -> Iterator[Claim]:
    """Claims that the READMEs make about their studies: size, length, seeds and intervals."""
    yield Quote(millions(one))
    yield Quote(one.setup())
    yield from sketched(one)


def sketched(one: Study) -> Iterator[Claim]:
    yield Quote("A sketch: three seeds, not replicated", holds=len(one.results.seeds) == 3)
    yield holding(one)


def holding(one: Study) -> Claim:
    return Quote(
        f"{one.intervals} intervals hold together with a confidence of 95%",
        holds=one.results.confidence == 0.95 and f"All {one.intervals} intervals" in one.results.method,
    )


def captions_page() -> Iterator[Claim]:
    one, before = captions(), captions_and_target()
    yield from design(one)
    names = {
        "short": "`short-captions`",
        "mixed": "`caption-mix`, half and half",
        "curriculum": "`caption-curriculum`: long, then mixed",
    }
    rows = [
        [
            name,
            each(one.values(arm, ACCURACY), 2),
            "" if arm == BASELINE else judged(one.compared(arm, ACCURACY), 3),
            each(one.values(arm, ACCURACY_SHORT), 2),
            "" if arm == BASELINE else judged(one.compared(arm, ACCURACY_SHORT), 3),
            f"{one.mean(arm, FRECHET):.1f} / {one.mean(arm, 'fd_scenes_short'):.1f}",
        ]
        for arm, name in {BASELINE: "long (baseline)", **names}.items()
    ]
    header = [
        "arm",
        "long prompts: scene accuracy",
        "difference",
        "short prompts: scene accuracy",
        "difference",
        "mean Fréchet distance, long / short",
    ]
    yield Block("captions", table(header, rows))
    yield Quote(
        "**On long prompts, short captions are worse**; the mix and the curriculum are undecided",
        holds=one.verdicts(["short"], [ACCURACY]) == {"worse"}
        and one.verdicts(["mixed", "curriculum"], [ACCURACY]) == UNDECIDED,
    )
    spreads = one.values(BASELINE, ACCURACY_SHORT)
    yield Quote(
        "are above the baseline at every seed, and undecided. One of the baseline's three runs lies far below the "
        f"others ({each(spreads, 2)}), and three runs do not show which value is usual",
        holds=above_and_undecided(one) and max(spreads[1:]) - min(spreads[1:]) < (min(spreads[1:]) - spreads[0]) / 3,
    )
    long, short = (before.compared("short-captions", metric) for metric in (ACCURACY, ACCURACY_SHORT))
    yield Quote(
        f"of {before.setup()} agrees. Short captions are worse on long prompts ({interval(long, 3)}) and undecided on "
        f"short ones ({interval(short, 3)})",
        holds=(long.verdict, short.verdict) == ("worse", "undecided"),
    )
    curriculum = one.compared("curriculum", ACCURACY)
    yield Quote(
        f"the curriculum is below the baseline at every seed, by {-curriculum.difference:.3f} in the mean (undecided). "
        "It is above the mix at every seed (not tested)",
        holds=max(curriculum.differences) < 0
        and min(above(one, "curriculum", "mixed", ACCURACY)) > 0
        and curriculum.verdict == "undecided",
    )
    yield Quote(
        "on short prompts the recall of all three arms is better, and their precision is undecided. On long prompts "
        "short captions are worse in precision, recall, KID and MMD",
        holds=one.verdicts(names, ["recall_scenes_short"]) == {"better"}
        and one.verdicts(names, ["precision_scenes_short"]) == UNDECIDED
        and one.verdicts(["short"], ["precision_scenes", "recall_scenes", "kid_scenes", "mmd_scenes"]) == {"worse"},
    )


def above_and_undecided(one: Study) -> bool:
    """Whether every arm is above the baseline at every seed on short prompts, and undecided."""
    rows = [one.compared(arm, ACCURACY_SHORT) for arm in one.arms]
    return all(min(row.differences) > 0 and row.verdict == "undecided" for row in rows)


def captions_and_target_page() -> Iterator[Claim]:
    one = captions_and_target()
    yield from design(one)
    names = {"control": "A/A control", "short-captions": "`short-captions`", "x-prediction": "`x-prediction`"}
    digits = {ACCURACY: 3, ACCURACY_SHORT: 3, FRECHET: 2}
    means = [f"{one.mean(BASELINE, metric):.{places}f}" for metric, places in digits.items()]
    rows = [
        [name, *(judged(one.arm(arm).comparisons[metric], places) for metric, places in digits.items())]
        for arm, name in names.items()
    ]
    header = ["arm", "scene accuracy, long prompts", "scene accuracy, short prompts", "Fréchet distance (scenes)"]
    yield Block("captions-and-target", table(header, [["baseline", *means], *rows]))
    yield Quote(
        "**Short captions are worse on long prompts**, in scene accuracy and in Fréchet distance",
        holds=one.verdicts(["short-captions"], [ACCURACY, FRECHET]) == {"worse"},
    )
    now = one.compared("short-captions", ACCURACY_SHORT)
    seeds = [each(one.values(arm, ACCURACY_SHORT), 2) for arm in (BASELINE, "short-captions")]
    yield Quote(
        f"**On short prompts they are undecided** ({interval(now, 3)}). The accuracies differ much from seed to seed "
        f"(baseline {seeds[0]}; `short-captions` {seeds[1]})",
        holds=now.verdict == "undecided",
    )
    target = one.compared("x-prediction", ACCURACY)
    yield Quote(
        f"`x-prediction` is worse in scene accuracy, by a hair ({interval(target, 3)}), and in validation loss",
        holds=one.verdicts(["x-prediction"], [ACCURACY, LOSS]) == {"worse"},
    )
    still = {row.verdict for metric, row in one.arm("control").comparisons.items() if metric != SPEED}
    yield Quote("The control is undecided in every metric, as it should be", holds=still == UNDECIDED)
    bank = study("2026-11-17_bank-mini")
    again = [bank.compared(arm, ACCURACY) for arm in ("short-captions", "x-prediction")]
    yield Quote(
        f"**At half the steps**, the {len(bank.results.seeds)} seeds of [bank-mini](../2026-11-17_bank-mini/README.md) "
        f"call both arms worse in scene accuracy too ({interval(again[0], 3)} and {interval(again[1], 3)}). They "
        "call `x-prediction` better in Fréchet distance",
        holds={row.verdict for row in again} == {"worse"}
        and bank.compared("x-prediction", FRECHET).verdict == "better"
        and 2 * bank.plan["train"]["steps"] == one.plan["train"]["steps"],
    )


OBJECTIVES = {
    "repa": "`repa`",
    "irepa": "`irepa`",
    "x-prediction": "`x-prediction`",
    "contrastive": "`contrastive`",
    "min-snr": "`min-snr`",
}


def objectives_table() -> list[str]:
    one = objectives()
    baseline = ["baseline", f"{one.mean(BASELINE, ACCURACY):.3f}", f"{one.mean(BASELINE, FRECHET):.2f}"]
    rows = [
        [
            name,
            judged(one.compared(arm, ACCURACY), 3),
            judged(one.compared(arm, FRECHET), 2),
            percent(relative(one.compared(arm, SPEED))),
        ]
        for arm, name in OBJECTIVES.items()
    ]
    header = ["arm", "scene accuracy", "Fréchet distance (scenes)", "images/s"]
    return table(header, [[*baseline, f"{one.mean(BASELINE, SPEED):,.0f}"], *rows])


def objectives_page() -> Iterator[Claim]:
    one = objectives()
    yield from design(one)
    yield Block("objectives", objectives_table())
    yield Quote("The speed is measured, not tested", holds=one.verdicts(OBJECTIVES, [SPEED]) == {"measured"})
    yield Quote(
        "yes: better on all there, on both primary metrics here",
        holds=one.verdicts(["repa"], one.primary) == {"better"},
    )
    yield Quote("it is better than the baseline here", holds=one.verdicts(["irepa"], one.primary) == {"better"})
    unmoved = one.verdicts(["x-prediction", "contrastive"], one.primary) == UNDECIDED
    yield Quote(
        "here both primary metrics are undecided, and the validation loss is worse",
        holds=unmoved and one.verdicts(["x-prediction"], [LOSS]) == {"worse"},
    )
    yield Quote("open: both primary metrics are undecided here", holds=unmoved)

    def part(arm: str, name: str) -> float:
        return fmean(run.details[ACCURACY][name] for run in one.arm(arm).runs)

    aligned = ["repa", "irepa"]
    others = [BASELINE, *(arm for arm in one.arms if arm not in aligned)]
    shapes = [spread((part(arm, "shape") for arm in arms), "{:.2f}".format) for arms in (aligned, others)]
    textures = [1 - part(arm, "texture") for arm in aligned]
    yield Quote(f"the scene encoder reads {shapes[0]} of the shapes right in the mean, without it {shapes[1]}")
    yield Quote(
        f"about one of three cases with alignment ({spread(textures, '{:.2f}'.format)})",
        holds=all(abs(value - 1 / 3) < 0.05 for value in textures),
    )
    by_seed = ", ".join(signed(value, 3) for value in above(one, "irepa", "repa", ACCURACY))
    yield Quote(f"in scene accuracy, by seed: {by_seed}.")
    distance, accuracy = (one.compared("min-snr", metric) for metric in (FRECHET, ACCURACY))
    yield Quote(
        "has a smaller Fréchet distance and a lower accuracy than the baseline at every seed (colour "
        f"{part(BASELINE, 'colour'):.2f} to {part('min-snr', 'colour'):.2f}). Both are undecided",
        holds=max(distance.differences) < 0 > max(accuracy.differences)
        and {distance.verdict, accuracy.verdict} == UNDECIDED,
    )
    yield Quote(
        "`x-prediction` and `contrastive` are worse in validation loss, which is undecided for `min-snr`. Both "
        "alignments are better in KID and MMD, and undecided in precision",
        holds=one.verdicts(["x-prediction", "contrastive"], [LOSS]) == {"worse"}
        and one.verdicts(["min-snr"], [LOSS]) == one.verdicts(aligned, ["precision_scenes"]) == UNDECIDED
        and one.verdicts(aligned, ["kid_scenes", "mmd_scenes"]) == {"better"},
    )
    short = [value for arm in [BASELINE, *one.arms] for value in one.values(arm, ACCURACY_SHORT)]
    yield Quote(f"on short prompts is low ({spread(short, '{:.2f}'.format)})")


def optimizers_page() -> Iterator[Claim]:
    one = optimizers()
    yield Quote(one.setup())
    yield holding(one)
    runs = sum(len(arm.runs) for arm in one.results.arms)
    yield Quote(f"{runs} runs")
    names = {
        "adamw 3e-4": "AdamW, 3e-4",
        "adamw 3e-3": "AdamW, 3e-3",
        "muon 3e-4": "`muon`, 3e-4",
        "muon 1e-3": "`muon`, 1e-3",
        "muon 3e-3": "`muon`, 3e-3",
        "bf16-storage": "`bf16-storage`",
        "bf16-storage, stochastic": "`bf16-storage`, stochastic",
        "bf16-storage, kahan": "`bf16-storage`, kahan",
    }

    def lost(arm: str) -> str:
        there = one.compared(arm, LOSS)
        text = f"{percent(relative(there), 1)} {there.verdict}"
        return f"**{text}**" if there.verdict != "undecided" else text

    rows = [
        [name, judged(one.compared(arm, ACCURACY), 3), judged(one.compared(arm, FRECHET), 2), lost(arm)]
        for arm, name in names.items()
    ]
    means = [f"{one.mean(BASELINE, metric):.{digits}f}" for metric, digits in ((ACCURACY, 3), (FRECHET, 2), (LOSS, 4))]
    header = ["arm", "scene accuracy", "Fréchet distance (scenes)", "validation loss"]
    yield Block("optimizers", table(header, [["baseline: AdamW, 1e-3", *means], *rows]))
    yield from muon_on_fresh_seeds()
    low = ["adamw 3e-4", "muon 3e-4"]
    yield Quote(
        "**Learning rates of 3e-4 are too low for both** in 500 steps: worse in scene accuracy, Fréchet distance and "
        "validation loss",
        holds=one.verdicts(low, [ACCURACY, FRECHET, LOSS]) == {"worse"},
    )
    yield Quote(
        "At AdamW's 1e-3 `muon` is worse in scene accuracy. Its validation loss is undecided here, and worse on the "
        "ten fresh seeds",
        holds=one.verdicts(["muon 1e-3"], [ACCURACY]) == {"worse"}
        and one.verdicts(["muon 1e-3"], [LOSS]) == UNDECIDED
        and muon_replication().verdicts(["muon 1e-3"], [LOSS]) == {"worse"},
    )
    yield Quote(
        "At 3e-3 both optimizers have a better validation loss than AdamW at 1e-3, and are undecided in both primary "
        "metrics",
        holds=one.verdicts(["adamw 3e-3", "muon 3e-3"], [LOSS]) == {"better"}
        and one.verdicts(["adamw 3e-3", "muon 3e-3"], one.primary) == UNDECIDED,
    )
    yield Quote(
        f"has a validation loss above the baseline's at every seed, by {rise_of_bf16()} "
        f"({each(one.values('bf16-storage', LOSS), 4)} against {each(one.values(BASELINE, LOSS), 4)}). This is "
        "undecided",
        holds=one.verdicts(["bf16-storage"], [LOSS]) == UNDECIDED,
    )
    yield Quote("the mean is within 0.5% of the baseline's", holds=mended_within(0.005))
    stored = [arm for arm in names if arm.startswith("bf16")]
    tested = [metric.name for metric in one.results.metrics if metric.name != SPEED]
    other = [(arm, name) for arm in stored for name in tested if one.verdicts([arm], [name]) != UNDECIDED]
    yield Quote(
        "Here, at 500 steps, every metric is undecided except the validation loss of stochastic rounding, which is the "
        "same",
        holds=other == [("bf16-storage, stochastic", LOSS)] and one.verdicts([other[0][0]], [LOSS]) == {"same"},
    )
    yield Quote(f"ran at {spread(one.values(BASELINE, SPEED), '{:,.0f}'.format)} images/s")


def repeated_claims(one: Study, again: Study) -> tuple[list[Claimed], list[Claimed]]:
    """Return the verdicts on arms that another study repeats on fresh seeds, and those of them that hold there."""
    claims = [claim for claim in claims_of(one.results) if claim.arm in again.arms]
    return claims, [
        claim for claim in claims if replicated(claim, again.compared(claim.arm, claim.metric)).outcome == "holds"
    ]


def muon_on_fresh_seeds() -> Iterator[Claim]:
    """Compare the differences and verdicts of three seeds with those of ten fresh ones."""
    one, again = optimizers(), muon_replication()
    now, fresh = (each.compared("muon 3e-3", FRECHET) for each in (one, again))
    yield Quote(
        f"**`muon` at 3e-3 is undecided in Fréchet distance** ({interval(now, 2)}). It is also undecided on",
        holds=now.verdict == "undecided",
    )
    yield Quote(
        f"({interval(fresh, 2)}), where the difference is less than half",
        holds=len(again.results.seeds) == 10
        and again.verdicts(["muon 3e-3"], again.primary) == UNDECIDED
        and abs(fresh.difference) < abs(now.difference) / 2,
    )
    claims, held = repeated_claims(one, again)
    yield Quote(
        f"The {len(claims)} verdicts of this study on `muon` at 1e-3 and 3e-3 all hold there. At 1e-3 it is worse in "
        "precision and in scene accuracy, on long and on short prompts. At 3e-3 it is better in validation loss",
        holds=held == claims
        and {(claim.arm, claim.metric, claim.verdict) for claim in claims}
        == {
            ("muon 1e-3", ACCURACY, "worse"),
            ("muon 1e-3", "precision_scenes", "worse"),
            ("muon 1e-3", ACCURACY_SHORT, "worse"),
            ("muon 3e-3", LOSS, "better"),
        },
    )


def muon_replication_page() -> Iterator[Claim]:
    one = muon_replication()
    runs = sum(len(arm.runs) for arm in one.results.arms)
    yield Quote(f"{runs} runs of `mini`, {one.setup()}")
    yield holding(one)
    digits = {ACCURACY: 3, FRECHET: 2, LOSS: 4}
    means = [f"{one.mean(BASELINE, metric):.{places}f}" for metric, places in digits.items()]
    rows = [
        [
            f"`muon`, {arm.removeprefix('muon ')}",
            *(judged(one.compared(arm, metric), places) for metric, places in digits.items()),
        ]
        for arm in one.arms
    ]
    header = ["arm", "scene accuracy", "Fréchet distance (scenes)", "validation loss"]
    yield Block("muon-replication", table(header, [["baseline: AdamW, 1e-3", *means], *rows]))
    first = optimizers().compared("muon 3e-3", FRECHET)
    yield Quote(
        f"left `muon` at 3e-3 undecided in Fréchet distance ({interval(first, 2)})", holds=first.verdict == "undecided"
    )
    yield Quote(
        "**At 3e-3 both primary metrics are undecided.** Its validation loss and its precision are better",
        holds=len(one.results.seeds) == 10
        and one.verdicts(["muon 3e-3"], one.primary) == UNDECIDED
        and one.verdicts(["muon 3e-3"], [LOSS, "precision_scenes"]) == {"better"},
    )
    yield Quote(
        "**At AdamW's rate of 1e-3 Muon is worse** in both primary metrics and in the validation loss",
        holds=one.verdicts(["muon 1e-3"], [*one.primary, LOSS]) == {"worse"},
    )
    spreads = [stdev(one.values(arm, ACCURACY)) for arm in ("muon 3e-3", BASELINE)]
    yield Quote(
        "**At 3e-3 its accuracy varies more** from seed to seed than the baseline's (standard deviation "
        f"{spreads[0]:.3f} against {spreads[1]:.3f}, not tested)",
        holds=spreads[0] > spreads[1],
    )
    fast = one.values("muon 3e-3", ACCURACY)
    collapsed = [row.collapsed for arm in one.results.arms for row in arm.comparisons.values()]
    yield Quote(
        f"None of these ten runs collapsed (accuracies of {spread(fast, '{:.2f}'.format)})", holds=not any(collapsed)
    )


def rise_of_bf16() -> str:
    """By how much storage in bf16 raises the validation loss, over the seeds."""
    one = optimizers().compared("bf16-storage", LOSS)
    olds = optimizers().values(BASELINE, LOSS)
    return spread((new / old for new, old in zip(one.differences, olds, strict=True)), lambda x: f"{100 * x:.0f}") + "%"


def mended_within(share: float) -> bool:
    one, arms = optimizers(), ["bf16-storage, stochastic", "bf16-storage, kahan"]
    return all(abs(relative(one.compared(arm, LOSS))) < share for arm in arms)


def by_seed(one: Study, arm: str, metric: str, digits: int) -> list[str]:
    return [
        each(one.values(arm, metric), digits),
        "" if arm == BASELINE else judged(one.compared(arm, metric), digits),
    ]


def phases_page() -> Iterator[Claim]:
    one = phases()
    yield Quote(one.setup())
    yield from sketched(one)
    names = {
        BASELINE: "real only (baseline)",
        "mixed": "mixed, half and half",
        "synthetic-then-real": "synthetic, then real",
        "synthetic-only": "synthetic only",
        "sft": "`sft`: 100 steps on 1,024 real images after stage one",
        "stage-one": "stage one: synthetic, then real, 400 steps",
    }
    header = ["arm", "scene accuracy, seeds 0, 1, 2", "difference", "Fréchet distance", "difference"]
    rows = [
        [
            name,
            *by_seed(one, arm, ACCURACY, 3),
            *by_seed(one, arm, FRECHET, 1),
        ]
        for arm, name in names.items()
    ]
    yield Block("phases", table(header, rows))
    arms = [arm for arm in names if arm != BASELINE]
    yield Quote(
        "**No arm is shown to be better than real images alone**, although the 8,192 real images are seen eight times",
        holds="better" not in one.verdicts(arms, one.primary)
        and one.plan["data"]["count"] == 8192
        and round(one.plan["train"]["steps"] * one.plan["train"]["batch"] / 8192) == 8,
    )
    yield Quote(
        "Synthetic images first, and half and half, are undecided in both primary metrics",
        holds=one.verdicts(["synthetic-then-real", "mixed"], one.primary) == UNDECIDED,
    )
    yield Quote(
        "A model trained on synthetic images alone is worse in Fréchet distance "
        f"({interval(one.compared('synthetic-only', FRECHET), 1)}) and in precision",
        holds=one.verdicts(["synthetic-only"], [FRECHET, "precision_scenes"]) == {"worse"},
    )
    others = [ACCURACY, "kid_scenes", "mmd_scenes", "recall_scenes", LOSS]
    signs = {ACCURACY: -1, "recall_scenes": -1}
    yield Quote(
        f"Its scene accuracy is undecided ({interval(one.compared('synthetic-only', ACCURACY), 3)}), and so are KID, "
        "MMD, recall and validation loss. Yet each of them is on the bad side of the baseline at every seed",
        holds=one.verdicts(["synthetic-only"], others) == UNDECIDED
        and all(
            signs.get(metric, 1) * value > 0
            for metric in others
            for value in one.compared("synthetic-only", metric).differences
        ),
    )
    gained = above(one, "sft", "stage-one", ACCURACY)
    yield Quote(
        f"is above its start at every seed ({spread(gained, lambda x: signed(x, 2))} accuracy; not tested). At equal "
        "steps, 400 + 100, it is worse in accuracy than real images alone",
        holds=min(gained) > 0 and one.verdicts(["sft"], [ACCURACY]) == {"worse"},
    )


def routing_page() -> Iterator[Claim]:
    one = routing()
    yield Quote(millions(one))
    plan = one.results.resolutions[0].plan
    yield Quote("500 steps of 128 images", holds="steps: 500" in plan and "batch: 128" in plan)
    yield from sketched(one)
    arms, counts = ["tread", "sprint"], [256, 1024]

    def row(arm: str, tokens: int) -> list[str]:
        if arm == BASELINE:
            means = [one.mean(arm, metric, tokens) for metric in (ACCURACY, FRECHET, SPEED)]
            return [f"{tokens:,}", arm, f"{means[0]:.3f}", f"{means[1]:.2f}", f"{means[2]:,.0f}"]
        speed = one.compared(arm, SPEED, tokens)
        differences = [judged(one.compared(arm, ACCURACY, tokens), 3), judged(one.compared(arm, FRECHET, tokens), 2)]
        return [f"{tokens:,}", f"`{arm}`", *differences, f"{speed.mean / speed.baseline_mean:.2f} ×"]

    header = ["tokens", "arm", "scene accuracy", "Fréchet distance (scenes)", "images/s"]
    yield Block("routing", table(header, [row(arm, tokens) for tokens in counts for arm in [BASELINE, *arms]]))
    guided = {
        (arm, tokens, kind): (one.mean(arm, ACCURACY + kind, tokens), one.mean(arm, FRECHET + kind, tokens))
        for tokens in counts
        for arm in [BASELINE, *arms]
        for kind in ("", "_self", "_path-drop")
    }
    rows = [
        [
            f"{tokens:,}",
            arm if arm == BASELINE else f"`{arm}`",
            *("{:.3f} / {:.2f}".format(*guided[arm, tokens, kind]) for kind in ("", "_self", "_path-drop")),
        ]
        for tokens in counts
        for arm in [BASELINE, *arms]
    ]
    yield Block("routing-guidance", table(["tokens", "arm", "classifier-free", "`self`", "`path-drop`"], rows))
    yield Quote(
        "**Does routing help more with more tokens?** In quality, that is undecided, and so is every effect on the "
        "primary metrics at either number of tokens",
        holds=routing_is_undecided(),
    )
    detectable = {
        (trend.arm, trend.metric): 2.718281828 ** (trend.comparison.detectable or 0)
        for trend in one.results.trends
        if trend.comparison and trend.metric in one.primary
    }
    least = min(detectable, key=lambda key: detectable[key])
    yield Quote(
        f"At this spread three seeds would find only changes by a factor of {detectable[least]:.1f} (`tread`, "
        "scene accuracy) or more",
        holds=least == ("tread", ACCURACY),
    )
    speeds = {tokens: [one.compared(arm, SPEED, tokens) for arm in arms] for tokens in counts}
    yield Quote(
        "The speed is measured, not tested. Its ratios at 256 tokens are smaller than at 1,024",
        holds=all(relative(few) < relative(many) for few, many in zip(speeds[256], speeds[1024], strict=True)),
    )
    extra = ["_self", "_path-drop"]
    spoiled = [value for tokens in counts for kind in extra for value in one.values(BASELINE, FRECHET + kind, tokens)]
    kept = [
        value
        for tokens in counts
        for kind in extra
        for arm in arms
        for value in one.values(arm, FRECHET + kind, tokens)
    ]
    yield Quote(
        f"has a lower accuracy and a Fréchet distance of {int(min(spoiled))} and more at every seed; routed arms "
        "stay below 6",
        holds=max(kept) < 6
        and all(
            a < b
            for tokens in counts
            for kind in extra
            for a, b in zip(
                one.values(BASELINE, ACCURACY + kind, tokens), one.values(BASELINE, ACCURACY, tokens), strict=True
            )
        ),
    )
    yield Quote(
        "The Fréchet distance of both routed arms under `self` is better than the baseline's at both numbers of tokens",
        holds=all(one.verdicts(arms, ["fd_scenes_self"], tokens) == {"better"} for tokens in counts),
    )
    yield Quote(
        "At 256 tokens both routed arms are worse in validation loss, and at 1,024 `sprint` is better in KID",
        holds=one.verdicts(arms, [LOSS], 256) == {"worse"}
        and one.verdicts(["sprint"], ["kid_scenes"], 1024) == {"better"},
    )
    odd = ("tread", 1024)
    yield Quote(
        "On routed models the mean accuracy is lower under `self` than under classifier-free guidance. The mean "
        "Fréchet distance is lower too, except for `tread` at 1,024 tokens (not tested)",
        holds=all(
            guided[arm, tokens, "_self"][0] < guided[arm, tokens, ""][0]
            and (guided[arm, tokens, "_self"][1] < guided[arm, tokens, ""][1]) == ((arm, tokens) != odd)
            for arm in arms
            for tokens in counts
        ),
    )
    speed = one.values("tread", SPEED, 1024)
    yield Quote(f"seed 1, ran at {speed[1]:,.0f} against {speed[0]:,.0f} and {speed[2]:,.0f} of the other seeds")


def routing_is_undecided() -> bool:
    """No verdict on a primary metric at either number of tokens, nor on a trend over them."""
    one = routing()
    verdicts = [one.verdicts(["tread", "sprint"], one.primary, tokens) for tokens in (256, 1024)]
    trends = {trend.comparison.verdict for trend in one.results.trends if trend.comparison and trend.metric != SPEED}
    return verdicts == [UNDECIDED, UNDECIDED] and trends == UNDECIDED


TOKENIZERS = {
    BASELINE: "pixels (baseline)",
    "small-vae": "`small-vae`, 16 channels",
    "small-vae + repa-e": "`small-vae` + `repa-e`",
    "small-vae + repa + repa-e": "`small-vae` + `repa` + `repa-e`",
    "taef2": "`taef2`, 32 channels",
    "taef2 + repa": "`taef2` + `repa` (VGG16)",
}
TUNED = ["small-vae + repa-e", "small-vae + repa + repa-e"]


def tokenizer_share(one: Study) -> str:
    """The autoencoder's part of a step where it is trained, over arms and seeds."""
    shares = [run.time_split["tokenizer"] for arm in TUNED for run in one.arm(arm).runs]
    return spread(shares, lambda share: f"{100 * share:.0f}") + "%"


def tokenizers_page() -> Iterator[Claim]:
    one, photos = tokenizers(), tokenizers_photos()
    yield from design(one)
    rows = [[name, *by_seed(one, arm, ACCURACY, 2), *by_seed(one, arm, FRECHET, 2)] for arm, name in TOKENIZERS.items()]
    header = ["arm", "scene accuracy, seeds 0, 1, 2", "difference", "Fréchet distance", "difference"]
    yield Block("tokenizers", table(header, rows))
    ahead = ["taef2", "taef2 + repa"]
    yield Quote(
        "**`taef2` is better than pixels** in both primary metrics. With `repa` it is better in Fréchet distance, and "
        "undecided in scene accuracy. On photographs both arms are better",
        holds=one.verdicts(["taef2"], one.primary) == one.verdicts(ahead, [FRECHET]) == {"better"}
        and one.verdicts(["taef2 + repa"], [ACCURACY]) == UNDECIDED
        and photos.verdicts(ahead, [FID]) == {"better"},
    )
    yield Quote(
        "The three arms on `small-vae` are undecided in both primary metrics",
        holds=one.verdicts(["small-vae", *TUNED], one.primary) == UNDECIDED,
    )

    def lower_at(arm: str, other: str, metric: str) -> int:
        return sum(value < 0 for value in above(one, arm, other, metric))

    yield Quote(
        "has a lower accuracy than `taef2` alone at two of three seeds (not tested)",
        holds=lower_at("taef2 + repa", "taef2", ACCURACY) == 2,
    )
    yield Quote(
        "has a smaller Fréchet distance than the frozen `small-vae` at every seed, and a lower accuracy at two of "
        "three (not tested)",
        holds=lower_at(TUNED[1], "small-vae", FRECHET) == 3 and lower_at(TUNED[1], "small-vae", ACCURACY) == 2,
    )
    yield Quote(f"with `repa-e` the autoencoder takes {tokenizer_share(one)} of a step")


def tokenizers_photos_page() -> Iterator[Claim]:
    one = tokenizers_photos()
    yield from design(one)
    rows = [[name, *by_seed(one, arm, FID, 0)] for arm, name in TOKENIZERS.items()]
    yield Block("tokenizers-photos", table(["arm", "FID, seeds 0, 1, 2", "difference"], rows))
    yield Quote("**Every arm on latents is better than pixels**", holds=one.verdicts(one.arms, [FID]) == {"better"})
    yield Quote(
        "has a lower FID than the `small-vae` that was trained on these 6,091 photographs. That holds at every seed "
        "(not tested)",
        holds=max(above(one, "taef2", "small-vae", FID)) < 0,
    )
    yield Quote(
        f"**`repa-e` has a higher FID than the frozen `small-vae`** at every seed, by {excess_of_repa_e()} (not "
        "tested)",
        holds=repa_e_is_above_the_frozen_vae(),
    )
    speeds = spread((1 + relative(one.compared(arm, SPEED)) for arm in TUNED), "{:.2f}".format)
    yield Quote(
        f"The arms with `repa-e` train at {speeds} of the speed of pixels: the autoencoder takes "
        f"{tokenizer_share(one)} of their step"
    )


def excess_of_repa_e() -> str:
    one = tokenizers_photos()
    return spread((value for arm in TUNED for value in above(one, arm, "small-vae", FID)), "{:.0f}".format)


def repa_e_is_above_the_frozen_vae() -> bool:
    return all(min(above(tokenizers_photos(), arm, "small-vae", FID)) > 0 for arm in TUNED)


def phases_photos_page() -> Iterator[Claim]:
    one = phases_photos()
    yield from design(one)
    names = {
        BASELINE: "photographs only (baseline)",
        "mixed": "mixed, half and half",
        "synthetic-then-real": "illustrations, then photographs",
        "synthetic-only": "illustrations only",
        "sft": "`sft`: 100 steps on 1,024 photographs after stage one",
        "stage-one": "stage one: illustrations, then photographs, 400 steps",
    }
    loss, kid = LOSS, "kid_inception"
    rows = [
        [
            name,
            *by_seed(one, arm, FID, 0),
            f"{one.mean(arm, loss):.3f}" + ("" if arm == BASELINE else f" {one.compared(arm, loss).verdict}"),
        ]
        for arm, name in names.items()
    ]
    yield Block("phases-photos", table(["arm", "FID, seeds 0, 1, 2", "difference", "mean validation loss"], rows))
    yield Quote(
        "**Every arm that spends steps on something other than photographs is worse in FID.** Photographs alone are "
        "seen ten times in these 500 steps",
        holds=one.verdicts(one.arms, [FID]) == {"worse"} and 10 <= 500 * 128 / 6091 < 11,
    )
    over = ["synthetic-then-real", "stage-one", "sft"]
    others = [arm for arm in names if arm != "synthetic-only"]
    yield Quote(
        "At every seed illustrations alone have the highest validation loss, and a lower KID than each arm that "
        "changes over to photographs (not tested). Their KID is undecided",
        holds=all(min(above(one, "synthetic-only", arm, loss)) > 0 for arm in others)
        and all(max(above(one, "synthetic-only", arm, kid)) < 0 for arm in over)
        and one.verdicts(["synthetic-only"], [kid]) == UNDECIDED,
    )
    fids = [value for arm in names if arm != BASELINE for value in one.values(arm, FID)]
    yield Quote("At an FID of 250 and more", holds=min(fids) >= 250)
    fell = above(one, "stage-one", "sft", FID)
    yield Quote(
        f"has a lower FID than its start at every seed, by {spread(fell, '{:.0f}'.format)} (not tested), and is "
        "worse than photographs alone at equal steps",
        holds=min(fell) > 0 and one.verdicts(["sft"], [FID]) == {"worse"},
    )
    scores = [metric.name for metric in one.results.metrics if metric.name != SPEED]
    yield Quote(
        "was trained again here, on another machine, with the same scores",
        holds=all(one.values(BASELINE, name) == tokenizers_photos().values(BASELINE, name) for name in scores),
    )


def _verdict_table(one: Study, metrics: dict[str, int]) -> list[str]:
    means = [f"{one.mean(BASELINE, metric):.{places}f}" for metric, places in metrics.items()]
    rows = [
        [arm.name, *(judged(arm.comparisons[metric], places) for metric, places in metrics.items())]
        for arm in one.results.arms
        if arm.role != "baseline"
    ]
    labels = {metric.name: metric.label for metric in one.results.metrics}
    return table(["arm", *(labels[metric] for metric in metrics)], [["baseline", *means], *rows])


def bank_page() -> Iterator[Claim]:
    one = study("2026-11-17_bank-mini")
    yield Quote(f"{sum(len(arm.runs) for arm in one.results.arms)} runs of `mini`, {one.setup()}")
    yield Block("bank-verdicts", _verdict_table(one, {ACCURACY: 3, FRECHET: 2, LOSS: 4}))
    yield Block("bank-metrics", _bank_metrics(one))
    clean = [one.compared("x-prediction", metric).verdict for metric in (LOSS, FRECHET)]
    yield Quote("x-prediction is worse in it and better in Fréchet distance", holds=clean == ["worse", "better"])
    fast = one.compared("muon 3e-3", FRECHET)
    yield Quote(f"better here ({interval(fast, 2)})", holds=fast.verdict == "better")
    again = muon_replication().compared("muon 3e-3", FRECHET)
    yield Quote(f"undecided on [ten others](../2026-11-16_muon-replication-mini/README.md) ({interval(again, 2)})")
    fell = one.compared("muon 3e-3", ACCURACY)
    low = sorted(run.metrics[ACCURACY] for run in one.arm("muon 3e-3").runs if run.seed in fell.collapsed)
    usual = sorted(run.metrics[ACCURACY] for run in one.arm("muon 3e-3").runs)
    like = [run for arm in one.results.arms if arm.role != "arm" for run in arm.runs]
    yield Quote(
        f"In scene accuracy {len(fell.collapsed)} of its {len(usual)} runs collapse: they end at "
        f"{' and '.join(f'{value:.2f}' for value in low)}, where the median is {median(usual):.2f}. None of the "
        f"baseline's {len(like)} does, but {len(fell.collapsed)} are too few to call the arm *unstable* (p = "
        f"{fell.collapse_p:.2f}). Scene accuracy is undecided, with them and without",
        holds=(fell.verdict, fell.all_runs_verdict) == ("undecided", "undecided") and not fell.baseline_collapsed,
    )
    metrics = [metric.name for metric in one.results.metrics if metric.name != SPEED]
    most = {arm: max(metrics, key=lambda metric: _in_deviations(one, arm, metric)) for arm in one.arms}
    yield Quote(
        "**The validation loss is most sensitive** to x-prediction and to Muon",
        holds={most[arm] for arm in ("x-prediction", "muon 3e-3")} == {LOSS},
    )


def adaptive_page() -> Iterator[Claim]:
    one, before = study("2026-11-17_adaptive-mini"), optimizers()
    runs = sum(len(arm.runs) for arm in one.results.arms)
    yield Quote(f"{runs} runs of `mini`, {one.setup()}")
    first = sum(run.seed < 208 for arm in one.results.arms for run in arm.runs)
    yield Quote(f"One command made {first} of them and two looks")
    yield Quote(f"the {runs - first} runs of the third look")
    rows, decided = [], {"before": 0, "now": 0}
    for arm in (arm for arm in one.results.arms if arm.role == "arm"):
        cells = [before.compared(arm.name, metric) for metric in one.primary]
        now = [arm.comparisons[metric] for metric in one.primary]
        for key, of in (("before", cells), ("now", now)):
            decided[key] += sum(row.verdict != "undecided" for row in of)
        words = [judged(row, places) for row, places in zip(now, (3, 2), strict=True)]
        rows.append([arm.name, *(row.verdict for row in cells), str(len(arm.runs)), *words])
    header = [
        "arm",
        "accuracy, three seeds",
        "distance, three seeds",
        "seeds now",
        "scene accuracy",
        "Fréchet distance (scenes)",
    ]
    yield Block("adaptive-verdicts", table(header, rows))
    yield Quote(
        f"decided {decided['before']} of the ten primary comparisons of these arms; planned looks have decided "
        f"{decided['now']}",
        holds=decided["now"] >= 2 * decided["before"] > 0,
    )
    looks = one.results.looks
    most = (len(one.arms) + 1) * len(looks[-1].seeds)
    yield Quote(f"Twelve seeds for every arm would be {most} runs", holds=len(looks[-1].seeds) == 12)
    yield Quote(
        f"all three looks were made, with {runs} runs in total",
        holds=[look.made for look in looks] == [True, True, True],
    )
    fast = one.compared("muon 3e-3", FRECHET)
    yield Quote(f"better in Fréchet distance ({interval(fast, 2)})", holds=fast.verdict == "better")
    bank = study("2026-11-17_bank-mini").compared("muon 3e-3", FRECHET)
    yield Quote(
        f"On the {len(study('2026-11-17_bank-mini').results.seeds)} other seeds of bank-mini it is better too "
        f"({interval(bank, 2)})",
        holds=bank.verdict == "better",
    )
    tail = sorted(one.values("muon 3e-3", ACCURACY))
    yield Quote(
        f"one of {len(tail)} ends at {tail[0]:.2f}, where the median is {median(tail):.2f}. That is too close to the "
        "others to count as collapsed",
        holds=not one.compared("muon 3e-3", ACCURACY).collapsed,
    )
    stored = one.compared("bf16-storage", ACCURACY)
    assert stored.corrected is not None
    yield Quote(
        f"**Weights and moments in bf16** are worse in scene accuracy ({interval(stored, 3)}), at the last look. "
        f"The difference is small: corrected for selection it is {within(stored.corrected, 3)}",
        holds=stored.verdict == "worse",
    )
    slow = one.verdicts(["muon 1e-3"], one.primary)
    yield Quote(
        "worse in both primary metrics, as on ten seeds before",
        holds=slow == {"worse"} == muon_replication().verdicts(["muon 1e-3"], one.primary),
    )


def _bank_metrics(one: Study) -> list[str]:
    """The seed spread of the baseline's runs, and each arm's difference in deviations of both."""
    rows = []
    for metric in (metric for metric in one.results.metrics if metric.name != SPEED):
        runs = {arm.label: [run.metrics[metric.name] for run in arm.runs] for arm in one.results.arms}
        baseline = [value for arm in one.results.arms if arm.role != "arm" for value in runs[arm.label]]
        deviation, mean = stdev(baseline), fmean(baseline)
        arms = [f"{_in_deviations(one, arm, metric.name):.1f}" for arm in one.arms]
        rows.append([metric.label, f"{mean:.3g}", f"{100 * deviation / abs(mean):.1f}%", *arms])
    return table(["metric", "mean", "standard deviation", *(f"{arm}, in sd" for arm in one.arms)], rows)


def _in_deviations(one: Study, arm: str, metric: str) -> float:
    """Return how far apart an arm and the baseline's plan are, in root mean squares of their two deviations."""
    new = one.values(arm, metric)
    old = [run.metrics[metric] for like in one.results.arms if like.role != "arm" for run in like.runs]
    return abs(fmean(new) - fmean(old)) / sqrt((variance(new) + variance(old)) / 2)


def fp8_page() -> Iterator[Claim]:
    one = study("2026-11-17_fp8-mini")
    yield Quote(f"{sum(len(arm.runs) for arm in one.results.arms)} runs of `mini`, {one.setup()}")
    yield Block("fp8-verdicts", _verdict_table(one, {ACCURACY: 3, FRECHET: 2, LOSS: 4}))
    everything = {row.verdict for arm in one.results.arms for row in arm.comparisons.values() if arm.role == "arm"}
    yield Quote("No metric shows a difference", holds=not everything & {"better", "worse", "unstable"})
    loss = one.compared("fp8", LOSS)
    yield Quote(f"validation loss differs by {interval(loss, 4)}")


def muon_family_page() -> Iterator[Claim]:
    one = study("2026-11-17_muon-mini")
    yield _five_seeds(one)
    yield Block("muon-verdicts", _verdict_table(one, {ACCURACY: 3, FRECHET: 2, LOSS: 4}))
    distances = {arm: one.compared(arm, FRECHET).verdict for arm in one.arms}
    yield Quote(
        "Every member of the family is worse in scene accuracy, `muon` and `normuon` in Fréchet distance too",
        holds=one.verdicts(one.arms, [ACCURACY]) == {"worse"}
        and [arm for arm, verdict in distances.items() if verdict == "worse"] == ["muon", "normuon"],
    )
    decayed = ["muon, decay", "muon, cautious decay"]
    yield Quote(
        "The two arms with weight decay are better in KID and MMD",
        holds=one.verdicts(decayed, ["kid_scenes", "mmd_scenes"]) == {"better"},
    )
    others = [muon_replication(), study("2026-11-17_adaptive-mini")]
    yield Quote(
        "it is worse [on ten](../2026-11-16_muon-replication-mini/README.md) and "
        "[on eight](../2026-11-17_adaptive-mini/README.md) other seeds",
        holds={other.compared("muon 1e-3", ACCURACY).verdict for other in others} == {"worse"}
        and [len(other.arm("muon 1e-3").runs) for other in others] == [10, 8],
    )
    bank = study("2026-11-17_bank-mini")
    yield Quote(
        "At 3e-3 `muon` is better in Fréchet distance on the seeds of [bank-mini](../2026-11-17_bank-mini/README.md)",
        holds=bank.compared("muon 3e-3", FRECHET).verdict == "better",
    )
    best, *rest = sorted((one.mean(arm, ACCURACY) for arm in one.arms), reverse=True)
    yield Quote(
        f"Only Polar Express reaches it, with a mean of {best:.2f}; the others have {min(rest):.2f} to {max(rest):.2f}",
        holds=best == one.mean("muon, polar express", ACCURACY) and max(rest) < BACKDROP_ONLY < best,
    )
    yield _few_objects_right(one)
    gains = above(one, "muon, polar express", "muon", ACCURACY)
    yield Quote(
        "higher scene accuracy than `muon`'s own coefficients at every seed, by "
        f"{spread(gains, '{:.2f}'.format)} (not tested)",
        holds=min(gains) > 0,
    )
    moved = [one.mean(arm, ACCURACY) - one.mean("muon", ACCURACY) for arm in ("muon, decay", "muon, cautious decay")]
    yield Quote("moves the mean accuracy by 0.01 at most (not tested)", holds=max(map(abs, moved)) <= 0.01)


def dispersive_page() -> Iterator[Claim]:
    one = study("2026-11-17_dispersive-mini")
    yield _five_seeds(one)
    yield Block("dispersive-verdicts", _verdict_table(one, {ACCURACY: 3, FRECHET: 2, LOSS: 4}))
    usual = [run.metrics[ACCURACY] for arm in one.results.arms if arm.role != "arm" for run in arm.runs]
    with_it = [value for arm in one.arms for value in one.values(arm, ACCURACY)]
    yield Quote(
        "**Worse in scene accuracy, in each block and with either weight.** All five runs of each arm have a "
        "lower scene accuracy than all ten of the baseline's plan",
        holds=one.verdicts(one.arms, [ACCURACY]) == {"worse"} and max(with_it) < min(usual) and len(usual) == 10,
    )
    yield Quote(
        "In Fréchet distance `dispersive` is worse, and the two others are undecided",
        holds=[one.compared(arm, FRECHET).verdict for arm in one.arms] == ["worse", "undecided", "undecided"],
    )
    low, *rest = sorted(one.mean(arm, ACCURACY) for arm in one.arms)
    yield Quote(
        f"The arm with the middle block is below it, with a mean of {low:.2f}; the others have {min(rest):.2f} to "
        f"{max(rest):.2f}",
        holds=low == one.mean("dispersive, middle block", ACCURACY) and low < BACKDROP_ONLY < min(rest),
    )
    yield _few_objects_right(one)
    yield Quote("the denoising loss falls to 0.07", holds=round(one.mean(BASELINE, LOSS), 2) == 0.07)
    yield Quote(
        "All three arms are undecided in KID and MMD",
        holds=one.verdicts(one.arms, ["kid_scenes", "mmd_scenes"]) == UNDECIDED,
    )


def prediction_page() -> Iterator[Claim]:
    one = study("2026-11-17_prediction-mini")
    yield _five_seeds(one)
    yield Block("prediction-accuracy", _prediction_grid(one, ACCURACY, 3))
    yield Block("prediction-distance", _prediction_grid(one, FRECHET, 2))
    noise = [arm for arm in one.arms if "noise" in arm]
    yield Quote(
        "A loss on the noise is worse than the baseline in both primary metrics, for every prediction. So is "
        "predicting the noise, with every loss",
        holds=one.verdicts(noise, one.primary) == {"worse"} and len(noise) == 5,
    )
    low = [arm for arm in one.arms if one.mean(arm, ACCURACY) < BACKDROP_ONLY]
    means = " and ".join(f"{one.mean(arm, ACCURACY):.2f}" for arm in low)
    yield Quote(
        f"those that predict the clean image with a loss on it or on the noise: {means}",
        holds=low == ["x, loss on x", "x, loss on noise"],
    )
    yield _few_objects_right(one)
    turned = one.verdicts(["v, loss on x"], one.primary), one.compared("v, loss on x", LOSS).verdict
    yield Quote(
        "are undecided in both. The validation loss, which compares velocities, is worse",
        holds=turned == (UNDECIDED, "worse"),
    )
    bank = study("2026-11-17_bank-mini")
    clean = [bank.compared("x-prediction", metric).verdict for metric in (ACCURACY, FRECHET)]
    yield Quote(
        f"with a loss on velocities is undecided here. On the {len(bank.results.seeds)} seeds of "
        "[bank-mini](../2026-11-17_bank-mini/README.md) it is worse in scene accuracy and better in Fréchet distance",
        holds=one.verdicts(["x, loss on v"], one.primary) == UNDECIDED and clean == ["worse", "better"],
    )
    yield Quote(
        "With a loss on clean images it is worse in scene accuracy and undecided in Fréchet distance. With a loss on "
        "the noise it is worse in both",
        holds=[one.compared("x, loss on x", metric).verdict for metric in (ACCURACY, FRECHET)] == ["worse", "undecided"]
        and one.verdicts(["x, loss on noise"], one.primary) == {"worse"},
    )
    sizes, channels = one.plan["model"], 3
    yield Quote(f"Here a patch has {channels * sizes['patch'] ** 2}, and the model is {sizes['width']} wide")


def stages_page() -> Iterator[Claim]:
    one = study(STAGES)
    small, more = one.arms
    runs, again = sum(len(arm.runs) for arm in one.results.arms), one.results.replication
    assert again is not None
    yield Quote(
        f"{runs} runs of `mini`, {one.setup()}, eight seeds, and {3 * len(again.seeds)} runs on eight fresh seeds",
        holds=len(one.results.seeds) == len(again.seeds) == 8,
    )
    yield Block("stages-verdicts", _verdict_table(one, {ACCURACY: 3, FRECHET: 2, LOSS: 4}))
    yield Quote(f"`{small}` has {100 * _operations(small):.0f}% of the baseline's operations")
    yield Quote(
        "**With as many images, small ones first are worse.**", holds=one.compared(small, ACCURACY).verdict == "worse"
    )
    yield from small_first_loses(one)
    rows = {(row.arm, row.metric): row for row in again.rows}
    fresh = rows[small, ACCURACY]
    yield Quote(
        f"**On eight fresh seeds that holds** ({interval(fresh, 3)}), and so does its higher validation loss",
        holds={rows[small, metric].outcome for metric in (ACCURACY, LOSS)} == {"holds"},
    )
    recall = rows[more, "recall_scenes"]
    yield Quote(
        f"no primary metric is shown to gain.** `{more}` has {100 * _operations(more):.0f}% of the operations. Both "
        "primary metrics are undecided. Its recall is lower, on the fresh seeds too",
        holds=one.verdicts([more], one.primary) == UNDECIDED and (recall.verdict, recall.outcome) == ("worse", "holds"),
    )
    distances = [one.compared(arm, FRECHET) for arm in one.arms]
    yield Quote(
        f"is worse with as many images as the baseline's ({interval(distances[0], 2)}). Fresh seeds did not test this "
        "verdict. With more images it is undecided",
        holds=[row.verdict for row in distances] == ["worse", "undecided"] and (small, FRECHET) not in rows,
    )
    short = rows[small, ACCURACY_SHORT]
    yield Quote(
        "Both arms follow them better, the first on the fresh seeds too. That is little: the baseline's mean is "
        f"{one.mean(BASELINE, ACCURACY_SHORT):.2f} there",
        holds=(short.verdict, short.outcome) == ("better", "holds")
        and one.verdicts(one.arms, [ACCURACY_SHORT]) == {"better"}
        and (more, ACCURACY_SHORT) not in rows,
    )
    early = {arm: [at for run in one.arm(arm).runs for at in run.along if at.step == 250] for arm in one.arms}
    means = [fmean(at.metrics[ACCURACY] for at in scores) for scores in early.values()]
    yield Quote(
        f"have a scene accuracy of {means[0]:.2f} and {means[1]:.2f}, on {one.results.along_images} images",
        holds={at.size_px for scores in early.values() for at in scores} == {32},
    )
    yield _few_objects_right(one)
    alone = {(row["size_px"], row["batch"]): row for row in data(f"studies/{STAGES}/speed.json")["rows"]}
    took = {work: 1000 * row["step_s"] for work, row in alone.items()}
    yield Quote(
        f"They take {took[32, 128]:.1f} ms with 128 images of 32 px, {took[32, 512]:.1f} ms with 512 of them, and "
        f"{took[64, 128]:.1f} ms with 128 of 64 px. So a quarter of the tokens takes more than half of the time",
        holds=took[32, 128] > took[64, 128] / 2,
    )
    small_waits, waits = (alone[size_px, 128]["data_share"] for size_px in (32, 64))
    yield Quote(
        f"The GPU waits for data {100 * small_waits:.0f}% of the time with 128 images of 32 px, and {100 * waits:.0f}% "
        "with those of 64 px"
    )


def small_first_loses(one: Study) -> Iterator[Claim]:
    row = one.compared("small first", ACCURACY)
    assert row.low is not None and row.high is not None
    yield Quote(
        f"loses {-row.difference:.3f} [{-row.high:.3f}, {-row.low:.3f}] of scene accuracy", holds=row.verdict == "worse"
    )


def _operations(label: str) -> float:
    """Return the operations of an arm of the study of stages, as a share of the baseline's."""
    plans = {arm.label: arm.plans[0] for arm in load_study("stages-mini").arms}
    costs = [cost_of_plan(plans[name], estimated_speed("h200")).run_flops for name in (label, BASELINE)]
    return costs[0] / costs[1]


def _five_seeds(one: Study) -> Claim:
    runs = sum(len(arm.runs) for arm in one.results.arms)
    return Quote(f"{runs} runs of `mini`, {one.setup()}, five seeds", holds=len(one.results.seeds) == 5)


def _few_objects_right(one: Study) -> Claim:
    return Quote(f"Few objects are entirely right even in the baseline ({one.mean(BASELINE, 'objects_right'):.2f})")


def _prediction_grid(one: Study, metric: str, places: int) -> list[str]:
    """Predictions down, losses across; the baseline's mean stands in its own place."""
    spaces = ("v", "x", "noise")

    def cell(predicted: str, compared: str) -> str:
        if predicted == compared == "v":
            return f"{one.mean(BASELINE, metric):.{places}f} (baseline)"
        return judged(one.compared(f"{predicted}, loss on {compared}", metric), places)

    rows = [[predicted, *(cell(predicted, compared) for compared in spaces)] for predicted in spaces]
    return table(["predicts", *(f"loss on {compared}" for compared in spaces)], rows)


def list_page() -> Iterator[Claim]:
    """Every study with its verdicts on primary metrics."""
    header = ["study", "question", "seeds", "verdicts", "replicated"]
    yield Block("studies", table(header, [_listed(folder) for folder in QUESTIONS]))
    yield Quote("Arms that are not listed are undecided")


def _listed(folder: str) -> list[str]:
    one = study(folder)
    said: dict[str, list[str]] = {}
    for metric in (metric for metric in one.results.metrics if metric.primary):
        for arm in (arm for arm in one.results.arms if arm.role == "arm"):
            if (verdict := arm.comparisons[metric.name].verdict) != "undecided":
                said.setdefault(f"{verdict} in {metric.label}", []).append(arm.name)
    found = "; ".join(f"{words}: {_named(arms)}" for words, arms in said.items()) or "none"
    return [_link(folder), QUESTIONS[folder], str(len(one.results.seeds)), found, _fresh(folder)]


def _fresh(folder: str) -> str:
    """Count the verdicts that hold on fresh seeds: those of another study, or those of the replication."""
    one = study(folder)
    if again := REPLICATED.get(folder):
        claims, held = repeated_claims(one, study(again))
        return f"{len(held)} of {len(claims)} verdicts on two arms hold in {_link(again)}"
    if first := [first for first, again in REPLICATED.items() if again == folder]:
        return f"repeats {_link(first[0])}"
    if (replication := one.results.replication) is None:
        return "no"
    rows = [row for row in replication.rows if row.metric in one.primary]
    count = sum(row.outcome == "holds" for row in rows)
    said = f"{count} of {len(rows)} hold{'s' if count == 1 else ''} on {len(replication.seeds)} fresh seeds"
    left = sum(claim.metric in one.primary for claim in claims_of(one.results)) - len(rows)
    return f"{said}; {left} not tried" if left else said


def _link(folder: str) -> str:
    return f"[{folder.partition('_')[2]}]({folder}/README.md)"


def _named(arms: Sequence[str]) -> str:
    """List arms; names with a comma in them are quoted."""
    return ", ".join(f"“{arm}”" if "," in arm else arm for arm in arms)


PAGES: dict[str, Callable[[], Iterable[Claim]]] = {
    "studies/README.md": list_page,
    "studies/2026-11-15_captions-and-target-mini/README.md": captions_and_target_page,
    "studies/2026-11-15_captions-mini/README.md": captions_page,
    "studies/2026-11-15_objectives-mini/README.md": objectives_page,
    "studies/2026-11-15_optimizers-mini/README.md": optimizers_page,
    "studies/2026-11-15_phases-mini/README.md": phases_page,
    "studies/2026-11-15_routing-mini/README.md": routing_page,
    "studies/2026-11-15_tokenizers-mini/README.md": tokenizers_page,
    "studies/2026-11-15_tokenizers-photos-mini/README.md": tokenizers_photos_page,
    "studies/2026-11-16_muon-replication-mini/README.md": muon_replication_page,
    "studies/2026-11-16_phases-photos-mini/README.md": phases_photos_page,
    "studies/2026-11-17_bank-mini/README.md": bank_page,
    "studies/2026-11-17_fp8-mini/README.md": fp8_page,
    "studies/2026-11-17_adaptive-mini/README.md": adaptive_page,
    "studies/2026-11-17_muon-mini/README.md": muon_family_page,
    "studies/2026-11-17_dispersive-mini/README.md": dispersive_page,
    "studies/2026-11-17_prediction-mini/README.md": prediction_page,
    f"studies/{STAGES}/README.md": stages_page,
}
