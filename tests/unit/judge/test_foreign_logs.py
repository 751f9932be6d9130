"""The scripts of docs/how-to/judge-other-trainers.md turn logs of other trainers into tables, which are judged.

The logs have the form that each trainer writes, and made-up numbers.
"""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

import tintype
from tintype.cli import app
from tintype.judge.verdicts import Judgement

PAGE = Path(__file__).parents[3] / "docs" / "how-to" / "judge-other-trainers.md"
TEXT = PAGE.read_text(encoding="utf-8")
NOISE = [0.0, 0.004, -0.003, 0.002, -0.004]
"""Offsets of five seeds."""


def script(name: str) -> str:
    """The Python of the page whose first line names this file."""
    blocks: list[str] = re.findall(r"^```python\n(.*?)^```", TEXT, re.MULTILINE | re.DOTALL)
    (found,) = [block for block in blocks if block.startswith(f"# {name}: python {name} > ")]
    return found


def table_of(folder: Path, name: str) -> Path:
    """Run a script of the page in a folder; return the table that it writes."""
    code = script(name)
    done = subprocess.run([sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, check=True)
    table = folder / code.splitlines()[0].rpartition("> ")[2]
    table.write_text(done.stdout)
    return table


def command(trainer: str) -> list[str]:
    """The arguments of the command in a section of the page."""
    section = TEXT.partition(f"\n## {trainer}\n")[2].partition("\n## ")[0]
    (found,) = re.findall(r"^```sh\ntintype (.*?)\n```", section, re.MULTILINE)
    return shlex.split(found)


def judged(folder: Path, trainer: str, monkeypatch: pytest.MonkeyPatch) -> dict[tuple[str, str], str]:
    """Run the command of a section in a folder; return its verdicts."""
    monkeypatch.chdir(folder)
    result = CliRunner().invoke(app, [*command(trainer), "--json"])
    assert result.exit_code == 0, result.output
    return {(row["arm"], row["metric"]): row["words"] for row in json.loads(result.stdout)["verdicts"]}


def test_nanochat(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lines of `scripts/base_train.py`."""
    (tmp_path / "logs").mkdir()
    for arm, bpb, core in (("adamw", 0.82, 0.21), ("muon", 0.80, 0.211), ("hot_lr", 0.83, 0.2)):
        for seed, offset in enumerate(NOISE):
            last = "nan" if (arm, seed) == ("hot_lr", 4) else f"{bpb + offset:.6f}"
            (tmp_path / "logs" / f"{arm}_seed{seed}.log").write_text(
                "Total training FLOPs estimate: 1.2e+18\n"
                "Step 00000 | Validation bpb: 3.207510\n"
                "step 00000/05000 (0.00%) | loss: 10.397219 | lrm: 1.00 | dt: 812.31ms | tok/sec: 645,413 | "
                "bf16_mfu: 38.21 | epoch: 1 pq: 0 rg: 8 | total time: 0.00m\n"
                f"Step 05000 | Validation bpb: {last}\n"
                f"Step 05000 | CORE metric: {core + 5 * offset:.4f}\n"
                "Peak memory usage: 75422.02MiB\nTotal training time: 68.40m\nMinimum validation bpb: 0.790000\n"
            )
    table = table_of(tmp_path, "nanochat.py")
    assert table.read_text().splitlines()[:2] == ["arm,seed,val_bpb,core", "adamw,0,0.820000,0.2100"]
    verdicts = judged(tmp_path, "nanochat", monkeypatch)
    assert verdicts["muon", "val_bpb"] == "better" and verdicts["hot_lr", "val_bpb"] == "diverged 1 of 5"
    assert verdicts["muon", "core"] == "undecided"


def test_simpletuner(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lines of `simpletuner/helpers/training/local_metrics.py`, which drops values that are not finite."""
    for arm, clip in (("lora", 0.31), ("lycoris", 0.33), ("hot", 0.3)):
        for seed, offset in enumerate(NOISE):
            folder = tmp_path / "output" / f"{arm}-seed{seed}"
            folder.mkdir(parents=True)
            manifest = {"schema_version": 1, "run_name": arm, "status": "completed", "config": {"seed": seed}}
            (folder / "training_metrics.json").write_text(json.dumps(manifest))
            steps: list[dict[str, float]] = [
                {"train_loss": 0.41, "learning_rate": 1e-4, "epoch": 1},
                {"train_loss": 0.4, "loss/val/pooled": 0.38 + offset, "clip/mean": clip + offset, "clip/std": 0.02},
                {"train_loss": 0.39, "learning_rate": 1e-4, "epoch": 2},
            ]
            if (arm, seed) == ("hot", 2):
                steps[-1].pop("train_loss")
            lines = [
                {"schema_version": 1, "timestamp": "2026-08-21T21:30:21+00:00", "step": step, "metrics": metrics}
                for step, metrics in enumerate(steps, 1)
            ]
            (folder / "training_metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    table_of(tmp_path, "simpletuner.py")
    verdicts = judged(tmp_path, "SimpleTuner", monkeypatch)
    assert verdicts == {
        ("hot", "loss/val/pooled"): "diverged 1 of 5",
        ("hot", "clip/mean"): "diverged 1 of 5",
        ("lycoris", "loss/val/pooled"): "same",
        ("lycoris", "clip/mean"): "better",
    }


@pytest.mark.parametrize("colours", [True, False])
def test_torchtitan_output(colours: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lines of `torchtitan/components/metrics.py`, with and without colours."""
    yellow, green, end = ("\x1b[33m", "\x1b[32m", "\x1b[39m") if colours else ("", "", "")
    (tmp_path / "logs").mkdir()
    for arm, loss in (("baseline", 3.4), ("float8", 3.41)):
        for seed, offset in enumerate(NOISE):
            before = "[titan] 2026-08-22 11:32:24,120 - root - INFO - "
            (tmp_path / "logs" / f"{arm}_seed{seed}.log").write_text(
                f"{before}step: 10  loss:  8.12010  grad_norm:  1.2000  memory: 40.12GiB(50.10%)  tps: 7,004\n"
                f"{before}{yellow}validate step: 500  {green}loss:  4.0000  memory: 40.12GiB(50.10%)  tps: 7,004{end}\n"
                f"{before}{yellow}validate step: 1000  {green}loss: {loss + offset:7.4f}  memory: 40.12GiB(50.10%)"
                f"  tps: 7,004{end}\n"
            )
    found = tintype.judge(table_of(tmp_path, "torchtitan.py"))
    assert found["float8"].verdict == "same" and found["float8"].baseline_mean == pytest.approx(3.4, abs=0.001)


def test_torchtitan_on_wandb(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A table of runs as the web page of W&B exports it: quoted, with columns that are no metric."""
    heads = ["Name", "State", "Group", "Created", "debug.seed", "training.steps", "validation_metrics/loss", "mfu(%)"]
    lines = [heads]
    for arm, loss in (("baseline", 3.4), ("float8", 3.3)):
        for seed, offset in enumerate(NOISE):
            run = [f"{arm}-{seed}", "finished", arm, "2026-08-22T11:32:24.000Z", seed, 1000, loss + offset, 41.2]
            lines.append([str(cell) for cell in run])
    text = "\n".join(",".join(f'"{cell}"' for cell in line) for line in lines)
    (tmp_path / "wandb_export.csv").write_text(text)
    assert judged(tmp_path, "torchtitan", monkeypatch) == {("float8", "validation_metrics/loss"): "better"}


def test_the_page_calls_the_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (block,) = re.findall(r"^```python\n(import tintype\n.*?)^```", TEXT, re.MULTILINE | re.DOTALL)
    rows = [
        f"{arm},{seed},{mean + one}" for arm, mean in (("adamw", 0.8), ("muon", 0.7)) for seed, one in enumerate(NOISE)
    ]
    (tmp_path / "runs.csv").write_text("\n".join(["arm,seed,val_bpb", *rows]))
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    exec(block, names)
    assert isinstance(names["found"], Judgement)
