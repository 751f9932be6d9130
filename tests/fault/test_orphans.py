"""Processes end with the process that started them, which is killed with SIGKILL: nothing in it can tell them."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.fault.promises import Promise
from tintype.runtime.locks import locked

PACKAGE = Path(__file__).parents[2] / "tintype"
LINUX = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="finds processes in /proc")

PARENT = """
import os, subprocess, sys, time
from tintype.runtime.parent import command_with_parent
child = [sys.executable, "-c", sys.argv[1], str(os.getpid())]
if sys.argv[2] == "command":
    child = command_with_parent(["sleep", "60"])
process = subprocess.Popen(child, stdout=subprocess.PIPE)
if sys.argv[2] != "command":
    process.stdout.readline()
print(process.pid, flush=True)
time.sleep(60)
"""
CHILD = """
import sys, time
from tintype.runtime import parent
{ask}
print("ready", flush=True)
while True:
    time.sleep(60)
"""
WAYS = {
    "by the kernel": "parent.end_with_parent(int(sys.argv[1]))",
    "by a thread where the kernel cannot": "parent._kill_with_parent = lambda: False\n"
    "parent.end_with_parent(int(sys.argv[1]))",
    "by a thread alone": "parent.watch_parent(int(sys.argv[1]))",
    "command": "",
}
BOUND_S = 10.0
"""Twenty times the interval at which a thread checks."""


def orphan_of(ask: str, way: str) -> int:
    """Start a parent with a child, kill the parent, and return the child's id."""
    command = [sys.executable, "-c", PARENT, CHILD.format(ask=ask), way]
    parent = subprocess.Popen(command, stdout=subprocess.PIPE)
    assert parent.stdout
    with parent:
        child = int(parent.stdout.readline())
        if way == "command":  # until it has become the other program
            wait_for(lambda: "sleep" in Path(f"/proc/{child}/cmdline").read_text().split("\0")[0])
        assert alive(child)
        parent.send_signal(signal.SIGKILL)
    return child


def wait_for(happened: object, bound_s: float = BOUND_S) -> bool:
    """Return whether it happened in time."""
    assert callable(happened)
    until = time.monotonic() + bound_s
    while not happened():
        if time.monotonic() > until:
            return False
        time.sleep(0.01)
    return True


def alive(process: int) -> bool:
    """Whether a process runs. One that has ended and that nobody asked about does not."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


@LINUX
@pytest.mark.promise(24)
def test_a_process_ends_with_its_parent(promise: Promise) -> None:
    """SIGKILL a parent whose child waits for the kernel, a thread, or runs a foreign program."""
    for way, ask in WAYS.items():
        child = orphan_of(ask, way)
        promise.count(held=wait_for(lambda child=child: not alive(child)), what=way)


@LINUX
@pytest.mark.promise(24, control="no end with the parent")
def test_without_it_a_process_outlives_its_parent(promise: Promise) -> None:
    """SIGKILL a parent whose child was not told: it lives on."""
    child = orphan_of("", "not told")
    time.sleep(1.0)
    promise.count(held=not alive(child), what="not told")
    os.kill(child, signal.SIGKILL)


RANK = """
import os, sys, time, types
sys.modules["tintype.cli"] = types.ModuleType("tintype.cli")  # before torch is imported
line = f"{os.getpid()}\\n".encode()  # in one write: two ranks share the pipe
sys.modules["tintype.cli"].main = lambda: (os.write(1, line), time.sleep(60))
from tintype.__main__ import main
main()
"""


def orphaned_ranks(tmp_path: Path) -> list[int]:
    """Start two ranks with torchrun, kill it, and return their ids."""
    (tmp_path / "rank.py").write_text(RANK)
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    launcher = subprocess.Popen(
        [*torchrun, str(tmp_path / "rank.py")], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    assert launcher.stdout
    with launcher:
        ranks = [int(launcher.stdout.readline()) for _ in range(2)]
        assert all(map(alive, ranks))
        launcher.send_signal(signal.SIGKILL)
    return ranks


@LINUX
@pytest.mark.promise(24)
def test_ranks_end_with_their_torchrun(promise: Promise, tmp_path: Path) -> None:
    """SIGKILL the torchrun of two ranks."""
    for rank in orphaned_ranks(tmp_path):
        promise.count(held=wait_for(lambda rank=rank: not alive(rank)), what=rank)


HALF = """
import os, signal, sys
from pathlib import Path
from tintype.runtime.files import written_beside
with written_beside(Path(sys.argv[1])) as file:
    file.write_text("half")
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.promise(24)
def test_a_half_written_file_of_a_killed_process_is_removed(tmp_path: Path) -> None:
    """SIGKILL a process that writes a file, then take the folder's lock; what a living process writes stays."""
    written = [sys.executable, "-c", HALF, str(tmp_path / "plan.yaml")]
    assert subprocess.run(written, check=False).returncode == -signal.SIGKILL
    assert len(list(tmp_path.iterdir())) == 1, "the control: somebody has to remove it"
    living = tmp_path / f".result.json.writing-{os.getpid()}"
    living.touch()
    with locked(tmp_path):
        assert {path.name for path in tmp_path.iterdir()} == {".lock", living.name}


def test_a_process_whose_parent_ended_first_ends_at_once() -> None:
    """The parent can end between the start of a process and its first line."""
    for ask in ("parent.end_with_parent(1 + int(sys.argv[1]))", "parent.watch_parent(1 + int(sys.argv[1]))"):
        command = [sys.executable, "-c", CHILD.format(ask=ask), str(os.getpid())]
        assert subprocess.run(command, timeout=30, check=False).returncode == 128 + signal.SIGKILL


def test_every_process_that_the_package_starts_ends_with_it() -> None:
    """Each place that starts processes is known here, with the words by which they end with their parent."""
    starts = re.compile(
        r"\b(subprocess|context|multiprocessing|os)\.(Popen|run|call|check_\w+|Process|Pool|fork\w*|system|spawn\w+)\("
    )
    files = {file: file.read_text(encoding="utf-8") for file in PACKAGE.rglob("*.py")}
    found = {str(file.relative_to(PACKAGE)) for file, text in files.items() if starts.search(text)}
    words = {
        "data/decoding/processes.py": ("data/decoding/process.py", "watch_parent("),
        "study/supervisor.py": ("study/supervisor.py", "end_with_parent(parent)"),
        "study/launch/launcher.py": ("study/launch/launcher.py", "subprocess.run(command_with_parent("),
        "study/launch/ray.py": ("study/launch/ray.py", "subprocess.Popen(command_with_parent("),
        "study/ranks.py": ("study/ranks.py", "subprocess.Popen(command_with_parent("),
        "runtime/mps.py": ("runtime/mps.py", "command_with_parent([control"),
        "runtime/machine.py": ("runtime/machine.py", "subprocess.run(command_with_parent("),
        "pretrained/weights.py": ("pretrained/weights.py", "command_with_parent(command)"),
    }
    assert found == set(words)
    for file, word in words.values():
        assert word in files[PACKAGE / file]
