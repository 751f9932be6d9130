"""A made-up study with everything that a report shows: two arms, a control, three seeds, images, and its variants."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from PIL import Image, ImageDraw

from tintype.config.strict import read_yaml
from tintype.study.along import with_along
from tintype.study.compare import Reading, compare
from tintype.study.contrasts import asked_of
from tintype.study.results import (
    Arm,
    Change,
    Curve,
    LookInfo,
    MetricInfo,
    Resolution,
    Role,
    Run,
    ScoreAt,
    StudyResults,
)
from tintype.study.stats.estimate import CONFIDENCE
from tintype.study.study import Study, read_settings, resolve

METRICS = [
    MetricInfo(
        name="scene_accuracy",
        label="Scene accuracy",
        direction="higher",
        definition="Share of the attributes that a long caption states and that a frozen probe reads off the image.",
        primary=True,
    ),
    MetricInfo(
        name="fd_scenes",
        label="FD (scenes)",
        direction="lower",
        definition="Fréchet distance between Gaussians fitted to the probe's features of 2,048 made and real images.",
        primary=True,
    ),
    MetricInfo(
        name="kid_scenes",
        label="KID (scenes)",
        direction="lower",
        definition="Unbiased squared MMD with a cubic polynomial kernel on the same features.",
    ),
    MetricInfo(
        name="mmd_scenes",
        label="MMD (scenes)",
        direction="lower",
        definition="Squared MMD with a Gaussian kernel, its bandwidth the median distance of real features.",
    ),
    MetricInfo(
        name="precision",
        label="Precision",
        direction="higher",
        definition="Share of made images within the real images' manifold of nearest neighbours (k = 3).",
    ),
    MetricInfo(
        name="recall",
        label="Recall",
        direction="higher",
        definition="Share of real images within the made images' manifold of nearest neighbours (k = 3).",
    ),
    MetricInfo(
        name="scene_accuracy_short",
        label="Scene accuracy, short captions",
        direction="higher",
        definition="As scene accuracy, for images made from short captions.",
    ),
    MetricInfo(
        name="validation_loss",
        label="Validation loss",
        direction="lower",
        definition="The baseline's velocity loss on held-out images, at fixed times and noise.",
    ),
    MetricInfo(
        name="images_per_s",
        label="Images per second",
        direction="higher",
        definition="Images trained on for each second, the first steps left out.",
    ),
]

# (value, spread over seeds) of the baseline, and the shift of each arm in units of the value.
BASELINE = {
    "scene_accuracy": (0.842, 0.008),
    "fd_scenes": (11.9, 0.35),
    "kid_scenes": (0.0214, 0.0012),
    "mmd_scenes": (0.00312, 0.0002),
    "precision": (0.711, 0.012),
    "recall": (0.583, 0.015),
    "scene_accuracy_short": (0.801, 0.011),
    "validation_loss": (0.1873, 0.0009),
    "images_per_s": (412.0, 6.0),
}
SHORT_CAPTIONS = {
    "scene_accuracy": -0.25,
    "fd_scenes": 0.31,
    "kid_scenes": 0.4,
    "mmd_scenes": 0.35,
    "precision": -0.09,
    "recall": -0.03,
    "scene_accuracy_short": 0.06,
    "validation_loss": 0.028,
    "images_per_s": 0.11,
}
UNIFORM_TIME = {"scene_accuracy": 0.003, "fd_scenes": -0.12, "validation_loss": -0.004, "precision": 0.01}

PROMPTS = [
    "a large red circle at the top left, a small blue square in the middle, and a green triangle at the bottom right, "
    "on a grey backdrop, lit from the left, flat style; the circle is above the triangle",
    "two small yellow stars beside each other on a dark blue backdrop, soft light, outlined",
    "a purple ring at the bottom, on a white backdrop, lit from above",
    "an orange cross above a cyan square, plain backdrop",
]
ATTRIBUTES = {
    "colour": 0.95,
    "shape": 0.88,
    "position": 0.86,
    "size": 0.81,
    "backdrop": 0.97,
    "light": 0.68,
    "style": 0.74,
}


def example(seeds: tuple[int, ...] = (0, 1, 2)) -> StudyResults:
    """The whole study; with one seed it is a sketch."""
    arms = {
        "baseline": _runs("baseline", seeds, {}),
        "control": _runs("control", tuple(seed + 1000 for seed in seeds), {}),
        "short_captions": _runs("short_captions", seeds, SHORT_CAPTIONS),
        "uniform_time": _runs("uniform_time", seeds, UNIFORM_TIME),
    }
    reading = _read(arms)
    return StudyResults(
        name="pocket: captions and times",
        question="Are long captions and logit-normal times worth having in a small model on little compute?",
        seeds=list(seeds),
        sketch=len(seeds) == 1,
        confidence=CONFIDENCE,
        method="Each seed gives one difference from the baseline. Their mean gets a 95% Student interval; the p values "
        "of all arms on a metric are corrected together by Holm's method, and the verdict follows the corrected p.",
        metrics=METRICS,
        arms=[reading.with_verdicts(_arm(name, runs)) for name, runs in arms.items()],
        protocol={
            "images": 2048,
            "sampler": "euler",
            "steps": 32,
            "guidance": 2.0,
            "weights": "ema",
            "also": [{"name": "short", "prompts": "short", "count": 256, "distances": False}],
        },
        resolutions=[RESOLUTION],
    )


RESOLUTION = Resolution(
    name="",
    plan="model:\n  width: 192\n  depth: 8\ntime:\n  distribution: logit_normal\ncaptions:\n  long: 0.9\n",
    prompts=PROMPTS,
    real_previews=[f"previews/real/{index}.png" for index in range(len(PROMPTS))],
    reference={"scene_accuracy": {part: min(0.995, value + 0.09) for part, value in ATTRIBUTES.items()}},
)


def at_resolution(results: StudyResults, **changes: Any) -> StudyResults:
    """Return the results with changes of their only resolution."""
    return results.model_copy(update={"resolutions": [results.resolution.model_copy(update=changes)]})


RESOLUTIONS = {"coarse": 64, "fine": 1024}


def several(seeds: tuple[int, ...] = (0, 1, 2)) -> StudyResults:
    """The study at two resolutions; at the fine one short captions harm less and the baseline is twice as slow."""
    results = example(seeds)
    milder = {name: shift / 5 for name, shift in SHORT_CAPTIONS.items()}
    arms = []
    for resolution, tokens in RESOLUTIONS.items():
        here = {"resolution": resolution, "tokens": tokens}
        shifts = {"short_captions": SHORT_CAPTIONS if resolution == "coarse" else milder, "uniform_time": UNIFORM_TIME}
        runs = {
            arm.name: _scaled(
                _runs(f"{arm.name} {resolution}", tuple(run.seed for run in arm.runs), shifts.get(arm.name, {})),
                "images_per_s",
                1.0 if resolution == "coarse" else 0.5,
            )
            for arm in results.arms
        }
        arms += [_arm(name, of_arm).model_copy(update=here) for name, of_arm in runs.items()]
    reading = _read({arm.label: arm.runs for arm in arms})
    places = [
        RESOLUTION.model_copy(update={"name": name, "plan": plan, "real_previews": [f"real/{name}/0.png"]})
        for name, plan in ((name, f"{RESOLUTION.plan}patch: {tokens}\n") for name, tokens in RESOLUTIONS.items())
    ]
    arms = [reading.with_verdicts(arm) for arm in arms]
    return results.model_copy(update={"arms": arms, "resolutions": places, "trends": reading.verdicts()["trends"]})


def _scaled(runs: list[Run], metric: str, factor: float) -> list[Run]:
    return [run.model_copy(update={"metrics": {**run.metrics, metric: factor * run.metrics[metric]}}) for run in runs]


@cache
def _study(seeds: tuple[int, ...], resolutions: bool) -> Study:
    """The study that the made-up runs are compared as."""
    text = f"""
