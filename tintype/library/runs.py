"""Runs in Python: train one, load it, sample from it, score it."""

from __future__ import annotations

import signal
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from os import PathLike
from pathlib import Path
from typing import Any

from PIL import Image

from tintype.config.strict import Document, parse
from tintype.errors import UserError
from tintype.evaluation import run as scoring
from tintype.evaluation.presets import PRESET, default_protocol, protocol_of
from tintype.evaluation.progress import OnScoring
from tintype.evaluation.protocol import Protocol
from tintype.evaluation.results import EvaluationResult
from tintype.library import for_python
from tintype.library.plans import AnyPlan, plan_of
from tintype.plan import Plan, plan_from_folder
from tintype.runtime.files import STUDY
from tintype.runtime.interrupt import Interrupt, watch_signals
from tintype.sampling.generate import SamplerSettings, Size
from tintype.sampling.sample import LoadedRun, OnImages, as_image, images_of, load_for_sampling
from tintype.train import loop
from tintype.train.reconstruct import reconstruction
from tintype.train.record import RunRecord
from tintype.train.steps import Progress
from tintype.wording import option


@dataclass(frozen=True, repr=False)
class Run:
    """A run in its folder: its plan, its log, and images from its weights."""

    _record: RunRecord
    step: int
    """The step of its newest checkpoint when it was trained or loaded; 0 where it has none."""
    arm: str = ""
    """The arm of a study that it was chosen from; empty where it was given by its own folder."""
    _loaded: dict[tuple[str | None, float | None], LoadedRun] = field(default_factory=dict, compare=False)

    @property
    def path(self) -> Path:
        return self._record.path

    @property
    def plan(self) -> Plan:
        return self._record.plan

    def __repr__(self) -> str:
        return f"<Run {self.path}: step {self.step:,} of {self.plan.train.steps:,}>"

    @property
    def finished(self) -> bool:
        """Return whether all steps of its plan are trained."""
        return self.step >= self.plan.train.steps

    def log(self) -> list[dict[str, Any]]:
        """Return what training logged, a dictionary for each logged step: step, loss, images_per_s and more."""
        return RunRecord(self.path).lines

    @for_python
    def sample(
        self,
        prompts: str | Sequence[str],
        *,
        count: int = 1,
        seed: int = 0,
        steps: int = 50,
        guidance: float = 3.5,
        method: str = "euler",
        size: int | tuple[int, int] | None = None,
        batch: int = 16,
        ema_length: float | None = None,
        device: str | None = None,
        on_progress: OnImages | None = None,
    ) -> list[Image.Image]:
        """Generate images from prompts, the same ones as `tintype sample`. Weights are loaded once.

        Args:
            prompts: one prompt, or several.
            count: images for each prompt. Those of the first prompt come first.
            seed: seed of the noise. An image depends on it, on its index and on its prompt, not on the others.
            steps: steps of the sampler.
            guidance: scale of the guidance (`sampling.guidance` in the plan); 1 switches it off.
            method: the sampler: "euler", "heun", or the name of one that a plugin adds.
            size: side of squares in pixels, or (width, height); by default as in training.
            batch: images made at a time.
            ema_length: use the weight average of this length, made of the snapshots of a run with power-ema.
            device: "auto", "cpu", "cuda" or "cuda:N"; by default the device in the run's plan.
            on_progress: called with the number of images that are done, those under way in part, and of all.

        Returns:
            Images of Pillow. `image.info` has the prompt, and under "tintype" all that decides the image.

        Raises:
            UserError: there are no prompts, no weights yet, or a setting is not valid.
        """
        listed = [prompts] if isinstance(prompts, str) else list(prompts)
        if not listed or count < 1:
            raise UserError("nothing to sample", "give one prompt or more, and a count of 1 or more")
        guided = {"kind": self.plan.sampling.guidance, "scale": guidance}
        values = {"method": method, "steps": steps, "guidance": guided, "batch": batch}
        settings = parse(SamplerSettings, Document("sample", values))
        if (device, ema_length) not in self._loaded:
            self._loaded[device, ema_length] = load_for_sampling(self.path, device, ema_length)
        size_px: Size | None = size if size is None or isinstance(size, int) else (size[1], size[0])
        wanted = images_of(self._loaded[device, ema_length], listed, settings, count, seed, size_px)
        on_step, found = wanted.counter(on_progress or ignore), list[Image.Image]()
        for span in wanted.batches:
            for tensor in wanted.make(span, on_step):
                image = as_image(tensor)
                image.info.update(dict(wanted.metadata(len(found))))
                found.append(image)
        return found


AnyRun = Run | str | PathLike[str]
"""A run, or the path of its folder."""


def ignore(*values: object) -> None:
    """Do nothing: for progress that nobody asked for."""


def path_of(run: AnyRun) -> Path:
    return run.path if isinstance(run, Run) else Path(run)


