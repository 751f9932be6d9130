"""Two machines that share a folder: workers of one study, and one training whose nodes are lost and come back."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.end_to_end.test_study import STUDY, environment, tintype
from tests.fault.crowd import about, did_run
from tests.fault.harness import digest
from tests.fault.promises import Promise
from tests.namespaces import CABLE, Machine, two_machines, why_not
from tests.tiny import TINY
from tintype.runtime.leases import Leases
from tintype.train import checkpoint
from tintype.train.record import RunRecord

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif("TINTYPE_MACHINES" not in os.environ, reason="`make test-machines` runs it"),
]
MOST_S = 240.0


@pytest.fixture
def machines() -> Iterator[tuple[Machine, Machine]]:
    if reason := why_not():
        pytest.skip(reason)
    with two_machines() as made:
        yield made


def start(machine: Machine, *words: str) -> subprocess.Popen[str]:
    """Start a Python module on a machine."""
    env = {**environment(), "GLOO_SOCKET_IFNAME": CABLE}
    command = machine.command([sys.executable, "-m", *words])
    return subprocess.Popen(command, env=env, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)


def end_of(process: subprocess.Popen[str]) -> tuple[int, str]:
    out, _ = process.communicate(timeout=MOST_S)
    return process.returncode, out


def numbers_of(file: Path, out: Path) -> dict[str, Any]:
    runs: Any = about(file, out)["runs"]
    return {name: run["numbers"] for name, run in runs.items()}


@pytest.mark.promise(28)
def test_workers_on_two_machines_end_a_study_as_one_does(
    promise: Promise, machines: tuple[Machine, Machine], tmp_path: Path
) -> None:
    """Run a study by workers in two networks, with process numbers of their own, and compare it with `--jobs 1`."""
    (tmp_path / "plan.yaml").write_text(TINY.replace("steps: 6", "steps: 200"))
    file, out, whole = tmp_path / "study.yaml", tmp_path / "out", tmp_path / "whole"
    text = STUDY.replace("PLAN", str(tmp_path / "plan.yaml"))
    file.write_text(text.replace("[0, 1]", "[0]").replace("[5, 6]", "[5]"))
    assert tintype("ablate", str(file), "--out", str(out), "--prepare").returncode == 0
    workers = [start(machine, "tintype", "work", str(out)) for machine in machines]
    ends = [end_of(worker) for worker in workers]
    assert [code for code, _ in ends] == [0, 0], ends
    assert tintype("ablate", str(file), "--out", str(whole), "--jobs", "1").returncode == 0
    leases, expected = Leases(out / "leases"), numbers_of(file, whole)
    claims = [leases.history(folder.name) for folder in sorted(leases.folder.iterdir())]
    assert {one.host for of_run in claims for one in of_run} == {one.name for one in machines}, "both had runs"
    assert [sum(map(did_run, of_run)) for of_run in claims] == [1] * 3
    for name, found in numbers_of(file, out).items():
        promise.count(found == expected[name], name)


STEPS = 120
SETTINGS = [f"train.steps={STEPS}", "run.save_every_steps=10", "run.watchdog.floor_minutes=0.1"]


def training(machines: tuple[Machine, Machine], plan: Path, out: Path) -> list[subprocess.Popen[str]]:
    """Start `torchrun --nnodes 2` on both machines, one rank each."""
    address = ["--master-addr", machines[0].address, "--master-port", "29513"]
    sets = [word for one in SETTINGS for word in ("--set", one)]
    command = ["-m", "tintype", "train", str(plan), "--out", str(out), *sets]
    return [
        start(
            machine,
            *("torch.distributed.run", "--nnodes", "2", "--node-rank", str(rank), *address),
            *("--nproc-per-node", "1", *command),
        )
        for rank, machine in enumerate(machines)
    ]


def losses_of(folder: Path) -> list[float]:
    return [line["loss"] for line in RunRecord(folder).lines]


@pytest.mark.promise(15)
def test_a_training_on_two_machines_is_that_of_one_and_survives_the_loss_of_either(
    promise: Promise, machines: tuple[Machine, Machine], tmp_path: Path
) -> None:
    """Pull the cable of one of two machines and end its processes: the other ends too, and both resume exactly.

    The losses are those of one process but for rounding, and those of two machines that nothing happened to exactly.
    """
    plan = tmp_path / "plan.yaml"
    plan.write_text(TINY)
    sets = [word for one in SETTINGS for word in ("--set", one)]
    alone = tintype("train", str(plan), "--out", str(tmp_path / "alone"), *sets)
    assert alone.returncode == 0, alone.stderr
    ends = [end_of(one) for one in training(machines, plan, tmp_path / "whole")]
    assert [code for code, _ in ends] == [0, 0], ends
    assert losses_of(tmp_path / "whole") == pytest.approx(losses_of(tmp_path / "alone"), rel=1e-4)
    for lost in (1, 0):
        nodes = training(machines, plan, tmp_path / "out")
        lose(machines[lost], nodes[lost], tmp_path / "out")
        code, said = end_of(nodes[1 - lost])
        promise.count(code != 0, said)
        machines[lost].connect(True)
    assert len(losses_of(tmp_path / "out")) < STEPS
    ends = [end_of(one) for one in training(machines, plan, tmp_path / "out")]
    assert [code for code, _ in ends] == [0, 0], ends
    promise.count(digest(tmp_path / "out") == digest(tmp_path / "whole"), "resumed")


def lose(machine: Machine, node: subprocess.Popen[str], out: Path) -> None:
    """Take a machine away once the run has got further."""
    before = max(checkpoint.steps(out / "checkpoints"), default=0)
    until_s = time.monotonic() + MOST_S
    while max(checkpoint.steps(out / "checkpoints"), default=0) < before + 20:
        assert time.monotonic() < until_s and node.poll() is None, node.communicate()
        time.sleep(0.05)
    machine.connect(False)
    node.send_signal(signal.SIGKILL)
    node.communicate()