question: why?
recipe: pocket
seeds: {list(seeds)}
control_seeds: {[seed + 1000 for seed in seeds]}
arms: [{{name: short_captions, set: [optimizer.lr=0.01]}}, {{name: uniform_time, set: [optimizer.lr=0.02]}}]
primary: [scene_accuracy, fd_scenes]
"""
    several = "resolutions: [{name: coarse, set: [model.patch=8]}, {name: fine, set: [model.patch=2]}]"
    return resolve("example", read_settings(read_yaml(text + several * resolutions, "study.yaml"), Path()))


def _read(runs: Mapping[str, list[Run]]) -> Reading:
    """Compare runs, which are given by the label of their arm."""
    resolutions = "baseline" not in runs
    seeds = tuple(run.seed for run in next(iter(runs.values())))
    study, metrics = _study(seeds, resolutions), {metric.name: metric for metric in METRICS}
    asked = asked_of(study, metrics)
    roles = {arms[0].resolution: {arm.label: arm.role for arm in arms} for arms in study.by_resolution()}
    rows = compare(roles, runs, metrics, asked, study.settings.primary, asked)
    look = LookInfo(**study.settings.every_seed.model_dump(), share=1.0, made=True)
    return Reading(study, runs, [study], metrics, list(asked), rows, [look], False, {})


def with_scores_along(results: StudyResults) -> StudyResults:
    """Return the study with scores along training: the second arm is faster at first and then falls behind."""
    steps = (375, 750, 1125, 1500)
    lags = {"short_captions": (2.2, 1.6, 1.3, 1.1), "uniform_time": (1.2, 1.1, 1.1, 1.15)}
    arms = []
    for arm in results.arms:
        runs = []
        for run in arm.runs:
            draw = random.Random(f"{arm.name} {run.seed} along")
            scores = [
                ScoreAt(
                    step=step,
                    seconds=step * (0.14 if arm.name == "uniform_time" else 0.12),
                    images=32 * step,
                    metrics={
                        "scene_accuracy": 0.62 / lag + draw.gauss(0, 0.01),
                        "fd_scenes": 30 * lag + draw.gauss(0, 0.8),
                    },
                )
                for step, lag in zip(steps, lags.get(arm.name, (2.0, 1.4, 1.1, 1.0)), strict=True)
            ]
            runs.append(run.model_copy(update={"along": scores}))
        arms.append(arm.model_copy(update={"runs": runs}))
    return with_along(results.model_copy(update={"arms": arms, "along_images": 128}))


def with_failed_run() -> StudyResults:
    results = example()
    broken = results.arms[3]
    failed = Run(seed=1, hash="dead", folder="runs/dead", state="failed", error="loss is not a number at step 412")
    missing = Run(seed=2, hash="gone", folder="runs/gone", state="missing")
    none: dict[str, Any] = {
        "differences": [],
        "low": None,
        "high": None,
        "p": None,
        "p_adjusted": None,
        "detectable": None,
    }
    comparisons = {
        name: comparison.model_copy(update={**none, "verdict": "failed", "lost": "failed 1 of 3"})
        for name, comparison in broken.comparisons.items()
    }
    update = {"runs": [broken.runs[0], failed, missing], "comparisons": comparisons}
    return results.model_copy(update={"arms": [*results.arms[:3], broken.model_copy(update=update)]})


def with_diverged_runs() -> StudyResults:
    """Every run of `short_captions` and one of `uniform_time` diverged."""
    results = example()
    arms = {arm.name: arm for arm in results.arms}
    runs = {name: list(arm.runs) for name, arm in arms.items()}
    for name, seeds in (("short_captions", (0, 1, 2)), ("uniform_time", (1,))):
        for seed in seeds:
            runs[name][seed] = Run(
                seed=seed, hash=f"{name}{seed}", folder="runs/x", state="diverged", error="20 steps were not finite"
            )
    reading = _read(runs)
    changed = [reading.with_verdicts(arm.model_copy(update={"runs": runs[name]})) for name, arm in arms.items()]
    return results.model_copy(update={"arms": changed})


def with_differing_control() -> StudyResults:
    results = example()
    control = results.arms[1]
    changed = control.comparisons["precision"].model_copy(update={"verdict": "worse"})
    arm = control.model_copy(update={"comparisons": {**control.comparisons, "precision": changed}})
    return results.model_copy(update={"arms": [results.arms[0], arm, *results.arms[2:]]})


HOSTILE = "<script>alert('x')</script>|\"&\n![x](javascript:y)"


def hostile(text: str = HOSTILE) -> StudyResults:
    """Text that must stay text, wherever a name, a caption, an error or an event is shown."""
    results = with_failed_run()
    arm = results.arms[3]
    failed = arm.runs[1].model_copy(update={"error": text, "events": [{"event": text, "step": 3, "why": text}]})
    changed = arm.model_copy(
        update={
            "name": text,
            "summary": text,
            "techniques": [text],
            "papers": [text, "arXiv:1234.5678<script>"],
            "changes": [Change(key=text, before=text, after={"a": text})],
            "runs": [arm.runs[0].model_copy(update={"details": {"scene_accuracy": {text: 0.4}}}), failed],
        }
    )
    results = at_resolution(results, plan=text, prompts=[text, *PROMPTS[1:]])
    return results.model_copy(
        update={
            "name": text,
            "question": text,
            "method": text,
            "protocol": {text: text},
            "metrics": [m.model_copy(update={"label": text, "definition": text}) for m in results.metrics],
            "arms": [*results.arms[:3], changed],
        }
    )


def draw_previews(results: StudyResults, folder: Path) -> None:
    real = [path for one in results.resolutions for path in one.real_previews]
    paths = [*real, *(path for arm in results.arms for run in arm.runs for path in run.previews)]
    for index, path in enumerate(paths):
        image = Image.new("RGB", (32, 32), (60, 60, 70))
        ImageDraw.Draw(image).ellipse((6, 6, 24, 24), fill=(40 * index % 256, 130, 200))
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        image.save(folder / path)


def _runs(arm: str, seeds: tuple[int, ...], shifts: dict[str, float]) -> list[Run]:
    return [_run(arm, seed, shifts) for seed in seeds]


def _run(arm: str, seed: int, shifts: dict[str, float]) -> Run:
    draw = random.Random(f"{arm} {seed}")
    metrics = {
        name: value * (1 + shifts.get(name, 0.0)) + draw.gauss(0, spread) for name, (value, spread) in BASELINE.items()
    }
    share = metrics["scene_accuracy"] / BASELINE["scene_accuracy"][0]
    return Run(
        seed=seed,
        hash=f"{draw.getrandbits(48):012x}",
        folder=f"runs/{arm}-{seed}",
        state="done",
        metrics=metrics,
        details={"scene_accuracy": {part: value * share + draw.gauss(0, 0.006) for part, value in ATTRIBUTES.items()}},
        curves={
            "flow": _curve(draw, 0.18 * (1 + shifts.get("validation_loss", 0.0)), 0.012),
            "gradient_norm": _curve(draw, 0.4, 0.05),
        },
        time_split=_time_split(draw, 1 / (1 + shifts.get("images_per_s", 0.0))),
        parameters=3_214_592,
        train_s=186 / (1 + shifts.get("images_per_s", 0.0)) + draw.gauss(0, 2),
        evaluate_s=41 + draw.gauss(0, 1),
        events=[{"event": "loss_spike", "step": 240, "time": 1.0, "loss": 0.9}]
        if (arm, seed) == ("baseline", 1)
        else [],
        environment={"tintype": "0.1.0", "torch": "2.10.0", "python": "3.11.9", "device": "A CPU × 2", "threads": 2},
        previews=[f"previews/{arm}/{seed}/{index}.png" for index in range(len(PROMPTS))],
    )


def _curve(draw: random.Random, floor: float, noise: float) -> Curve:
    steps = list(range(1, 1500, 5))
    return Curve(
        step=steps,
        value=[floor + math.exp(-step / 60) + 0.1 / math.sqrt(step) + draw.gauss(0, noise) for step in steps],
    )


def _time_split(draw: random.Random, text_share: float) -> dict[str, float]:
    seconds = {"data": 12.0, "text": 22 * text_share**3, "tokenizer": 0.0, "forward": 54.0, "backward": 79.0}
    return {part: value + draw.random() for part, value in {**seconds, "optimizer": 13.0, "other": 5.0}.items()}


ABOUT: dict[str, dict[str, Any]] = {
    "baseline": {"summary": "The pocket recipe as it is."},
    "control": {"summary": "The baseline's own plan with other seeds."},
    "short_captions": {
        "summary": "Train on short captions only.",
        "techniques": ["short_captions"],
        "papers": ["arXiv:2310.16656"],
        "changes": [Change(key="captions.long", before=0.9, after=0.0)],
    },
    "uniform_time": {
        "summary": "Draw training times evenly instead of from a logit-normal.",
        "techniques": ["uniform_time"],
        "papers": ["arXiv:2403.03206", "arXiv:2209.03003"],
        "changes": [
            Change(key="time.distribution", before="logit_normal", after="uniform"),
            Change(key="time.scale", before=1.0, after=None),
        ],
    },
}


def _arm(name: str, runs: list[Run]) -> Arm:
    roles: dict[str, Role] = {"baseline": "baseline", "control": "control"}
    about = {"techniques": [], "papers": [], "changes": [], **ABOUT[name]}
    return Arm(name=name, role=roles.get(name, "arm"), runs=runs, comparisons={}, **about)