def train(
    plan: AnyPlan,
    out: str | PathLike[str],
    *,
    on_progress: Callable[[Progress], None] | None = None,
    on_wait: Callable[[str], None] | None = None,
    interrupt: Interrupt | None = None,
) -> Run:
    """Train a plan in a folder, from wherever it stopped. A run that is done is returned as it is.

    Ctrl+C saves before it raises KeyboardInterrupt; the same call resumes, as if it had not stopped.

    Args:
        plan: the plan, or what `load_plan` takes. A folder holds the run of one plan.
        out: the run's folder; it is made where it is not there.
        on_progress: called at the start and after each step with `step`, `steps`, `loss` and `images_per_s`. What it
            raises ends the training; the same call then resumes from the last checkpoint.
        on_wait: called with a sentence where another process works in the folder, which this one waits for.
        interrupt: for a caller that handles signals itself and asks for an end by it.

    Raises:
        UserError: the folder holds another run, or the plan's data or weights are not there.
        DivergedError: the loss or the weights are not finite, or far too large.
    """
    plan, path = plan_of(plan), Path(out)
    work = partial(loop.train, plan, path, on_progress=on_progress or ignore, on_wait=on_wait or ignore)
    if interrupt is not None:
        return Run(RunRecord(path, plan), work(interrupt).step)
    with watch_signals() as own:
        outcome = work(own)
    deliver(own.signal)
    return Run(RunRecord(path, plan), outcome.step)


def deliver(number: int | None) -> None:
    """Give a signal that work was stopped for to whom it would have gone: SIGINT raises KeyboardInterrupt."""
    if number is not None:
        signal.raise_signal(signal.Signals(number))


def load_run(path: str | PathLike[str], arm: str | None = None, seed: int | None = None) -> Run:
    """Return the run in a folder, or that of an arm and a seed in the folder of a study.

    Args:
        path: the folder of a run, of an exported model, or of a study.
        arm: in a study, the arm's name; "baseline" is one too.
        seed: in a study, the seed of the run; by default the first of the arm.

    Raises:
        UserError: there is no such run.
    """
    folder, chosen = Path(path), ""
    if (folder / STUDY).is_file():
        from tintype.study.lab import choose_run  # slow to import, and most commands are given a run's own folder

        task = choose_run(folder, arm, seed)
        folder, chosen = task.trained_folder(), task.arm
    elif arm is not None or seed is not None:
        raise UserError(
            f"{option('arm')} and {option('arm-seed')} choose a run of a study; {folder} is none: it has no study.yaml",
            "leave them out",
        )
    record = RunRecord(folder, plan_from_folder(folder))
    return Run(record, record.saved_step, chosen)


def protocol_for(path: Path, settings: Sequence[str] = ()) -> tuple[Protocol, str]:
    """Return the protocol by which a run is scored, and in words where it comes from.

    It is that of the study in whose folder the run lies, or the one that the run's plan names. `settings` replace
    settings of it.
    """
    record = RunRecord(path)
    plan = record.plan
    if (study := record.study) is not None:
        from tintype.study.folder import stored_protocol  # slow to import, and most runs are in no study

        default, words = stored_protocol(study), f"that of the study {study}"
    elif plan.run.protocol is not None:
        default, words = default_protocol(plan), f"{plan.run.protocol}, as the plan's run.protocol says"
    else:
        default, words = default_protocol(plan), "the general defaults; the plan names none in run.protocol"
    given = dict.fromkeys(one.partition("=")[0].strip() for one in settings)
    if PRESET in given:
        words = "the preset"
    return protocol_of(settings, default), f"{words}; given: {', '.join(given)}" if given else words


def evaluate(
    run: AnyRun,
    *settings: str,
    ema_length: float | None = None,
    device: str | None = None,
    threads: int | None = None,
    on_progress: OnScoring | None = None,
) -> EvaluationResult:
    """Score a run's newest weights. The result is stored in the run's folder: the same call again only reads it.

    Args:
        run: a run, or the path of its folder.
        settings: of the evaluation, each "key.path=value", as "count=256" or "preset=prx". By default it is that of the
            run's study, or the one that the plan names in `run.protocol`.
        ema_length: use the weight average of this length, made of the snapshots of a run with power-ema.
        device: "auto", "cpu", "cuda" or "cuda:N"; by default the device in the run's plan.
        threads: CPU threads; by default those of the plan. Another number changes last bits.
        on_progress: called with what is done (`doing`, `done` of `total`) and the `share` of the whole.

    Returns:
        `metrics` by name, their standard `errors` over sampling, `warnings`, and all else that `tintype evaluate` has.

    Raises:
        UserError: the run has no weights, or the settings do not fit its data.
        DivergedError: the run has diverged.
    """
    path = path_of(run)
    protocol, _ = protocol_for(path, settings)
    average = reconstruction(path, ema_length) if ema_length is not None else None
    return scoring.evaluate(path, protocol, on_progress or ignore, device, average, threads)
