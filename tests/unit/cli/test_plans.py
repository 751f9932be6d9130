"""Lists of recipes and studies, and what shells complete."""

from __future__ import annotations

import json
import subprocess
import sys
from functools import lru_cache
from typing import Any

import pytest
from typer.testing import CliRunner

from tests.unit.cli.test_help import ALL
from tintype.cli import app, complete
from tintype.cli.shared import console
from tintype.recipes import packaged
from tintype.techniques import TECHNIQUES

LISTS = {"recipes": packaged.names("plans"), "studies": packaged.names("studies"), "techniques": list(TECHNIQUES)}


@lru_cache
def rows(command: str) -> dict[str, dict[str, Any]]:
    return {row["name"]: row for row in json.loads(CliRunner().invoke(app, [command, "--json"]).output)}


@pytest.mark.parametrize(("command", "names"), LISTS.items(), ids=LISTS)
def test_lists_name_everything(command: str, names: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(console, "_width", 200)
    shown = CliRunner().invoke(app, [command]).output
    assert list(rows(command)) == names
    for name, row in rows(command).items():
        words = row.get("question") or row.get("summary") or row["description"].partition(":")[0]
        assert name in shown and words in shown


def test_lists_say_how_large_a_recipe_and_a_study_is() -> None:
    plans, studies = rows("recipes"), rows("studies")
    assert plans["prx-jit-1024"]["size_px"] == 1024 and plans["prx-jit-1024"]["device"] == "GPU"
    assert plans["pocket"]["description"].startswith("A model that learns on two CPU cores in half a minute: 16 px")
    sizes = {"device": "CPU", "size_px": 16, "denoiser_parameters": 567_888, "steps": 600, "batch": 32}
    assert plans["pocket"].items() >= sizes.items()
    assert (studies["pocket"]["runs"], studies["pocket"]["arms"][2:]) == (12, ["short-captions", "x-prediction"])


def beginning(letter: str) -> list[str]:
    return [name for name in packaged.names("plans") if name.startswith(letter)]


def completed(words: str) -> list[str]:
    """Return the completions of the last word."""
    given = {"_TINTYPE_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": str(len(words.split()) - 1)}
    return CliRunner().invoke(app, [], prog_name="tintype", env=given).output.split()


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        *(
            (f"tintype {words}", beginning("m"))
            for words in ("train m", "tokenizer cache m", "audit m", "bench --recipe m")
        ),
        *((f"tintype plan {words}", beginning("p")) for words in ("show p", "diff mini p")),
        ("tintype ablate routing", ["routing", "routing-mini"]),
        ("tintype train pocket --technique x", ["x-prediction"]),
        ("tintype bench --technique fp", ["fp32", "fp8"]),
        ("tintype reci", ["recipes"]),
    ],
)
def test_shells_complete_recipes_studies_and_techniques(words: str, offered: list[str]) -> None:
    assert completed(words) == offered


def test_every_technique_and_every_option_for_them_is_completed() -> None:
    assert [name for name, _ in complete.technique_names("")] == sorted(TECHNIQUES)
    assert all(words and len(words) <= 80 for _, words in complete.technique_names(""))
    for path, command in ALL.items():
        for one in command.params:
            if one.name in ("technique", "recipe"):
                assert one._custom_shell_complete is not None, path


def test_completion_does_not_wait_for_torch() -> None:
    code = (
        "import sys; from tintype.cli import complete as c; "
        "assert c.technique_names('') and c.recipe_names('') and c.study_names(''); assert 'torch' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
