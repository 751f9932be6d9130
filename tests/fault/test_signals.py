"""SIGINT and SIGTERM end every command in every phase with one line and its code; what had begun is saved."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.commands import COMMANDS
from tests.fault.promises import Promise
from tests.fault.stops import PHASES
from tests.tiny import TINY
from tintype.train import checkpoint

ROOT = Path(__file__).parents[2]
STOPS = """
import sys, json, torch
import torch._dynamo  # an optimizer imports it
from pathlib import Path
torch.set_num_threads(1)
from tests.fault.stops import main
main(Path(sys.argv[1]), json.loads(sys.argv[2]))
"""


def environment() -> dict[str, str]:
    return {**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "140"}


@pytest.fixture(scope="module")
def stopped(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """The outcome of a signal in each phase, or some of them; last that without handlers."""
    chosen = Promise(request.config.getoption("--faults") == "full").choose(range(len(PHASES)), short=6)
    command = [sys.executable, "-c", STOPS, str(tmp_path_factory.mktemp("stops")), json.dumps(chosen)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=environment(), check=False)
    assert done.returncode == 0, done.stderr
    rows: list[dict[str, Any]] = json.loads(done.stdout)
    return rows


@pytest.mark.slow
@pytest.mark.promise(3)
def test_sigterm_saves_and_exits_in_every_phase_and_the_command_resumes(
    promise: Promise, stopped: list[dict[str, Any]]
) -> None:
    """SIGTERM at start-up, data, backward, optimizer, log, each stage of a save, and evaluation; some of them twice."""
    for row in stopped[:-1]:
        promise.count(row["held"], row)


@pytest.mark.slow
@pytest.mark.promise(3, control="signals are not handled")
def test_control_without_handlers_nothing_is_saved(promise: Promise, stopped: list[dict[str, Any]]) -> None:
    """SIGTERM to a training that leaves it to the system."""
    assert stopped[-1]["code"] == -signal.SIGTERM
    promise.count(stopped[-1]["held"], stopped[-1])


AT_IMPORT = """
import os, signal, sys

left, number = int(sys.argv[1]), int(sys.argv[2])
del sys.argv[1:3]

class Count:
    def find_spec(self, name, path=None, target=None):
        global left
        left -= 1
        if left == 0:
            os.kill(os.getpid(), number)

sys.argv[0] = "tintype"
from tintype.runtime import signals
from tintype.__main__ import main
sys.meta_path.insert(0, Count())
PREPARE
main()
"""
"""The command, with a signal at the import of a module; of how many, the first argument says."""
IMPORTS = (1, 60, 250, 600, 1200, 1800)
"""Torch begins at about the 300th, the commands' own modules near the 1,500th."""
WORK = {
    "train": ["PLAN", "--out", "OUT"],
    "ablate": ["STUDY", "--out", "OUT"],
    "evaluate": ["--images", "IMAGES", "--reference", "IMAGES"],
}
"""Arguments of commands that then work; the others are given names of nothing."""


def words_of(name: str, folder: Path) -> list[str]:
    """A command line with all that it needs."""
    places = {"PLAN": "plan.yaml", "STUDY": "study.yaml", "IMAGES": "images", "OUT": "out"}
    if name in WORK:
        return [*name.split(), *(str(folder / places[one]) if one in places else one for one in WORK[name])]
    needed = [one for one in COMMANDS[name].params if one.required]
    words = [str(folder / "nothing") for one in needed if one.param_type_name == "argument"]
    words += [word for one in needed if one.param_type_name == "option" for word in (one.opts[0], str(folder / "out"))]
    return [*name.split(), *words]


def early(name: str, at: int, number: int, folder: Path, prepare: str = "") -> tuple[int, str]:
    """Run a command that gets a signal at an import; return its exit code and what it said."""
    code = AT_IMPORT.replace("PREPARE", prepare)
    done = subprocess.run(
        [sys.executable, "-c", code, str(at), str(number), *words_of(name, folder)],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env=environment(),
        check=False,
        timeout=120,
    )
    return done.returncode, done.stderr


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "plan.yaml").write_text(TINY)
    text = f"question: q\nrecipe: {tmp_path / 'plan.yaml'}\nseeds: [0]\narms: [{{techniques: [ema]}}]\n"
    (tmp_path / "study.yaml").write_text(text)
    (tmp_path / "images").mkdir()
    return tmp_path


@pytest.mark.promise(3)
def test_a_signal_at_start_up_ends_every_command_with_one_line(promise: Promise, folder: Path) -> None:
    """SIGINT or SIGTERM while modules are imported, in every command that the command line lists."""
    cases = [(name, at) for name in COMMANDS for at in IMPORTS]
    for index, (name, at) in enumerate(promise.choose(cases, short=4)):
        number = (signal.SIGINT, signal.SIGTERM)[index % 2]
        code, said = early(name, at, number, folder)
        if "interrupted" not in said and "Traceback" not in said and code in (0, 1, 2):
            continue  # it had ended before so many imports
        one_line = said.count("interrupted: ") == 1 and said.splitlines()[-1].startswith("interrupted: ")
        promise.count(code == 128 + number and one_line and "Traceback" not in said, f"{name} {at} {number}: {said}")
    assert promise.tries > 1


