"""Whether the kernels compile for GPUs, without one: the interpreter takes what no compiler does."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.triton_compiler import CAPABILITIES

pytest.importorskip("triton", reason="Triton is not installed")
ROOT = Path(__file__).parents[4]


@pytest.mark.slow
def test_all_kernels_compile_for_the_oldest_gpu_and_for_the_measured_one(tmp_path: Path) -> None:
    """In a process of its own, in which Triton does not interpret."""
    environment = {**os.environ, "TRITON_CACHE_DIR": str(tmp_path)}
    environment.pop("TRITON_INTERPRET", None)
    command = [sys.executable, "-m", "tests.triton_compiler"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=environment, check=False)
    assert done.returncode == 0, done.stderr
    lines = [line.split() for line in done.stdout.splitlines()]
    assert [int(capability) for capability, *_ in lines] == list(CAPABILITIES)
    everywhere = {
        "_adamw",
        "_attend",
        "_attend_back_keys",
        "_attend_back_queries",
        "_gelu_gate",
        "_gelu_gate_back",
        "_heads",
        "_heads_back",
        "_norm",
        "_norm_back",
    }
    assert all(everywhere <= set(names) for _, _, *names in lines)
    assert {"_quantise", "_transpose"} <= set(lines[-1])
