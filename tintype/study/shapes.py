"""Store memory and step time of a plan's shape, measured alone on a GPU, in the study's folder.

A shape includes everything that determines the memory and the time of a step; seeds and learning rates do not.
`OUT/measured/` has one file for each shape and kind of device. Each file is replaced atomically, so any number of
machines can write. If a shape is measured twice, the larger memory peak and the newest step time are stored. A step
time is valid for a run only if all its steps do the same work (`is_steady`).
"""

from __future__ import annotations

import hashlib
import json
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from shlex import quote
from typing import Annotated, Any, Final, TypeVar

import torch
from pydantic import Field, TypeAdapter, ValidationError

from tintype.config.strict import first_problem
from tintype.errors import DamagedFileError, UserError
from tintype.plan import Plan
from tintype.runtime.files import read_checked, write_checked
from tintype.runtime.notes import note_once
from tintype.schedule import Schedule
from tintype.settings import RunSettings, Settings, plain
from tintype.study import results
from tintype.study.study import Study

MEASURED: Final = "measured"
"""The subfolder of a study's folder with the measurements of each shape."""
IN_SHAPE = frozenset(
    {
        "threads",
        "deterministic",
        "save",
        "log_every_steps",
        "ranks",
        "distribution",
        "latents",
        "text_embeddings",
    }
)
"""Housekeeping settings that change the memory or the time of a step."""
_S = TypeVar("_S", bound=Settings)


