"""Every setting has a description and every command a help: the reference of the docs is made of them."""

from __future__ import annotations

import pytest

from tests.commands import COMMANDS
from tests.plan_fields import fields
from tintype.plan import Plan
from tintype.settings import Settings
from tintype.study.settings import StudySettings
from tintype.techniques import TECHNIQUES

DOCUMENTS: tuple[type[Settings], ...] = (Plan, StudySettings)


def undescribed(document: type[Settings]) -> set[str]:
    owners = {owner for _, _, owner in fields(document)}
    return {
        f"{owner.__name__}.{name}"
        for owner in owners
        for name, field in owner.model_fields.items()
        if name != "kind" and not (field.description or "").strip()
    }


@pytest.mark.parametrize("document", DOCUMENTS)
def test_every_setting_has_a_description(document: type[Settings]) -> None:
    assert not undescribed(document)


@pytest.mark.parametrize("name", TECHNIQUES)
def test_every_option_of_a_technique_has_a_description(name: str) -> None:
    assert not undescribed(TECHNIQUES[name].options)
    assert TECHNIQUES[name].summary


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_and_option_has_a_help(name: str) -> None:
    assert COMMANDS[name].help
    assert not [parameter.opts for parameter in COMMANDS[name].params if not (parameter.help or parameter.hidden)]


def test_a_setting_without_a_description_is_found() -> None:
    class Bare(Settings):
        steps: int = 1

    assert undescribed(Bare) == {"Bare.steps"}
