"""Define the contrasts of a study; each comparison has a typed key and weights over the arms.

An arm and the control are compared with the baseline of their resolution. An arm is compared with another arm if the
study declares it (`compare`). In a study with several resolutions, a trend is an arm's effect at the most tokens minus
its effect at the fewest tokens. Baselines of several resolutions differ in every metric, so these effects are relative,
log(arm / baseline). Main effects and interactions are contrasts of factorial arms.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from tintype.evaluation.protocol import definitions
from tintype.losses.class_token import CLASS_TOKEN
from tintype.plan import Plan
from tintype.settings import plain
from tintype.study.factorial import FactorContrast
from tintype.study.results import SPEED, Role, arm_label
from tintype.study.stats.contrast import Contrast, Key, against
from tintype.study.stats.family import Counts
from tintype.study.study import ArmPlan, Study

ANOTHER_SPACE = "another space"
UNPAIRED = "the control has seeds of its own, so it has no pairs"
_OF_NO_SPACE = ("compute", "sha256")
"""Settings of a tokenizer that do not change its latents, or change them only by rounding."""


@dataclass(frozen=True)
class Asked:
    """A comparison in a study."""

    key: Key
    contrast: Contrast
    """Weights by the label of the arm."""
    names: Mapping[str, str]
    """Names of the labels, for messages about missing runs. The arm under test has an empty name."""
    baselines: Collection[str]
    """Labels of the reference, which is the baseline and the control, or the second of two compared arms."""

    @property
    def own(self) -> str:
        """Return the label of the arm under test."""
        return next(iter(self.contrast.weights))


def own_key(name: str, role: Role, resolution: str, metric: str) -> Key:
    return Key(name, metric, resolution, "control" if role == "control" else "arm")


def between_key(first: str, second: str, resolution: str, metric: str) -> Key:
    return Key(f"{first} against {second}", metric, resolution, "between")


def trend_key(arm: str, metric: str) -> Key:
    return Key(arm, metric, "", "trend")


def factor_key(one: FactorContrast, resolution: str, metric: str) -> Key:
    return Key(one.name, metric, resolution, "interaction" if one.is_interaction else "main effect")


def is_tested(metric: str) -> bool:
    """Return whether a metric's differences get a verdict; throughput gets none, since seeds do not change it."""
    return metric != SPEED


def trend_metrics(primary: Sequence[str]) -> list[str]:
    """Return the metrics that are compared between resolutions, which are the primary metrics and the throughput."""
    return list(dict.fromkeys([*primary, SPEED]))


def count_comparisons(
    arms: int,
    control: bool,
    resolutions: int,
    primary: Sequence[str],
    metrics: Collection[str],
    contrasts: int = 0,
    between: int = 0,
) -> Counts:
    """Count the comparisons of a study. `arms` is the number of arms without the control.

    With several resolutions, each arm's trend adds one comparison for each of `trend_metrics`. Each of the `contrasts`
    between factorial arms adds one comparison for each primary metric and resolution. `between` is the number of
    declared pairs of arms.
    """
    asked = list(filter(is_tested, primary))
    other = [metric for metric in metrics if metric not in primary and is_tested(metric)]
    compared = resolutions * (arms + control + between)
    trends = arms if resolutions > 1 else 0
    return Counts((compared + trends + resolutions * contrasts) * len(asked), compared * len(other))


def asked_of(study: Study, metrics: Iterable[str]) -> dict[Key, Asked]:
    """Return every comparison that a study plans; impossible comparisons are left out of the correction."""
    apart, found = incomparable(study), list[Asked]()
    for baseline, *others in study.by_resolution():
        baselines = [baseline.label, *(arm.label for arm in others if arm.role == "control")]
        for arm in others:
            names = {arm.label: "", baseline.label: "baseline"}
            keys = [own_key(arm.name, arm.role, arm.resolution, metric) for metric in metrics]
            contrast = against(arm.label, baseline.label)
            found += [Asked(key, contrast, names, baselines) for key in keys if key not in apart]
    for first, second in study.declared():
        names = {first.label: first.name, second.label: second.name}
        keys = [between_key(first.name, second.name, first.resolution, metric) for metric in metrics]
        contrast = against(first.label, second.label)
        found += [Asked(key, contrast, names, [second.label]) for key in keys if key not in apart]
    found += [_trend(study, key) for key, reason in trends_of(study).items() if not reason]
    return {one.key: one for one in [*found, *factors_of(study)]}


