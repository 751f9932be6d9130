"""Which prompts a study of captions is scored on.

A model does best on prompts like the captions that it was trained on. PRX trained an arm on short captions and scored
it on long prompts only, so that its loss is the captions' and that of the unlike prompts in one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tintype.evaluation.prompts import CAPTIONS

_MAIN = "long"


def reads_other_captions(changed: Iterable[str]) -> bool:
    """Whether an arm that changes these keys is trained on other captions; how many are dropped does not count."""
    return any(key.startswith("captions.") and key != "captions.dropout" for key in changed)


def kind_words(prompts: str) -> str:
    return f"{prompts} prompts" if prompts in CAPTIONS else f"prompts of {Path(prompts).name}"


def prompt_kinds(protocol: Mapping[str, Any]) -> list[str]:
    """What a protocol, as plain data, asks models for; that of the main sampling first."""
    return list(dict.fromkeys([_MAIN, *(condition["prompts"] for condition in protocol.get("also", []))]))


def comparable_conditions(protocol: Mapping[str, Any]) -> dict[str, str]:
    """(condition -> its prompts) of those that differ from the main sampling in their prompts only."""
    return {
        condition["name"]: condition["prompts"]
        for condition in protocol.get("also", [])
        if condition["prompts"] != _MAIN and all(condition.get(key) is None for key in ("method", "steps", "guidance"))
    }


def one_kind_note(arms: Sequence[str], protocol: Mapping[str, Any]) -> str:
    """What to say where these arms read other captions and all are asked for one kind of prompt; else ''."""
    kinds = prompt_kinds(protocol)
    if not arms or len(kinds) > 1:
        return ""
    return (
        f"Scored on {kind_words(kinds[0])} only, though {', '.join(dict.fromkeys(arms))} "
        f"{'reads' if len(set(arms)) == 1 else 'read'} other captions than the baseline: what they lose may be owed to "
        "prompts unlike their captions. Score short prompts too: evaluation.also=[{name: short, prompts: short}]"
    )
