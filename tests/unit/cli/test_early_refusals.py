"""Refusals at the start, before a line says that something is trained, sampled or encoded."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from tests.tiny import TINY
from tintype import cli

Shell = Callable[..., tuple[int, str]]
T5 = "text={kind: t5, weights: nowhere/t5}"


@pytest.fixture
def shell(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Shell:
    """Run a command as the console script does; return its exit code and all that it printed."""

    def run(*arguments: object) -> tuple[int, str]:
        monkeypatch.setattr(sys, "argv", ["tintype", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        said = capsys.readouterr()
        return int(ended.value.code or 0), said.out + said.err

    return run


@pytest.fixture
def plan(tmp_path: Path) -> Path:
    (tmp_path / "plan.yaml").write_text(TINY)
    return tmp_path / "plan.yaml"


WRITING: dict[str, list[str]] = {
    "train": ["PLAN"],
    "ablate": ["STUDY"],
    "sample": ["RUN", "a ball"],
    "export": ["RUN", "--to", "tintype"],
    "import": ["RUN"],
    "card": ["RUN"],
    "data import": ["RUN"],
    "data export": ["RUN", "--to", "parquet"],
    "data inspect": ["RUN"],
    "tokenizer train": [],
    "tokenizer save": ["RUN"],
    "tokenizer report": ["pixels"],
    "encoder train": [],
    "bench": [],
}


@pytest.mark.parametrize("name", WRITING)
def test_an_out_below_a_file_is_refused_at_once(name: str, tmp_path: Path, shell: Shell) -> None:
    (tmp_path / "file").write_text("")
    out = tmp_path / "file" / "deep" / "out"
    code, printed = shell(*name.split(), *WRITING[name], "--out", out)
    assert (code, printed) == (
        2,
        f"error: --out {out}: {tmp_path / 'file'} is a file, not a folder; choose another --out\n",
    )


def test_an_out_that_may_not_be_written_is_refused_at_once(
    tmp_path: Path, plan: Path, shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`os.access` is replaced: the superuser may write everywhere."""
    monkeypatch.setattr(os, "access", lambda path, mode: Path(path) != tmp_path)
    code, printed = shell("train", plan, "--out", tmp_path / "a" / "b", "--json")
    assert code == 2 and f"--out {tmp_path / 'a' / 'b'}: this user has no permission to write to {tmp_path}" in printed
    assert "training" not in printed and not (tmp_path / "a").exists()
    document = json.loads(printed[printed.index("{") : printed.rindex("}") + 1])
    assert document["error"]["code"] == 2


def test_training_is_announced_once_its_parts_are_there(
    tmp_path: Path, plan: Path, shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not torch.cuda.is_available():
        code, printed = shell("train", plan, "--out", tmp_path / "run", "--set", "run.device=cuda")
        assert code == 2 and "no CUDA device is available" in printed and "training" not in printed
    monkeypatch.setitem(sys.modules, "transformers", None)  # as if it were not installed
    code, printed = shell("train", plan, "--out", tmp_path / "run", "--set", T5)
    assert code == 2 and "pip install 'tintype[encoders]'" in printed and "training" not in printed
    monkeypatch.undo()
    code, printed = shell("train", plan, "--out", tmp_path / "trained")
    assert code == 0 and "preparing\n" in printed and "training: " in printed


def test_a_study_finds_a_missing_package_before_its_first_run(
    tmp_path: Path, plan: Path, shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    study = tmp_path / "study.yaml"
    study.write_text(f"question: q\nrecipe: {plan}\nseeds: [0]\narms: [{{techniques: [ema]}}]\n")
    monkeypatch.setitem(sys.modules, "transformers", None)
    code, printed = shell("ablate", study, "--out", tmp_path / "out", "--set", f"set=['{T5}']")
    assert code == 2 and "pip install 'tintype[encoders]'" in printed and "runs are done" not in printed
