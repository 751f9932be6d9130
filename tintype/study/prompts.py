"""Describe the prompts of a study's scores, and how the prompts relate to the training captions of the arms."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path

from pydantic import BaseModel

from tintype.evaluation.prompts import is_caption
from tintype.study.results import Arm, MetricInfo, StudyResults
from tintype.wording import rendered, setting


class _Condition(BaseModel):
    name: str
    prompts: str
    method: object = None
    steps: object = None
    guidance: object = None


class SampledPrompts(BaseModel):
    """The part of a stored protocol that determines the prompts of the samples. Other keys are ignored."""

    prompts: str = "long"
    """The prompts of the main sampling; protocols of earlier versions do not have this key."""
    also: tuple[_Condition, ...] = ()

    def scored_on(self, metrics: Collection[str]) -> list[str]:
        """Return the prompts on which any metric is measured, with the prompts of the main sampling first."""
        named = [one.prompts for one in self.also if any(metric.endswith(f"_{one.name}") for metric in metrics)]
        return list(dict.fromkeys([self.prompts, *named]))

    def comparable(self) -> dict[str, str]:
        """Return condition -> prompts, for conditions that differ from the main sampling only in their prompts."""
        return {
            one.name: one.prompts
            for one in self.also
            if one.prompts != self.prompts and one.method is one.steps is one.guidance is None
        }


def reads_other_captions(changed: Iterable[str]) -> bool:
    """Return whether an arm with these changed keys has different training captions; caption dropout does not count."""
    return any(key.partition(".")[0] == "captions" and key != "captions.dropout" for key in changed)


def kind_words(prompts: str) -> str:
    return f"{prompts} prompts" if is_caption(prompts) else f"prompts of {Path(prompts).name}"


def one_kind_note(arms: Sequence[str], protocol: Mapping[str, object], metrics: Collection[str]) -> str:
    """Return a warning if these arms use different captions but are all scored on one kind of prompt; otherwise ''.

    A model does best on prompts like its training captions. PRX trained an arm on short captions, but scored this arm
    only on long prompts. Such a score mixes the effect of the captions with the effect of unfamiliar prompts.
    """
    sampled = SampledPrompts.model_validate(protocol)
    if not arms or len(sampled.scored_on(metrics)) > 1:
        return ""
    return (
        f"Scored on {kind_words(sampled.prompts)} only, though {', '.join(dict.fromkeys(arms))} "
        f"{'reads' if len(set(arms)) == 1 else 'read'} other captions than the baseline: a loss may come from prompts "
        "unlike their captions. Score short prompts too: "
        f"{rendered(setting('evaluation.also', '[{name: short, prompts: short}]'))}"
    )


def caption_arms(results: StudyResults) -> list[Arm]:
    """Return the arms that were trained on captions different from the baseline's."""
    return [arm for arm in results.arms if reads_other_captions(change.key for change in arm.changes)]


def metrics_by_prompts(results: StudyResults) -> list[list[tuple[str, MetricInfo]]]:
    """For a study of captions, return (prompts, metric) of each metric with several kinds of prompts."""
    if not caption_arms(results):
        return []
    known = {metric.name: metric for metric in results.metrics}
    sampled = SampledPrompts.model_validate(results.protocol)
    kinds = {"": sampled.prompts, **{f"_{name}": prompts for name, prompts in sampled.comparable().items()}}
    groups = [
        [(kind_words(kind), known[metric + ending]) for ending, kind in kinds.items() if metric + ending in known]
        for metric in known
    ]
    return [group for group in groups if len(group) > 1]