def trends_of(study: Study) -> dict[Key, str]:
    """Return the key of each trend, together with the reason if an arm cannot have a trend."""
    resolutions, apart = study.by_resolution(), incomparable(study)
    reasons: dict[Key, str] = {}
    for arm in (arm for arms in resolutions if len(resolutions) > 1 for arm in arms[1:]):
        for metric in trend_metrics(study.settings.primary):
            key, own = trend_key(arm.name, metric), own_key(arm.name, arm.role, arm.resolution, metric)
            reasons[key] = reasons.get(key) or (UNPAIRED if arm.role == "control" else apart.get(own, ""))
    return reasons


def _trend(study: Study, key: Key) -> Asked:
    fewest, *_, most = study.by_resolution()
    few, many = (against(arm_label(key.arm, arms[0].resolution), arms[0].label) for arms in (fewest, most))
    labels = {label: label for one in (few, many) for label in one.weights}
    baselines = [arm.label for arms in (fewest, most) for arm in arms if arm.role != "arm"]
    return Asked(key, Contrast({**many.weights, **few.times(-1).weights}, few.weights), labels, baselines)


def factors_of(study: Study) -> list[Asked]:
    """Return the contrasts between factorial arms, for primary metrics in which all their arms are comparable."""
    apart, found = incomparable(study), list[Asked]()
    for arms, one in study.contrasts():
        labels = labels_of(arms)
        weights = {labels[name]: weight for name, weight in one.weights.items()}
        names = {labels[name]: name or "baseline" for name in one.weights}
        baselines = [arm.label for arm in arms if arm.role != "arm"]
        for metric in filter(is_tested, study.settings.primary):
            if not any(own_key(name, "arm", arms[0].resolution, metric) in apart for name in one.weights):
                key = factor_key(one, arms[0].resolution, metric)
                found.append(Asked(key, Contrast(weights, {labels[""]: 1.0}), names, baselines))
    return found


def labels_of(arms: Sequence[ArmPlan]) -> dict[str, str]:
    """Return the labels of a resolution's arms, by the arms' names. The name of the baseline is ''."""
    return {"" if arm.role == "baseline" else arm.name: arm.label for arm in arms}


def incomparable(study: Study) -> dict[Key, str]:
    """Return the reason why arms cannot be compared with their baseline, or with another arm."""
    meanings = definitions(study.settings.evaluation)
    in_latents = [name for name, meaning in meanings.items() if meaning.metric.in_latents]
    found: dict[Key, str] = {}
    for arm, baseline in study.compared():
        if reason := another_space(arm.plans[0], baseline.plans[0]):
            found |= {own_key(arm.name, arm.role, arm.resolution, name): reason for name in in_latents}
    for first, second in study.declared():
        if reason := another_space(first.plans[0], second.plans[0], second.name):
            found |= {between_key(first.name, second.name, first.resolution, name): reason for name in in_latents}
    return found


def _class_token(plan: Plan) -> object:
    """Return the teacher whose noised class token (of the clean image) the denoiser reads; None if there is none."""
    return next((plain(loss)["teacher"] for loss in plan.losses if loss.kind == CLASS_TOKEN), None)


def another_space(new: Plan, old: Plan, name: str = "the baseline") -> str:
    """Return the reason why the validation losses of two plans cannot be compared; empty if they can be compared.
    `name` is the name of the old plan.

    The validation loss is measured in the latents of a run's own tokenizer. The latents of another tokenizer have
    another scale and another fraction of noise. So a difference between the two losses says nothing about the
    denoisers, even if its p is small. The same is true if the standard deviation of the noise differs, since the
    velocity is noise - x, and so its error grows with the noise. This depends only on the plans, so a study knows
    before its first run which comparisons are possible.
    """
    if _class_token(new) != _class_token(old):
        return f"{ANOTHER_SPACE}: the denoisers do not read the same class token of the clean image beside the image"
    scales = [plan.objective.noise_scale for plan in (new, old)]
    if scales[0] != scales[1]:
        return (
            f"{ANOTHER_SPACE}: the velocity is noise - x, and the noise has the deviation {scales[0]:g} here and "
            f"{scales[1]:g} in {name}"
        )
    own = "measured in the latents of the run's own tokenizer"
    if new.tuning is not None or old.tuning is not None:
        return f"{ANOTHER_SPACE}: it is {own}, and a tokenizer that is trained with the run is like no other"
    here, there = (plain(plan.tokenizer) for plan in (new, old))
    if all(here.get(key) == there.get(key) for key in {**here, **there} if key not in _OF_NO_SPACE):
        return ""
    kinds = new.tokenizer.kind, old.tokenizer.kind
    which = " here and ".join(kinds if kinds[0] != kinds[1] else (kinds[0], "with other settings or weights"))
    return f"{ANOTHER_SPACE}: it is {own}, {which} in {name}"