@pytest.mark.promise(3, control="signals are not handled")
def test_control_without_handlers_an_early_signal_is_a_traceback(promise: Promise, folder: Path) -> None:
    """SIGINT at an import of a command that leaves it to Python."""
    usual = "signal.signal(signal.SIGINT, signal.default_int_handler)"  # a shell's background job ignores it
    off = f"{usual}; import tintype.__main__ as program; program.handle_signals = lambda *_: None"
    for at in IMPORTS[:3]:  # some module may drop the exception, and the command line handles signals itself
        _, said = early("techniques", at, signal.SIGINT, folder, off)
        promise.count("Traceback" not in said, said)


AT_THE_END = """
import atexit, os, signal, sys

class Last:
    def __del__(self):
        os.kill(os.getpid(), int(sys.argv[-1]))

last = Last()
from tintype.__main__ import main
sys.argv[1:] = ["--version"]
WHEN
main()
"""


@pytest.mark.promise(3)
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_at_the_very_end_does_not_undo_a_finished_command(promise: Promise, number: int) -> None:
    """A signal while Python waits for threads, and one while it takes its modules down."""
    kill = f"os.kill(os.getpid(), {number})"
    for name, program in {
        "atexit": AT_THE_END.replace("last = Last()", "").replace("WHEN", f"atexit.register(lambda: {kill})"),
        "finalization": AT_THE_END.replace("int(sys.argv[-1])", str(number)).replace("WHEN", ""),
    }.items():
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=ROOT, check=False)
        held = done.returncode == 0 and done.stdout.startswith("tintype ") and not done.stderr
        promise.count(held, f"{name}: {done}")


@pytest.mark.promise(3, control="signals are left to Python at the end")
def test_control_a_signal_at_the_very_end_is_a_failure(promise: Promise) -> None:
    """Send a signal at the very end, without a handler for it."""
    off = "import tintype.__main__ as program; program.ignore_signals = int"  # does nothing
    program = AT_THE_END.replace("int(sys.argv[-1])", str(int(signal.SIGINT))).replace("WHEN", off)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=ROOT, check=False)
    promise.count(done.returncode == 0, done)


STUDY = """
question: q
recipe: PLAN
seeds: [0]
arms: [{techniques: [ema]}]
evaluation: {count: 512, reference_count: 16, validation_count: 4, also: [], sampler: {steps: 50, batch: 4}}
"""
MOMENTS = [
    ("training", signal.SIGINT, "runs/*/metrics.jsonl"),
    ("training", signal.SIGTERM, "runs/*/metrics.jsonl"),
    ("starting", signal.SIGTERM, "study.yaml"),
    ("scoring", signal.SIGTERM, "runs/*/evaluation"),
]
"""Work that is under way when the signal comes, and the file that shows it."""


@pytest.mark.slow
@pytest.mark.promise(3)
def test_a_signal_to_the_whole_group_of_a_study_fails_no_run(promise: Promise, tmp_path: Path) -> None:
    """A signal to a study and all its workers, as a terminal or a scheduler sends it, and another to its rerun."""
    for name, number, sign in promise.choose(MOMENTS, short=1):
        root = tmp_path / f"{name} {number}"
        root.mkdir()
        steps = 4 if name == "scoring" else 90000
        plan = TINY.replace("steps: 6", f"steps: {steps}").replace("save_every_steps: 2", "save_every_steps: 90000")
        (root / "plan.yaml").write_text(plan)
        (root / "study.yaml").write_text(STUDY.replace("PLAN", str(root / "plan.yaml")))
        reached: list[int] = []
        for attempt in range(2 if promise.full and name == "training" else 1):
            done = stop_group(root, sign, number, max(reached, default=0))
            out, failed = root / "out", [file.name for file in (root / "out").glob("runs/*/*.txt")]
            held = done.returncode == 128 + number and not failed and "failed" not in done.stdout
            held &= (done.stderr.splitlines() or [""])[-1].startswith("interrupted: 0 of 2 runs are done")
            held &= "Traceback" not in done.stdout + done.stderr
            reached.append(lines_in(out))
            saved = [checkpoint.steps(one)[-1] for one in out.glob("runs/*/checkpoints") if checkpoint.steps(one)]
            if name == "training":  # what the lines vouch for is saved
                held &= done.stdout.count("interrupted · saved at step") == 2 and sum(saved) == reached[-1] > 0
            promise.count(
                held, f"{name} {number} {attempt}: {done.returncode} {saved} {failed} {done.stdout} {done.stderr}"
            )
        assert reached == sorted(reached), "a rerun resumes"


def lines_in(out: Path) -> int:
    return sum(file.read_text().count("\n") for file in out.glob("runs/*/metrics.jsonl"))


def stop_group(root: Path, sign: str, number: int, before: int) -> subprocess.CompletedProcess[str]:
    """Run a study until the file is there, and of two runs more lines of metrics than before; then signal the group."""
    out = root / "out"
    command = [sys.executable, "-m", "tintype", "ablate", str(root / "study.yaml"), "--out", str(out), "--jobs", "2"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, "env": environment(), "cwd": ROOT}
    process = subprocess.Popen(command, start_new_session=True, **pipes)  # type: ignore[call-overload]
    wanted = 2 if sign.endswith("metrics.jsonl") else 1
    deadline_s = time.monotonic() + 300
    while time.monotonic() < deadline_s:
        if len(list(out.glob(sign))) >= wanted and (wanted == 1 or lines_in(out) > before):
            break
        time.sleep(0.02)
    if sign == "study.yaml":
        time.sleep(0.5)  # the workers are born, and import torch
    os.killpg(process.pid, number)
    stdout, stderr = process.communicate(timeout=300)
    return subprocess.CompletedProcess(command, process.returncode, stdout, stderr)
