"""Studies whose runs are written, not trained: for tests of what a study does with the scores of its runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import pytest
from PIL import Image

from tintype.evaluation.protocol import Protocol
from tintype.evaluation.results import EvaluationResult, read_result, result_file, write_misread, write_result
from tintype.metrics.misread import Misread
from tintype.runtime import files
from tintype.runtime.interrupt import Interrupt
from tintype.study import lab
from tintype.study.runner import Message, Task
from tintype.train.record import FAILURES

METRIC = "validation_loss"
_DEVIATIONS = (1.2, -0.4, -1.2, 0.4)
_SPREAD = 0.05


@dataclass
class Writer:
    """Writes a run in place of training it.

    The metric is 1 + the arm's effect + a deviation whose mean over every four seeds is zero, so that an arm's mean is
    off by its effect exactly, at 4, 8, 12 and 16 seeds.
    """

    effects: dict[str, float] = field(default_factory=dict)
    """In deviations of single runs, by the arm's name."""
    failing: set[tuple[str, int]] = field(default_factory=set)
    stop_after: int | None = None
    """Number of runs after which the study is told to stop."""
    begun: list[tuple[str, int]] = field(default_factory=list)
    seconds: float = 1.0

    def value(self, task: Task) -> float:
        """Return a value that depends on the arm and the seed alone, whatever was run before."""
        turned = task.plan.seed + (1 + len(task.arm) % 3) * (task.arm != "baseline")
        return 1.0 + _SPREAD * (self.effects.get(task.arm, 0.0) + _DEVIATIONS[turned % 4])

    def run_tasks(
        self,
        tasks: Sequence[Task],
        protocol: Protocol,
        jobs: int,
        interrupt: Interrupt,
        on_message: Callable[[Message], None],
    ) -> dict[tuple[str, int], Message]:
        last: dict[tuple[str, int], Message] = {}
        for task in tasks:
            if self.stop_after is not None and len(self.begun) >= self.stop_after:
                interrupt.signal = 2
                break
            if not result_file(task.folder, protocol, task.plan.train.steps).exists():
                self.begun.append(task.key)
                self._write(task, protocol)
            last[task.key] = Message(task.key, "failed" if task.key in self.failing else "done", 1.0)
            on_message(last[task.key])
        return last

    def _write(self, task: Task, protocol: Protocol) -> None:
        task.folder.mkdir(parents=True, exist_ok=True)
        if task.key in self.failing:
            files.write_sealed(task.folder / FAILURES["failed"], "it was made to fail", run=task.plan.hash)
            return
        (task.folder / FAILURES["failed"]).unlink(missing_ok=True)
        files.write_sealed(task.folder / files.PLAN, task.plan.to_yaml(), run=task.plan.hash)
        files.write_checked(task.folder / "environment.json", {"parameters": 1})
        file = result_file(task.folder, protocol, task.plan.train.steps)
        file.parent.mkdir(parents=True, exist_ok=True)
        write_result(
            file,
            EvaluationResult(
                metrics={METRIC: self.value(task)},
                errors={},
                encoders={},
                warnings=(),
                seconds=self.seconds,
                plan=task.plan.hash,
                step=task.plan.train.steps,
                weights="raw",
                protocol=protocol,
                protocol_hash=protocol.hash,
                details={},
                samples={},
                real={},
                time_split={},
                previews=(),
            ),
        )


class Drawer(Writer):
    """Writes two images beside the scores of each run, and two of its first step that is scored along training."""

    def _write(self, task: Task, protocol: Protocol) -> None:
        super()._write(task, protocol)
        file = result_file(task.folder, protocol, task.plan.train.steps)
        places = [file.parent / f"preview-{index}.png" for index in range(2)]
        names = [str(place.relative_to(task.folder)) for place in places]
        write_result(file, read_result(file).model_copy(update={"previews": tuple(names)}))
        write_misread(file, ["two words"] * 2, [[Misread(0, 3, "drawn red, asked blue")], []])
        if task.along:
            result = result_file(task.folder, task.along.protocol, task.along.steps[0])
            early = result.parent
            early.mkdir(exist_ok=True)
            write_misread(result, ["two words"] * 2, [[Misread(0, 3, "not drawn")] * 5, []])
            drawn = [early / f"preview-{index}.png" for index in range(2)]
            about = {"step": task.along.steps[0], "protocol": task.along.protocol}
            about |= {"protocol_hash": task.along.protocol.hash}
            about |= {"previews": tuple(str(place.relative_to(task.folder)) for place in drawn)}
            write_result(result, read_result(file).model_copy(update=about))
            places += drawn
        for place in places:
            place.parent.mkdir(exist_ok=True)
            Image.new("RGB", (4, 4)).save(place)


@contextmanager
def written_runs(writer: Writer) -> Iterator[Writer]:
    """Let the writer make the runs of each study."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lab, "run_tasks", writer.run_tasks)
        yield writer
