"""Every command has `--json`: one document on stdout, of the type of its schema, and an error is a document too.

The documents of commands that take long are validated in tests/unit/terminal/test_commands.py, which runs them all.
"""

from __future__ import annotations

import io
import json
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import redirect_stderr
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from typer.testing import CliRunner

from tests.commands import COMMANDS
from tests.tiny import TINY
from tests.written_runs import Writer, written_runs
from tintype import cli
from tintype.cli.schemas import document_type, schema_of
from tintype.cli.shared import command_names
from tintype.errors import DivergedError, UserError
from tintype.terminal import answers
from tintype.terminal.interrupts import Interrupted

STUDY = """
question: q
recipe: plan.yaml
seeds: [0, 1, 2, 3]
control_seeds: [10, 11, 12, 13]
arms: [{name: fast, set: [optimizer.lr=0.01]}]
primary: [validation_loss]
evaluation: {count: 8, also: [], reference_count: 8, validation_count: 2, metrics: [], sampler: {steps: 1}}
"""


def document(*arguments: str, code: int = 0) -> Any:
    """Return what a command writes, after checking that it is one document of its type."""
    result = CliRunner().invoke(cli.app, [*arguments, "--json"])
    error = result.exception
    found = answers.exit_code(error) if error is not None else 0
    assert found == code, (arguments, result.output, error)
    document = json.loads(result.stdout)
    name = next(name for name in sorted(COMMANDS, key=len, reverse=True) if " ".join(arguments).startswith(name))
    document_type(name).validate_json(result.stdout)
    assert ("error" in document) == (code not in (0, 1)) if isinstance(document, dict) else True
    return document


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with a plan, a run, a study and a store."""
    folder = tmp_path_factory.mktemp("json")
    (folder / "plan.yaml").write_text(TINY.replace("steps: 6", "steps: 2").replace("save_every_steps: 2", "threads: 1"))
    (folder / "study.yaml").write_text(STUDY)
    (folder / "images").mkdir()
    for index in range(4):
        Image.new("RGB", (20, 20), (60 * index, 10, 10)).save(folder / "images" / f"{index}.png")
        (folder / "images" / f"{index}.txt").write_text("a ball")
    before = Path.cwd()
    os.chdir(folder)
    yield folder
    os.chdir(before)


def test_every_command_has_json_and_a_schema() -> None:
    assert set(command_names()) == set(COMMANDS)
    for name, command in COMMANDS.items():
        assert any("--json" in parameter.opts for parameter in command.params), name
        schema = schema_of(name, command_names())
        assert schema["title"] == f"tintype {name} --json"
        assert "ErrorDocument" in schema["$defs"]


@pytest.mark.parametrize("name", COMMANDS)
def test_a_mistake_in_the_command_line_is_a_document(name: str) -> None:
    found = document(*name.split(), "--no-such-option", code=2)
    assert found["error"]["code"] == 2
    assert "--no-such-option" in found["error"]["message"]


def test_documents_of_runs(here: Path) -> None:
    trained = document("train", "plan.yaml", "--out", "run")
    assert (trained["step"], trained["already_done"], trained["folder"]) == (2, False, "run")
    assert document("train", "plan.yaml", "--out", "run")["already_done"]
    images = document("sample", "run", "a red ball", "--steps", "1", "--guidance", "1")["images"]
    assert all(Path(image).is_file() for image in images)
    assert len(images) == 1
    document("train", "plan.yaml", "--out", "other", "--set", "seed=1")
    assert len(document("compare", "run", "other")["runs"]) == 2
    assert document("plan", "show", "run")["plan"]["train"]["steps"] == 2
    assert document("card", "run")["text"].startswith("---")
    assert [one["name"] for one in document("sync", "run", "--list")]


def test_documents_of_studies(here: Path) -> None:
    with written_runs(Writer({"fast": -20.0})):
        assert document("ablate", "study.yaml", "--out", "out", "--dry-run")["cost"]["most"] == 12
        found = document("ablate", "study.yaml", "--out", "out")
        verdicts = {(row["arm"], row["metric"]): row["verdict"] for row in found["verdicts"]}
        assert verdicts["fast", "validation_loss"] == "better"
        assert (found["done"], found["total"], found["failed"]) == (12, 12, [])
        assert document("report", "out")["verdicts"] == found["verdicts"]
        planned = document("replicate", "out", "--seeds", "2", "--dry-run")
        assert [claim["verdict"] for claim in planned["claims"]] == ["better"] and len(planned["seeds"]) == 2
        assert document("replicate", "out", "--seeds", "2")["total"] == 4
        assert document("status", "out")
        assert document("work", "out") == {"folder": "out", "runs": [], "spent": False}
        assert document("power", "out")["groups"]
        proposal = document("propose", "out", "--arm", "next=optimizer.lr=0.02")
        assert proposal["answer"] == "drop"
        assert document("propose", "out") == [proposal]
        failing = Writer(failing={("other", 1)})
    with written_runs(failing):
        found = document("propose", "out", "--arm", "other=optimizer.lr=0.04", code=1)
        assert found["failed"]
        (here / "failing.yaml").write_text(STUDY.replace("fast", "other"))
        found = document("ablate", "failing.yaml", "--out", "failed", code=1)
        assert found["failed"] == ["other, seed 1: failed"]


def test_documents_of_lists_plans_and_stores(here: Path) -> None:
    assert document("recipes")
    assert document("studies")
    assert document("techniques")
    changes = document("plan", "diff", "plan.yaml", "pocket")["changes"]
    assert changes["train.steps"][0] == 2
    assert document("plan", "cost", "plan.yaml")["gpu_hours"] >= 0
    assert document("plan", "schema")["title"] == "Plan"
    assert document("schema", "plan show")["title"] == "tintype plan show --json"
    assert document("schema", "plan shwo", code=2)["error"]["message"].endswith("did you mean 'plan show'?")
    assert [16, 16] in document("data", "shapes", "--size", "16", "--unit", "4")["buckets"]
    assert document("data", "import", "images", "--out", "store")["about"]["counts"]["train"] == 4
    assert sum(document("data", "show", "store")["counts"].values()) == 4
    assert "problems" in document("data", "inspect", "store")
    assert document("data", "export", "store", "--to", "parquet", "--out", "exported-store")["rows"] == 4
    assert document("data", "recaption", "--show-prompt")["text"]


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (UserError("wrong"), 2),
        (DivergedError("diverged"), 3),
        (OSError(28, "no space left"), 2),
        (SystemExit(1), 1),
        (SystemExit(143), 143),
        (Interrupted(signal.SIGINT), 130),
        (Interrupted(signal.SIGTERM), 143),
        (ValueError("a bug"), 1),
    ],
)
def test_a_command_that_ends_early_writes_one_document(
    error: BaseException, code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    assert answers.exit_code(error) == code
    assert code in answers.EXIT_CODES, "docs/agents.md has the table"
    with pytest.raises(type(error)), answers.one_document():
        sys.stdout.write("a line\n")
        raise error
    found = json.loads(capsys.readouterr().out)
    assert found["error"]["code"] == code


def test_a_result_that_was_given_before_an_error_stays(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(UserError), answers.one_document():
        answers.put({"copied": 1})
        raise UserError("one was damaged")
    assert json.loads(capsys.readouterr().out) == {"copied": 1}


def test_a_server_writes_its_address_at_once(capsys: pytest.CaptureFixture[str]) -> None:
    with redirect_stderr(io.StringIO()), answers.one_document():
        answers.put_now({"url": "http://localhost"})
        assert json.loads(capsys.readouterr().out) == {"url": "http://localhost"}
    assert not capsys.readouterr().out


def test_without_json_a_command_prints_as_ever(capsys: pytest.CaptureFixture[str]) -> None:
    answers.put_now({"ignored": 1})
    answers.put([1])
    assert json.loads(capsys.readouterr().out) == [1]
