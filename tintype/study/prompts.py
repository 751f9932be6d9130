"""Which prompts a study of captions is scored on.

A model does best on prompts like the captions that it was trained on. PRX trained an arm on short captions and scored
it on long prompts only, so that its loss is the captions' and that of the unlike prompts in one.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tintype.evaluation.prompts import is_caption

_USUAL = "long"
"""The prompts of the main sampling of protocols that are older than the setting."""


def main_prompts(protocol: Mapping[str, Any]) -> str:
    """Return the kind of caption that the main sampling reads. `protocol` is plain data."""
    return str(protocol.get("prompts", _USUAL))


def reads_other_captions(changed: Iterable[str]) -> bool:
    """Whether an arm that changes these keys is trained on other captions; how many are dropped does not count."""
    return any(key.partition(".")[0] == "captions" and key != "captions.dropout" for key in changed)


def kind_words(prompts: str) -> str:
    return f"{prompts} prompts" if is_caption(prompts) else f"prompts of {Path(prompts).name}"


def scored_kinds(protocol: Mapping[str, Any], metrics: Collection[str]) -> list[str]:
    """The prompts that any of the metrics is taken on, those of the main sampling first. `protocol` is plain data.

    A condition can be sampled and give no number: without distances, scenes or an encoder that reads text.
    """
    others = [
        condition["prompts"]
        for condition in protocol.get("also", [])
        if any(metric.endswith(f"_{condition['name']}") for metric in metrics)
    ]
    return list(dict.fromkeys([main_prompts(protocol), *others]))


def comparable_conditions(protocol: Mapping[str, Any]) -> dict[str, str]:
    """(condition -> its prompts) of those that differ from the main sampling in their prompts only."""
    return {
        condition["name"]: condition["prompts"]
        for condition in protocol.get("also", [])
        if condition["prompts"] != main_prompts(protocol)
        and all(condition.get(key) is None for key in ("method", "steps", "guidance"))
    }


def one_kind_note(arms: Sequence[str], protocol: Mapping[str, Any], metrics: Collection[str]) -> str:
    """What to say where these arms read other captions and all are scored on one kind of prompt; else ''."""
    if not arms or len(scored_kinds(protocol, metrics)) > 1:
        return ""
    return (
        f"Scored on {kind_words(main_prompts(protocol))} only, though {', '.join(dict.fromkeys(arms))} "
        f"{'reads' if len(set(arms)) == 1 else 'read'} other captions than the baseline: what they lose may be owed to "
        "prompts unlike their captions. Score short prompts too: "
        '--set "evaluation.also=[{name: short, prompts: short}]"'
    )
