"""The real launcher: `torchrun` starts two processes of one command."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.end_to_end.test_study import environment
from tests.tiny import tiny_plan
from tintype.runtime.interrupt import Interrupt
from tintype.sampling.generate import SamplerSettings
from tintype.sampling.sample import sample_run
from tintype.train import checkpoint
from tintype.train.loop import train

PROMPTS = ["a red ball", "a blue ring"]
SAMPLING = [*PROMPTS, "--count", "3", "--batch", "2", "--steps", "2"]
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]

ONE_RANK_FAILS = """
from tintype import cli
from tintype.errors import UserError
from tintype.runtime.dist import current
from tintype.sampling import sample

real = sample.generate

def generate(*args, **more):
    if current().rank == 1:
        raise UserError("the disk of this rank is full")
    return real(*args, **more)

sample.generate = generate
cli.main()
"""


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("torchrun") / "run"
    train(tiny_plan(), folder, Interrupt())
    return folder


def launch(*command: str) -> subprocess.CompletedProcess[str]:
    asked = [*TORCHRUN, *command]
    return subprocess.run(asked, capture_output=True, text=True, check=False, env=environment(), timeout=300)


@pytest.mark.slow
def test_two_processes_sample_what_one_does(run: Path, tmp_path: Path) -> None:
    ended = launch("-m", "tintype", "sample", str(run), *SAMPLING, "--out", str(tmp_path / "two"))
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout == f"images: 6, all on {tmp_path / 'two' / 'contact-sheet.png'}\n", "one rank talks"
    settings = SamplerSettings(steps=2, batch=2)
    for path in sample_run(run, PROMPTS, None, tmp_path / "one", settings, count=3, seed=0, size_px=None):
        assert path.read_bytes() == (tmp_path / "two" / path.name).read_bytes()


@pytest.mark.slow
def test_two_processes_train_are_stopped_and_go_on(tmp_path: Path) -> None:
    """A signal to torchrun saves on all ranks; the same command goes on, and there is one line for each step."""
    plan, out, steps = tmp_path / "plan.yaml", tmp_path / "run", 300
    plan.write_text(tiny_plan(f"train.steps={steps}", "run.distribution.kind=fsdp", techniques=["muon"]).to_yaml())
    command = ["-m", "tintype", "train", str(plan), "--out", str(out)]
    going = subprocess.Popen(
        [*TORCHRUN, *command], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment()
    )
    deadline = time.monotonic() + 300
    while not list(out.glob("checkpoints/step-*")) and time.monotonic() < deadline:
        time.sleep(0.1)
    going.send_signal(signal.SIGTERM)
    _, said = going.communicate(timeout=300)
    stopped = checkpoint.steps(out / "checkpoints")[-1]
    assert f"interrupted: saved at step {stopped}" in said and said.count("interrupted:") == 1 and stopped < steps
    ended = launch(*command)
    assert ended.returncode == 0, ended.stderr
    first, second = ended.stdout.splitlines()
    assert first.startswith(f"trained {steps} steps in {out}: final loss ") and second.startswith("next: ")
    lines = (out / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["step"] for line in lines] == list(range(1, steps + 1))


@pytest.mark.slow
def test_a_mistake_of_one_rank_is_told_once_and_ends_all(run: Path, tmp_path: Path) -> None:
    script = tmp_path / "fails.py"
    script.write_text(ONE_RANK_FAILS)
    ended = launch(str(script), "sample", str(run), *SAMPLING, "--out", str(tmp_path / "out"))
    assert ended.returncode == 1, "as torchrun ends when a rank failed"
    assert ended.stderr.count("error: ") == ended.stderr.count("error: rank 1: the disk of this rank is full") == 1
    assert "exitcode  : 2" in ended.stderr and "closed" not in ended.stderr, "rank 0 adds nothing"
    assert not ended.stdout
