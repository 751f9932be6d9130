"""CUDA's Multi-Process Service, by a program in its place: started for the workers, named to them, and ended."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

from tintype.runtime import mps
from tintype.runtime.mps import side_by_side

SERVICE = """#!/bin/sh
if [ "$1" = -f ]; then
    echo $$ > {log}
    mkfifo "$CUDA_MPS_PIPE_DIRECTORY/control"
    read word < "$CUDA_MPS_PIPE_DIRECTORY/control"
    echo "$word" >> {log}
else
    cat > "$CUDA_MPS_PIPE_DIRECTORY/control"
fi
"""


@pytest.fixture
def log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Put the program onto the path, and one GPU into the machine; the file has its process and its last word."""
    program = tmp_path / "nvidia-cuda-mps-control"
    program.write_text(SERVICE.format(log=tmp_path / "log"))
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.delenv("CUDA_MPS_PIPE_DIRECTORY", raising=False)
    monkeypatch.delenv(mps.SWITCH, raising=False)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(mps, "_PROBE", "")
    return tmp_path / "log"


def test_workers_find_the_service_and_it_ends_with_them(log: Path) -> None:
    with side_by_side(jobs=2) as used:
        pipes = Path(os.environ["CUDA_MPS_PIPE_DIRECTORY"])
        assert used and (pipes / "control").exists()
        assert os.getsid(int(log.read_text())) != os.getsid(0)  # a signal to the study's group does not reach it
    process, word = log.read_text().splitlines()
    assert word.startswith("quit") and not Path("/proc", process).exists()
    assert "CUDA_MPS_PIPE_DIRECTORY" not in os.environ and not pipes.exists()


def test_workers_take_turns_where_it_does_not_work(
    log: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(mps, "_PROBE", "raise SystemExit('CUDA error 805')")
    with side_by_side(jobs=2) as used:
        assert not used and "CUDA_MPS_PIPE_DIRECTORY" not in os.environ
    assert "CUDA error 805" in caplog.text
    assert not Path("/proc", log.read_text().splitlines()[0]).exists()


@pytest.mark.parametrize(("jobs", "variable"), [(1, None), (2, mps.SWITCH), (2, "CUDA_MPS_PIPE_DIRECTORY")])
def test_it_is_left_alone(log: Path, monkeypatch: pytest.MonkeyPatch, jobs: int, variable: str | None) -> None:
    """One worker has the GPU for itself; a variable switches it off, or names the service of somebody else."""
    if variable is not None:
        monkeypatch.setenv(variable, "0")
    before = dict(os.environ)
    with side_by_side(jobs) as used:
        assert not used and dict(os.environ) == before
    assert not log.exists()