def shape_of(plan: Plan) -> str:
    """Return the hash of all settings that determine the memory and the time of a plan's steps.

    The hash leaves out seed, initial weights, steps and schedule, and numbers that change no size, such as rates.
    """
    stages = tuple(stage.model_copy(update={"until": number}) for number, stage in enumerate(plan.train.stages, 1))
    train = {"steps": 1, "warmup_steps": 0, "schedule": "constant", "most_skips": 1, "stages": stages}
    same = {
        "seed": 0,
        "start": None,
        "optimizer": _without_floats(plan.optimizer),
        "ema": plan.ema and _without_floats(plan.ema),
        "train": _without_floats(plan.train).model_copy(update=train),
        "run": RunSettings(),
    }
    run = {key: value for key, value in plain(plan.run).items() if key in IN_SHAPE}
    text = json.dumps([plan.model_copy(update=same).hash, run], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _without_floats(settings: _S) -> _S:
    """Return the settings with every float replaced by 1, so that only sizes, kinds and switches can differ."""

    def plainer(value: object) -> object:
        if isinstance(value, float):
            return 1.0
        if isinstance(value, Settings):
            return _without_floats(value)
        return tuple(map(plainer, value)) if isinstance(value, tuple) else value

    return settings.model_copy(update={name: plainer(getattr(settings, name)) for name in type(settings).model_fields})


def is_steady(plan: Plan) -> bool:
    """Return whether all steps do the same work, without stages or components that switch on or off."""
    tuning = plan.tuning
    if plan.train.stages or (tuning is not None and tuning.adversarial.weight and tuning.adversarial.start_step):
        return False
    schedules = [getattr(part, "schedule", None) for part in (plan.route, *plan.losses)]
    last = max(1, plan.train.steps - 1)  # a factor that falls to 0 only at the last step is ignored
    factors = [one.factors_in(last) for one in schedules if isinstance(one, Schedule)]
    return not any(0.0 in of and len(of) > 1 for of in factors)


@dataclass(frozen=True)
class ShapeFacts:
    """Memory and step time of one shape on one kind of device; zeros and None mean not measured."""

    device: str
    """Description of the kind of device, as in a run's environment."""
    peak_bytes: Annotated[int, Field(ge=0)] = 0
    """The largest amount of memory that torch's allocator reserved on the GPU."""
    host_bytes: Annotated[int, Field(ge=0)] = 0
    """The largest amount of host memory that the process used."""
    step_s: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    """Mean seconds of a training step, alone on the GPU."""
    steps: Annotated[int, Field(ge=0)] = 0


_FACTS = TypeAdapter(ShapeFacts)
_Known = dict[tuple[str, str], ShapeFacts]


def read_shapes(out: Path, device: str) -> dict[str, ShapeFacts]:
    return {shape: facts for (shape, where), facts in _read_all(out).items() if where == device}


def note_shape(out: Path, shape: str, facts: ShapeFacts) -> None:
    """Store a measurement of a shape, with the larger memory peak and the newest step time."""
    for new in (facts, replace(facts, step_s=None, steps=0)):  # once more: another machine may have written meanwhile
        known = _read(_file(out, shape, facts.device))
        merged = _merged(known[1], new) if known else new
        if known is None or known[1] != merged:
            _write(out, shape, merged)


def copy_shapes(from_study: Path, out: Path, shapes: Collection[str] | None = None) -> int:
    """Copy a past study's new measurements of these or all shapes, also from its results.json; return how many."""
    folder = from_study if from_study.is_dir() else from_study.parent
    past, known, count = _in_results(folder / "results.json") | _read_all(folder), _read_all(out), 0
    for (shape, device), facts in past.items():
        if shapes is not None and shape not in shapes:
            continue
        own = known.get((shape, device))
        merged = _merged(facts, own) if own else facts
        if merged != own:
            _write(out, shape, merged)
            count += 1
    return count


def _merged(older: ShapeFacts, newer: ShapeFacts) -> ShapeFacts:
    timed = older if newer.step_s is None else newer
    return ShapeFacts(
        newer.device,
        max(older.peak_bytes, newer.peak_bytes),
        max(older.host_bytes, newer.host_bytes),
        timed.step_s,
        timed.steps,
    )


def _file(out: Path, shape: str, device: str) -> Path:
    return out / MEASURED / f"{shape}-{hashlib.sha256(device.encode()).hexdigest()[:8]}.json"


def _write(out: Path, shape: str, facts: ShapeFacts) -> None:
    file = _file(out, shape, facts.device)
    file.parent.mkdir(parents=True, exist_ok=True)
    write_checked(file, {"shape": shape, **asdict(facts)})


def _read_all(out: Path) -> _Known:
    found = [_read(file) for file in sorted((out / MEASURED).glob("*.json"))]
    return {(shape, facts.device): facts for shape, facts in filter(None, found)}


def _read(file: Path) -> tuple[str, ShapeFacts] | None:
    """Return the shape and the measurements in a file; None if the file is missing, damaged, or has a wrong name."""
    try:
        content: dict[str, Any] = read_checked(file, f"remove {quote(str(file))} to have it measured again")
        if not content:
            return None
        shape, facts = str(content.pop("shape", "")), _FACTS.validate_python(content)
        if file == _file(file.parents[1], shape, facts.device):
            return shape, facts
        reason = "the measurement is for another shape or device"
    except DamagedFileError as error:
        reason = error.reason
    except ValidationError as error:
        reason = first_problem(error, "the file")
    except (UserError, OSError) as error:
        reason = str(error)
    note_once(str(file), f"{file} counts as missing ({reason}): what it held is measured again")
    return None


def _in_results(file: Path) -> _Known:
    """Return the measurements in a study's results; empty if they are missing or cannot be read."""
    if not file.is_file():
        return {}
    try:
        arms = results.read_results_file(file).arms
    except UserError as error:
        note_once(str(file), f"{error.marked}: nothing is taken from it")
        return {}
    alone = [arm.alone for arm in arms if arm.alone is not None]
    return {(one.shape, one.device): _FACTS.validate_python(one.model_dump(exclude={"shape"})) for one in alone}


def read_alone(study: Study, out: Path, runs: Mapping[str, Sequence[results.Run]]) -> dict[str, results.Alone]:
    """Return the measurements of each arm by label, for the kind of device that measured most arms, or made most runs.

    The step time is left out if the steps of a run do different work.
    """
    known = _read_all(out)
    shapes = {arm.label: shape_of(arm.plans[0]) for arm in study.arms} if known else {}
    made_on = Counter(run.environment.get("device") for of_arm in runs.values() for run in of_arm)

    def measured(device: str) -> tuple[int, int, int]:
        there = [known[shape, device] for shape in shapes.values() if (shape, device) in known]
        return sum(facts.step_s is not None for facts in there), len(there), made_on[device]

    device = max(sorted({device for _, device in known}), key=measured, default="")
    found = {}
    for arm in study.arms:
        facts = known.get((shapes.get(arm.label, ""), device))
        if facts is not None:
            steady = facts if is_steady(arm.plans[0]) else replace(facts, step_s=None, steps=0)
            found[arm.label] = results.Alone(shape=shapes[arm.label], **asdict(steady))
    return found


_SETTLE_STEPS = 3
"""Number of steps to wait after a request, and after an excluded step, before timing begins."""
_LEAST_STEPS, _MOST_STEPS = 8, 200
_LEAST_S, _MOST_S = 0.6, 3.0
_LEAST_SLOW_STEPS = 3
"""A timing window ends after `_MOST_S` seconds and at least this many steps."""


class StepTimer:
    """Measure the time of some training steps on request, without changing the run.

    The timed window has 8 to 200 steps in at least 0.6 s; after 3 s, 3 steps are enough. The device is synchronized at
    the start and at the end of the window. The time of a step is the mean over the window, including ordinary logging.
    No window contains a checkpoint, probe or snapshot. Before such a step, a window of at least 8 steps ends. A shorter
    window is discarded, and timing restarts after the step. So a run that saves every few steps cannot be timed.
    """

    def __init__(
        self,
        is_apart: Callable[[int], bool] = lambda step: False,
        synchronize: Callable[[], None] | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._is_apart, self._synchronize, self._clock = is_apart, synchronize or _synchronize, clock
        self._asked = False
        self._settle: int | None = None
        """Number of steps to wait before the window; None if no timing is requested, or the window is open."""
        self._began: tuple[int, float] | None = None
        """Step and time at the start of the window."""
        self._last: int | None = None
        self.steps = 0
        """Number of steps in the last window."""

    @classmethod
    def of(cls, plan: Plan, keep_at: Collection[int] = ()) -> StepTimer:
        """Return a timer for a plan's run, which leaves out the steps that save or probe."""
        every, last, ema = plan.run.save_every_steps, plan.train.steps, plan.ema

        def saves(step: int) -> bool:
            kept = step in keep_at or (ema is not None and ema.snapshot_due(step, last))
            return kept or step % every == 0 or step == last

        return cls(saves)

    def request(self) -> None:
        """Request a measurement; a measurement in progress is restarted. A signal handler may call this method."""
        self._asked = True

    def tick(self, step: int) -> float | None:
        """Return the mean seconds of a step if a window ends after this step, else None; call it after every step.

        A step that does not follow the previous step belongs to another run, without a request.
        """
        if step == self._last:  # a training reports its first step twice
            return None
        if self._last is None or step != self._last + 1:
            self._settle = self._began = None
        self._last = step
        if self._asked:
            self._asked, self._began, self._settle = False, None, _SETTLE_STEPS
            return None
        if self._settle is not None:
            self._settle = _SETTLE_STEPS if self._is_apart(step) else self._settle - 1
            if self._settle <= 0:
                self._settle, self._began = None, (step, self._now())
            return None
        if self._began is None:
            return None
        first, began_s = self._began
        steps, seconds = step - first, self._clock() - began_s
        if self._is_apart(step):
            self._began, self._settle = None, _SETTLE_STEPS
            return None
        long = seconds >= _MOST_S and steps >= _LEAST_SLOW_STEPS
        enough = steps >= _LEAST_STEPS and (seconds >= _LEAST_S or steps >= _MOST_STEPS or self._is_apart(step + 1))
        if not (long or enough):
            return None
        self._began, self.steps = None, steps
        return (self._now() - began_s) / steps

    def _now(self) -> float:
        self._synchronize()
        return self._clock()


def _synchronize() -> None:
    """Wait until this process's work on its GPU is done."""
    if torch.cuda.is_initialized():
        torch.cuda.synchronize()
