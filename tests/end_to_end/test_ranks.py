"""The real launcher: `torchrun` starts two processes of one command."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.end_to_end.test_study import environment
from tests.tiny import tiny_plan
from tintype.generate import SamplerSettings
from tintype.sample import sample_run
from tintype.train.interrupt import Interrupt
from tintype.train.loop import train

PROMPTS = ["a red ball", "a blue ring"]
SAMPLING = [*PROMPTS, "--count", "3", "--batch", "2", "--steps", "2"]
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]

ONE_RANK_FAILS = """
from tintype import cli, sample
from tintype.errors import UserError
from tintype.world import current

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
    return subprocess.run(asked, capture_output=True, text=True, check=False, env=environment(), timeout=120)


def test_two_processes_sample_what_one_does(run: Path, tmp_path: Path) -> None:
    ended = launch("-m", "tintype", "sample", str(run), *SAMPLING, "--out", str(tmp_path / "two"))
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout == f"images: 6, all on {tmp_path / 'two' / 'contact-sheet.png'}\n", "one rank talks"
    settings = SamplerSettings(steps=2, batch=2)
    for path in sample_run(run, PROMPTS, None, tmp_path / "one", settings, count=3, seed=0, size_px=None):
        assert path.read_bytes() == (tmp_path / "two" / path.name).read_bytes()


def test_a_mistake_of_one_rank_is_told_once_and_ends_all(run: Path, tmp_path: Path) -> None:
    script = tmp_path / "fails.py"
    script.write_text(ONE_RANK_FAILS)
    ended = launch(str(script), "sample", str(run), *SAMPLING, "--out", str(tmp_path / "out"))
    assert ended.returncode == 1, "as torchrun ends when a rank failed"
    assert ended.stderr.count("error: ") == ended.stderr.count("error: rank 1: the disk of this rank is full") == 1
    assert "exitcode  : 2" in ended.stderr and "closed" not in ended.stderr, "rank 0 adds nothing"
    assert not ended.stdout
