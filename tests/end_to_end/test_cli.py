"""The command line as a user sees it: help, listings, messages for mistakes, signals."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tests.end_to_end.test_study import ask, environment, tintype
from tests.tiny import TINY
from tests.tiny_vae import write_tiny_vae
from tintype import cli
from tintype.data.scenes.render import render
from tintype.data.scenes.scene import draw_batch
from tintype.errors import UserError
from tintype.runtime.files import read_lines
from tintype.sampling.sample import save_png
from tintype.techniques import TECHNIQUES

runner = CliRunner()


def test_techniques_are_listed() -> None:
    rows = json.loads(ask("techniques", "--json"))
    assert [row["name"] for row in rows] == list(TECHNIQUES)
    assert all(row["seam"] and row["summary"] for row in rows)
    assert all(name in ask("techniques") for name in TECHNIQUES)


def test_plans_are_shown_compared_and_described() -> None:
    shown = ask("plan", "show", "pocket", "--set", "optimizer.lr=2e-4", "--technique", "ema:decay=0.9")
    assert "lr: 0.0002" in shown and "decay: 0.9" in shown and shown.startswith("# hash: ")
    assert "data.size_px: 16 -> 64" in ask("plan", "diff", "pocket", "mini")
    assert "no difference" in ask("plan", "diff", "pocket", "pocket")
    assert json.loads(ask("plan", "schema"))["title"] == "Plan"


def test_two_sets_of_pictures_are_scored_without_a_run(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        for index, image in enumerate(render(draw_batch(0, range(10), "eval"), 16, ord(name), range(10))):
            save_png(image, tmp_path / name / f"{index}.png")
    both = ["--images", str(tmp_path / "a"), "--reference", str(tmp_path / "b"), "--set", "encoders=[scenes]"]
    shown = " ".join(ask("evaluate", *both).split())
    assert "10 against 10 images" in shown and "coverage (scenes)" in shown and "note: " in shown
    result = json.loads(ask("evaluate", *both, "--json"))
    assert result["encoders"]["scenes"]["identity"][:12] in shown and len(result["metrics"]) == 10


def test_a_dry_run_shows_the_arms() -> None:
    shown = ask("ablate", "pocket", "--out", "unused", "--dry-run")
    assert "captions.column: long → short" in shown and "nothing (other seeds)" in shown
    assert not Path("unused").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["train", "poket", "--out", "x"], "unknown recipe 'poket'"),
        (["train", "pocket", "--out", "x", "--set", "optimizer.lrr=1"], "did you mean 'lr'"),
        (["train", "pocket", "--out", "x", "--set", "train.steps=soon"], "train.steps"),
        (["train", "pocket", "--out", "x", "--technique", "emma"], "did you mean 'ema'"),
        (["train", "pocket", "--out", "x", "--set", "data.size_px=18"], "must be a multiple of 4"),
        (["train", "pocket", "--out", "x", "--set", "captions.column=tiny"], "no caption column 'tiny'"),
        (["train", "pocket", "--out", "x", "--set", "run.device=tpuu"], "is not a valid device"),
        (["train", "pocket", "--out", "x", "--set", "run.device=cuda:7"], "CUDA"),
        (["tokenizer", "cache", "pocket"], "'pixels' has no latents to cache"),
        (["ablate", "poket", "--out", "x"], "unknown study 'poket'"),
        (["ablate", "pocket", "--out", "x", "--arm", "emma"], "unknown arm 'emma'"),
        (["evaluate", "nowhere"], "is not a run"),
        (["evaluate"], "give the folder of a run, or --images A --reference B"),
        (["evaluate", "--images", "nowhere"], "give the folder of a run, or --images A --reference B"),
        (["evaluate", "--images", "nowhere", "--reference", "x"], "nowhere does not exist"),
        (["evaluate", "--images", ".", "--reference", "."], "contains no image files"),
        (["evaluate", "--images", ".", "--reference", ".", "--set", "encoders=[incepton]"], "did you mean 'inception'"),
        (
            ["evaluate", "--images", ".", "--reference", ".", "--set", "metrics=[fid]"],
            "unknown metric 'fid'",
        ),
        (["power", "nowhere"], "no studies found"),
        (["power", "--effect", "0%"], "--effect 0%"),
        (["sample", "nowhere", "a ball"], "is not a run"),
        (["report", "nowhere"], "is not a study"),
    ],
)
def test_mistakes_get_a_message_that_names_the_thing(
    arguments: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    result = runner.invoke(cli.app, arguments)
    assert isinstance(result.exception, UserError)
    assert message in str(result.exception)
    assert not list(tmp_path.glob("x/**/*.safetensors"))


def test_a_mistake_exits_with_two_and_no_traceback() -> None:
    done = tintype("train", "poket", "--out", "x")
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1].startswith("error: unknown recipe 'poket'; did you mean 'pocket'?")
    assert "Traceback" not in done.stderr


def test_a_full_disk_is_a_message_too(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def full() -> None:
        raise OSError(28, "No space left on device", "some/file")

    monkeypatch.setattr(cli, "app", full)
    with pytest.raises(SystemExit) as left:
        cli.main()
    assert left.value.code == 2
    assert "No space left on device (some/file)" in capsys.readouterr().err


@pytest.mark.slow
def test_latents_are_cached_by_a_command_that_can_be_stopped(tmp_path: Path) -> None:
    vae, plan, cache = write_tiny_vae(tmp_path / "vae", width=32), tmp_path / "plan.yaml", tmp_path / "cache"
    plan.write_text(TINY.replace("count: 24", "count: 3000"))
    command = ["tokenizer", "cache", str(plan), "--technique", f"tokenizer:to.kind=small-vae,to.folder={vae}"]
    env = {**environment(), "TINTYPE_CACHE": str(cache)}
    process = subprocess.Popen(
        [sys.executable, "-m", "tintype", *command],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=env,
    )
    deadline = time.monotonic() + 300
    while not list(cache.glob("latents/*/latents.rows")) and time.monotonic() < deadline:
        time.sleep(0.02)
    time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    stdout, stderr = process.communicate(timeout=300)
    assert process.returncode == 130, stderr
    assert "of 3,000 images" in stdout and "images are cached; run the same command to resume" in stderr
    done = subprocess.run(
        [sys.executable, "-m", "tintype", *command, "--verify"], capture_output=True, text=True, check=False, env=env
    )
    assert done.returncode == 0, done.stderr
    (folder,) = (cache / "latents").iterdir()
    assert f"{folder}: 3,000 images, 0.00084 GB; " in done.stdout and "0 images had changed" in done.stdout
    assert " images/s" in done.stdout


@pytest.mark.parametrize("number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.slow)])
def test_a_signal_saves_and_exits_and_the_run_goes_on(number: signal.Signals, tmp_path: Path) -> None:
    plan = tmp_path / "plan.yaml"
    plan.write_text(
        TINY.replace("steps: 6", "steps: 100000").replace("save_every_steps: 2", "save_every_steps: 100000")
    )
    out = tmp_path / "run"
    command = [sys.executable, "-m", "tintype", "train", str(plan), "--out", str(out)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment())
    deadline = time.monotonic() + 300
    while not read_lines(out / "metrics.jsonl") and time.monotonic() < deadline:
        time.sleep(0.02)
    process.send_signal(number)
    _, stderr = process.communicate(timeout=300)
    assert process.returncode == 128 + number, stderr
    assert stderr.splitlines()[-1].startswith("interrupted: saved at step")
    assert len(list((out / "checkpoints").glob("step-*"))) == 1


def test_one_seed_runs_as_a_sketch(tmp_path: Path) -> None:
    plan = tmp_path / "plan.yaml"
    plan.write_text(TINY.replace("steps: 6", "steps: 2"))
    file = tmp_path / "sketch.yaml"
    file.write_text(
        f"question: q\nrecipe: {plan}\nseeds: [3]\narms: [{{techniques: [ema]}}]\n"
        "evaluation: {count: 8, also: [], reference_count: 8, validation_count: 2, sampler: {steps: 1}}\n"
    )
    shown = ask("ablate", str(file), "--out", str(tmp_path / "out"))
    assert "Sketch: one seed" in shown and "sketch" in (tmp_path / "out" / "report.html").read_text().lower()
