"""The two commands, as a user gives them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tintype import cli
from tintype.errors import UserError
from tintype.tokenizer_lab import report, training

TINY = (
    *("size_px=16", "vae.width=8", "vae.blocks=1", "vae.stride_px=4", "vae.channels=2", "scenes.count=8"),
    *("scenes.style=render", "held_out=4", "steps=3", "batch=4"),
)


def ask(*arguments: str, sets: tuple[str, ...] = ()) -> str:
    options = [word for one in sets for word in ("--set", one)]
    result = CliRunner().invoke(cli.app, [*arguments, *options, "--device", "cpu"], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return " ".join(result.output.split())


def test_train_then_report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(report, "at_hand", lambda known: False)
    vae, out = str(tmp_path / "vae"), str(tmp_path / "out")
    said = ask("tokenizer", "train", "--out", vae, sets=TINY)
    assert "trained 3 steps; PSNR" in said
    assert "dB on 4 held-out images" in said
    assert "was trained before" in ask("tokenizer", "train", "--data", "scenes", "--out", vae, sets=TINY)
    said = ask("tokenizer", "report", "pixels", vae, "--out", out, sets=("size_px=16", "count=4", "shown=1"))
    assert "left out: lpips" in said
    assert [row["name"] for row in json.loads((tmp_path / "out" / "results.json").read_text())["tokenizers"]] == [
        "pixels",
        "vae",
    ]
    assert (tmp_path / "out" / "report.html").exists()


def test_a_stopped_training_says_how_to_resume(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stopped = training.Outcome(7, None)
    monkeypatch.setattr(training, "train_tokenizer", lambda *arguments: stopped)
    result = CliRunner().invoke(cli.app, ["tokenizer", "train", "--out", str(tmp_path)])
    assert result.exit_code == 128  # and the signal's number, where one came
    assert "interrupted: saved at step 7; run the same command to resume" in result.stderr


def test_mistakes_are_the_users_to_mend(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="does not exist"):
        ask("tokenizer", "train", "--data", str(tmp_path / "none"), "--out", str(tmp_path / "out"), sets=TINY)
    with pytest.raises(UserError, match=r"--set vae\.chanels=2: vae\.chanels: unknown key; did you mean 'channels'"):
        ask("tokenizer", "train", "--out", str(tmp_path / "out"), sets=("vae.chanels=2",))
