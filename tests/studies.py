"""Studies whose runs are trained and scored in the tests' own process.

A worker process imports torch and the package, some four seconds of a run that takes half a second. The workers
themselves are tested in tests/unit/study/test_runner.py, tests/end_to_end/test_study.py and tests/fault.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from tintype.evaluation.protocol import Protocol
from tintype.runtime.interrupt import Interrupt
from tintype.study import lab, runner
from tintype.study.lab import StudyOutcome, StudyProgress
from tintype.study.results import StudyResults
from tintype.study.runner import Message, Task
from tintype.study.study import Study


def _run_tasks_here(
    tasks: Sequence[Task], protocol: Protocol, jobs: int, interrupt: Interrupt, on_message: Callable[[Message], None]
) -> dict[tuple[str, int], Message]:
    """Do in one process what `run_tasks` does in `jobs` of them."""
    waiting, last = list(tasks), dict[tuple[str, int], Message]()
    while waiting:
        task = runner.next_task(waiting, [])
        assert task is not None
        waiting.remove(task)
        last[task.key] = runner.run_task(task, protocol, interrupt, on_message)
        on_message(last[task.key])
        runner.note_failure(task, last[task.key])
    return last


@contextmanager
def studies_in_process() -> Iterator[None]:
    """Run the tasks of each study in this process."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lab, "run_tasks", _run_tasks_here)
        yield


def by_command(argv: Sequence[str]) -> StudyProgress:
    """Return the progress of a command line."""
    progress = StudyProgress()
    progress.argv = argv
    return progress


def run_study(study: Study, out: Path, jobs: int, argv: Sequence[str] = ()) -> StudyOutcome:
    """Do in this process what the package's `run_study` does in workers."""
    with studies_in_process():
        return lab.run_study(study, out, jobs, by_command(argv))


def noted(results: StudyResults, *kinds: str) -> str:
    """Return the texts of the notes of these kinds; empty where there are none."""
    return " ".join(note.text for note in results.notes() if note.kind in kinds)
