"""The same seed is the same run to the bit: two runs, and a killed and resumed one, on the CPU and on a GPU.

On a GPU with compiled blocks, and with fused kernels, their graphs and the optimizer of one pass.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests.fault.harness import digest
from tests.offline import NAMES, with_technique
from tests.tiny import tiny_plan
from tintype.runtime.interrupt import Interrupt
from tintype.train.loop import train
from tintype.train.record import RunRecord

ROOT = Path(__file__).parents[2]
ON_GPU = (
    "run.device=cuda", "run.deterministic=true", "precision.compute=bf16", "model.width=64", "model.heads=2",
    "train.steps=12",
)  # fmt: skip
FUSED, COMPILED = (*ON_GPU, "model.kernels=fused"), (*ON_GPU, "model.kernels=plain", "model.compile=true")
KILL = ("step.optimizer", 5)
"""After the save of step 4, and on a GPU after graphs were captured."""
needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
SCRIPT = """
import json, sys, torch
import torch._dynamo  # an optimizer imports it, a second and a half in every child otherwise
from pathlib import Path
torch.set_num_threads(1)
from tests.fault.harness import digest, in_child, kill_and_resume, train_with_cache
from tests.tiny import tiny_plan
settings, techniques, kill = json.loads(sys.argv[2])
plan, root = tiny_plan("run.save=wait", *settings, techniques=techniques), Path(sys.argv[1])
(row,) = kill_and_resume(plan, [tuple(kill)], root)
assert in_child(lambda: train_with_cache(plan, root / "again")) == 0
print(json.dumps(row | {"repeated": digest(root / "again") == digest(root / "whole")}))
"""


def assert_exact(root: Path, settings: tuple[str, ...], techniques: list[str]) -> None:
    """Train twice, and once with a kill. A run that met an inexact operation has an event, and so leftovers."""
    asked = json.dumps([settings, techniques, KILL])
    environment = {**os.environ, "PYTORCH_NVML_BASED_CUDA_CHECK": "1"}  # the parent must not open the GPU: it forks
    environment.pop("TRITON_INTERPRET", None)
    command = [sys.executable, "-c", SCRIPT, str(root), asked]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=environment, check=False)
    assert done.returncode == 0, done.stderr
    row = json.loads(done.stdout)
    assert row["killed"] and row["resumed"] and row["repeated"] and row["identical"] and not row["leftovers"], row


@pytest.mark.slow
def test_a_seed_is_one_run_on_the_cpu(tmp_path: Path) -> None:
    assert_exact(tmp_path / "cpu", ("train.accumulate=2",), ["power-ema", "tread"])


@needs_gpu
@pytest.mark.parametrize(
    "settings", [FUSED, (*FUSED, "train.accumulate=2"), COMPILED], ids=["fused", "two", "compiled"]
)
def test_a_seed_is_one_run_on_a_gpu(settings: tuple[str, ...], tmp_path: Path) -> None:
    assert_exact(tmp_path / "gpu", settings, ["power-ema"])


@needs_gpu
@pytest.mark.parametrize("name", NAMES)
def test_a_seed_is_one_run_with_each_technique_on_a_gpu(name: str, tmp_path: Path) -> None:
    """An operation without an exact form, and its event, are the only excuse; cuBLAS has one."""
    plan = with_technique(name, plan=lambda *own: tiny_plan(*ON_GPU, *own))
    for again in ("a", "b"):
        train(plan, tmp_path / again, Interrupt())
    met = [event["operation"] for event in RunRecord(tmp_path / "a").events if event["event"] == "not-exact"]
    assert not [operation for operation in met if "cuBLAS" in operation]
    assert digest(tmp_path / "a") == digest(tmp_path / "b") or met, name
