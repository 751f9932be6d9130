"""Functions that train a run, load it, sample from it and score it.

Heavy modules are imported when they are needed.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, overload

from annotated_types import Ge

from tintype.errors import UserError
from tintype.library import for_python
from tintype.library.kinds import AnyPath, AnyPlan, AnyRun, Count, Seed
from tintype.library.plans import plan_of
from tintype.wording import option

if TYPE_CHECKING:
    from PIL import Image

    from tintype.evaluation.ema_curve import Curve
    from tintype.evaluation.progress import OnScoring, Scoring
    from tintype.evaluation.protocol import Protocol
    from tintype.evaluation.results import EvaluationResult, ImageSetResult, MetricValues
    from tintype.plan import Plan
    from tintype.runtime.interrupt import Interrupt
    from tintype.sampling.generate import SamplerSettings, Size
    from tintype.sampling.sample import LoadedRun, OnImages
    from tintype.train.record import RunRecord
    from tintype.train.steps import Progress


@dataclass(frozen=True, repr=False)
class Run:
    """A run in a folder, with methods to read its plan and log and to sample images from its weights."""

    _record: RunRecord
    step: int
    """Step of the newest checkpoint when the run was trained or loaded; 0 if it has no checkpoint."""
    arm: str = ""
    """The arm, if the run was selected from a study; empty if the run's own folder was given."""
    trained: int = field(default=0, compare=False)
    """Number of steps that this call of `train` trained; 0 for a loaded run."""
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
        """Return whether the run has trained all steps of its plan."""
        return self.step >= self.plan.train.steps

    def log(self) -> list[dict[str, Any]]:
        """Return the training log as one dictionary per logged step, with step, loss, images_per_s and more."""
        return type(self._record)(self.path).lines

    @for_python
    def sample(
        self,
        prompts: str | Sequence[str],
        *,
        count: int = 1,
        steps: int = 50,
        guidance: float = 3.5,
        guidance_kind: str | None = None,
        guide_step: float | None = None,
        guide_length: float | None = None,
        guidance_interval: tuple[float, float] = (0.0, 1.0),
        unbias: bool = False,
        method: str = "euler",
        seed: int = 0,
        size: int | tuple[int, int] | None = None,
        batch: int = 16,
        ema_length: float | None = None,
        device: str | None = None,
        on_progress: OnImages | None = None,
    ) -> list[Image.Image]:
        """Generate images from prompts, equal to the images that the function `sample` writes.

        Several calls load the weights only once.

        Args:
            prompts: one prompt, or several.
            count: number of images for each prompt. The images of the first prompt come first.
            steps: steps of the sampler.
            guidance: scale of the guidance; 1 switches it off.
            guidance_kind: "classifier-free", "self", "path-drop", "autoguidance", or a kind of a plugin; by default
                the plan's `sampling.guidance`.
            guide_step: for autoguidance: the step of the run's earlier weights, or that step as a fraction of the
                training.
            guide_length: for autoguidance: the length of the earlier weight average (power-ema).
            guidance_interval: interval of t in which guidance is applied; t = 1 is noise.
            unbias: undo the bias of the run's contrastive loss.
            method: the sampler: "euler", "heun", or the name of a plugin's sampler.
            seed: seed of the noise. An image depends on the seed, its index and its prompt, not on other images.
            size: side of square images in pixels, or (width, height); by default the size of training.
            batch: number of images generated at a time.
            ema_length: use the weight average of this length, reconstructed from the snapshots of a run with power-ema.
            device: "auto", "cpu", "cuda" or "cuda:N"; by default the device in the run's plan.
            on_progress: called with the number of finished images and the number of all images. An unfinished image
                counts as a fraction.

        Returns:
            Pillow images. `image.info` has the prompt, and under "tintype" every setting that determines the image.

        Raises:
            UserError: there are no prompts, no weights yet, or a setting is not valid.
        """
        from tintype.sampling.sample import as_image, images_of, load_for_sampling

        listed = [prompts] if isinstance(prompts, str) else list(prompts)
        if not listed or count < 1:
            raise UserError("nothing to sample", "give one prompt or more, and a count of 1 or more")
        guided = _Guided(guidance, guidance_kind, guide_step, guide_length, guidance_interval, unbias)
        settings = _sampler(self.path, method, steps, batch, guided)
        if (device, ema_length) not in self._loaded:
            self._loaded[device, ema_length] = load_for_sampling(self.path, device, ema_length)
        size_px: Size | None = size if size is None or isinstance(size, int) else (size[1], size[0])
        wanted = images_of(self._loaded[device, ema_length], listed, settings, count, seed, size_px)
        on_step = wanted.counter(on_progress or ignore)
        found: list[Image.Image] = []
        for span in wanted.batches:
            for tensor in wanted.make(span, on_step):
                image = as_image(tensor)
                image.info.update(dict(wanted.metadata(len(found))))
                found.append(image)
        return found


@dataclass(frozen=True)
class _Guided:
    """The guidance arguments of a call of `sample`."""

    scale: float
    kind: str | None
    guide_step: float | None
    guide_length: float | None
    interval: tuple[float, float]
    unbias: bool


def _sampler(run: Path, method: str, steps: int, batch: int, guided: _Guided) -> SamplerSettings:
    """Return the settings of the sampler. Errors name the arguments of `sample` that caused them."""
    from tintype.config.strict import Document, KeyPath, parse
    from tintype.plan import plan_from_folder
    from tintype.sampling.generate import SamplerSettings

    kind = guided.kind or plan_from_folder(run).sampling.guidance
    from_t, to_t = guided.interval
    earlier = {"step": guided.guide_step, "length": guided.guide_length}
    if kind != "autoguidance" and any(one is not None for one in earlier.values()):
        raise UserError(
            f"{option('guide-step')} and {option('guide-length')} apply only to "
            f"{option('guidance-kind', 'autoguidance')}",
            "add this option, or leave the others out",
        )
    if guided.guide_step is not None and float(guided.guide_step).is_integer():
        earlier["step"] = int(guided.guide_step)
    of_kind = {"kind": kind, "scale": guided.scale, "from_t": from_t, "to_t": to_t, "unbias": guided.unbias}
    of_kind |= {key: value for key, value in earlier.items() if value is not None}
    values = {"method": method, "steps": steps, "guidance": of_kind, "batch": batch}
    places: dict[KeyPath, str] = {
        ("guidance",): f"{option('guidance-kind', kind)} {option('guidance-interval')} {from_t:g} {to_t:g}",
        ("method",): option("method", method),
    }
    return parse(SamplerSettings, Document("sample", values, places))


@dataclass(frozen=True)
class Sampled:
    """The images that a call of `sample` has written."""

    images: list[str]
    sheet: str
    """The contact sheet: one image file that shows all images."""


def sample(
    run: AnyRun,
    prompts: Sequence[str] = (),
    out: AnyPath = "samples",
    *,
    prompt_file: AnyPath | None = None,
    count: Count = 1,
    steps: Count = 50,
    guidance: Annotated[float, Ge(0)] = 3.5,
    guidance_kind: str | None = None,
    guide_step: float | None = None,
    guide_length: float | None = None,
    guidance_interval: tuple[float, float] = (0.0, 1.0),
    unbias: bool = False,
    method: str = "euler",
    seed: Seed = 0,
    size: str | None = None,
    batch: Count = 16,
    ema_length: float | None = None,
    device: str | None = None,
    on_progress: OnImages | None = None,
) -> Sampled:
    """Generate images from prompts, and a contact sheet. Each PNG contains its settings.

    Args:
        run: folder of a run.
        prompts: texts to generate images from.
        out: folder to write to.
        prompt_file: text file with one prompt per line.
        count: number of images per prompt.
        steps: number of sampling steps.
        guidance: guidance scale; 1 switches guidance off.
        guidance_kind: kind of guidance: classifier-free, self, path-drop, autoguidance, or a kind of a plugin; by
            default the plan's sampling.guidance.
        guide_step: with autoguidance: the step of the run's earlier weights, or that step as a fraction of the
            training.
        guide_length: with autoguidance: the length of the earlier weight average (power-ema).
        guidance_interval: interval of t in which guidance is applied; t = 1 is noise.
        unbias: undo the bias of the run's contrastive loss.
        method: sampler: euler, heun, or a plugin's sampler.
        seed: seed of the noise, independent of the run's training seed.
        size: side of square images in pixels, or width x height as 832x1248; by default the size of training.
        batch: images per batch.
        ema_length: use the weight average of this length, reconstructed from the snapshots of a run with power-ema.
        device: auto, cpu, cuda or cuda:N; by default the device in the run's plan.
        on_progress: called with the number of finished images and the number of all images. An unfinished image counts
            as a fraction.

    Raises:
        UserError: there are no prompts, no weights yet, or a setting is not valid.
    """
    from tintype.sampling.sample import read_size, sample_run

    folder = path_of(run)
    guided = _Guided(guidance, guidance_kind, guide_step, guide_length, guidance_interval, unbias)
    written = sample_run(
        folder,
        list(prompts),
        None if prompt_file is None else Path(prompt_file),
        Path(out),
        _sampler(folder, method, steps, batch, guided),
        count=count,
        seed=seed,
        size_px=None if size is None else read_size(size),
        device=device,
        ema_length=ema_length,
        on_images=on_progress or ignore,
    )
    return Sampled([str(path) for path in written[:-1]], str(written[-1]))


def ignore(*values: object) -> None:
    """Do nothing. This function is the default callback for progress."""


def path_of(run: AnyRun) -> Path:
    return run.path if isinstance(run, Run) else Path(run)


def train(
    plan: AnyPlan,
    out: AnyPath,
    *,
    on_progress: Callable[[Progress], None] | None = None,
    on_wait: Callable[[str], None] | None = None,
    interrupt: Interrupt | None = None,
) -> Run:
    """Train one plan. A repeated call resumes, or reports that the work is done.

    Ctrl+C saves a checkpoint and then raises KeyboardInterrupt. The same call resumes, with the same result as without
    the interruption.

    Args:
        plan: the plan, or any argument that `load_plan` takes.
        out: folder to write the run to; a folder can only hold the run of one plan.
        on_progress: called at the start and after each step with `step`, `steps`, `loss` and `images_per_s`. An
            exception that it raises ends the training; the same call then resumes from the last checkpoint.
        on_wait: called with a message if this call waits for another process that works in the folder.
        interrupt: object that stops the training when its `signal` is set; for callers that handle signals.

    Raises:
        UserError: the folder holds another run, or the plan's data or weights are missing.
        DivergedError: the loss or the weights are not finite, or far too large.
    """
    from tintype.train import loop
    from tintype.train.record import RunRecord

    plan, path = plan_of(plan), Path(out)
    first: int | None = None

    def report(now: Progress) -> None:
        nonlocal first
        first = now.step if first is None else first
        (on_progress or ignore)(now)

    with watched(interrupt) as signalled:
        outcome = loop.train(plan, path, signalled, on_progress=report, on_wait=on_wait or ignore)
    return Run(RunRecord(path, plan), outcome.step, trained=0 if first is None else outcome.step - first)


@contextmanager
def watched(interrupt: Interrupt | None) -> Iterator[Interrupt]:
    """Yield the caller's interrupt.

    If the caller has none, yield an interrupt that signals set. If a signal arrived, it is delivered at the end.
    """
    if interrupt is not None:
        yield interrupt
        return
    from tintype.runtime.interrupt import watch_signals

    try:
        with watch_signals() as own:
            yield own
    finally:
        deliver(own.signal)


def deliver(number: int | None) -> None:
    """Deliver a signal that stopped the work to its usual handler. For SIGINT, this raises KeyboardInterrupt."""
    if number is not None:
        signal.raise_signal(signal.Signals(number))


def load_run(path: AnyPath, arm: str | None = None, seed: int | None = None) -> Run:
    """Load the run in a folder, or the run of an arm and a seed in the folder of a study.

    Args:
        path: the folder of a run, of an exported model, or of a study.
        arm: name of the arm in a study, or "baseline".
        seed: seed of the run in a study; by default the first seed of the arm.

    Raises:
        UserError: there is no such run.
    """
    from tintype.plan import plan_from_folder
    from tintype.runtime.files import STUDY
    from tintype.train.record import RunRecord

    folder, chosen = Path(path), ""
    if (folder / STUDY).is_file():
        from tintype.study.lab import choose_run  # slow to import, and most commands get a run's own folder

        task = choose_run(folder, arm, seed)
        folder, chosen = task.trained_folder(), task.arm
    elif arm is not None or seed is not None:
        raise UserError(
            f"{option('arm')} and {option('arm-seed')} choose a run of a study, but {folder} is not a study: "
            f"study.yaml is missing",
            "leave them out",
        )
    record = RunRecord(folder, plan_from_folder(folder))
    return Run(record, record.saved_step, chosen)


def protocol_for(path: Path, settings: Sequence[str] = ()) -> tuple[Protocol, str]:
    """Return the protocol by which a run is scored, and a text that says where the protocol comes from.

    A run in the folder of a study is scored by the study's protocol. Any other run is scored by the protocol that its
    plan names. `settings` override settings of the protocol.
    """
    from tintype.evaluation.presets import PRESET, default_protocol, protocol_of
    from tintype.train.record import RunRecord

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


@overload
def evaluate(
    run: AnyRun,
    *settings: str,
    ema_length: float | None = None,
    device: str | None = None,
    threads: int | None = None,
    on_progress: OnScoring | None = None,
) -> EvaluationResult: ...
@overload
def evaluate(
    run: None = None,
    *settings: str,
    images: AnyPath,
    reference: AnyPath,
    save_reference: AnyPath | None = None,
    follow_links: bool = False,
    device: str | None = None,
    on_progress: OnScoring | None = None,
) -> ImageSetResult: ...
def evaluate(
    run: AnyRun | None = None,
    *settings: str,
    images: AnyPath | None = None,
    reference: AnyPath | None = None,
    save_reference: AnyPath | None = None,
    ema_length: float | None = None,
    follow_links: bool = False,
    device: str | None = None,
    threads: Count | None = None,
    on_progress: OnScoring | None = None,
) -> MetricValues:
    """Score a run, or compare a set of images with a reference set: each a folder, a .tar or a .parquet file.

    The result of a run is stored in the run's folder. The same call again reads the stored result.

    Args:
        run: folder of a run.
        settings: override the protocol: preset=prx, count=256, "encoders=[clip]". The default protocol is the one of
            the run's study, or the one that the plan names in `run.protocol`.
        images: score these images instead of a run.
        reference: images to compare with, or a file that save_reference wrote.
        save_reference: save the features of the reference as FILE.safetensors.
        ema_length: use the weight average of this length, reconstructed from the snapshots of a run with power-ema.
        follow_links: follow symbolic links that lead out of the folder of the images.
        device: auto, cpu, cuda or cuda:N; by default the device in the run's plan.
        threads: number of CPU threads; by default run.threads. Another number changes the last bits of the scores.
        on_progress: called with the current activity (`doing`, `done` of `total`), and the finished `share` of the
            whole evaluation.

    Returns:
        `metrics` by name, their standard `errors` over sampling, `warnings`, and the other fields of the JSON of
        `tintype evaluate`.

    Raises:
        UserError: the run has no weights, or the settings do not fit its data.
        DivergedError: the run has diverged.
    """
    if (run is None) == (images is None) or (images is None) != (reference is None):
        raise UserError(
            "nothing to evaluate",
            f"give the folder of a run, or {option('images', 'A')} {option('reference', 'B')}",
        )
    if run is not None:
        if save_reference is not None:
            goes_with = f"{option('images')} and {option('reference')}"
            raise UserError(
                f"{option('save-reference')} applies only to {goes_with}; a run stores its reference itself",
                "leave it out",
            )
        if follow_links:
            raise UserError(
                f"{option('follow-links')} applies only to the folders of {option('images')} and {option('reference')}",
                "leave it out for a run",
            )
        return _evaluate_run(path_of(run), settings, ema_length, device, threads, on_progress)
    if ema_length is not None:
        raise UserError(
            f"{option('ema-length')} chooses among the weights of a run, but {option('images')} are not a run",
            "leave it out",
        )
    if threads is not None:
        raise UserError(
            f"{option('threads')} applies only to a run", f"for {option('images')}, set the variable OMP_NUM_THREADS"
        )
    from tintype.config.strict import parse_assignments
    from tintype.evaluation.images import evaluate_images
    from tintype.evaluation.protocol import ImageProtocol
    from tintype.runtime.dist import alone
    from tintype.runtime.machine import choose_device

    alone("tintype evaluate --images")
    return evaluate_images(
        Path(str(images)),
        Path(str(reference)),
        parse_assignments(ImageProtocol, "evaluation", settings),
        choose_device(device or "auto"),
        None if save_reference is None else Path(save_reference),
        on_progress or ignore,
        follow_links,
    )


def _evaluate_run(
    path: Path,
    settings: Sequence[str],
    ema_length: float | None,
    device: str | None,
    threads: int | None,
    on_progress: OnScoring | None,
) -> EvaluationResult:
    from tintype.evaluation import run as scoring
    from tintype.train.reconstruct import reconstruction

    protocol, _ = protocol_for(path, settings)
    average = reconstruction(path, ema_length) if ema_length is not None else None
    return scoring.evaluate(path, protocol, on_progress or ignore, device, average, threads)


def ema(
    run: AnyRun,
    *settings: str,
    lengths: str = "0.03,0.05,0.075,0.1,0.15,0.2,0.25",
    metric: str | None = None,
    device: str | None = None,
    threads: Count | None = None,
    on_begin: Callable[[Curve], None] | None = None,
    on_progress: Callable[[float, Scoring], None] | None = None,
) -> Curve:
    """Score a run with weight averages of several lengths. A repeated call resumes.

    Args:
        run: folder of a run trained with power-ema.
        settings: override the protocol: preset=prx, count=256, "encoders=[clip]".
        lengths: lengths of the weight average, as fractions of the training.
        metric: metric of the curve; by default the first metric of the protocol.
        device: auto, cpu, cuda or cuda:N; by default the device in the run's plan.
        threads: number of CPU threads; by default run.threads. Another number changes the last bits of the scores.
        on_begin: called with the curve before it has points; points are added to it as they are measured.
        on_progress: called with the length that is being scored and the progress of its scoring.

    Raises:
        UserError: the run has no snapshots, or a length or the metric is not valid.
    """
    from tintype.evaluation.ema_curve import Curve, check_metric, read_lengths, score_lengths
    from tintype.evaluation.fit import fit_protocol, refuse
    from tintype.plan import plan_from_folder

    path = path_of(run)
    data = plan_from_folder(path).data
    fitted = fit_protocol(protocol_for(path, settings)[0], data)
    refuse(fitted.problems)
    wanted = check_metric(fitted.protocol, metric, data.of_scenes)
    curve = Curve(path, read_lengths(lengths), fitted.protocol, wanted, of_scenes=data.of_scenes)
    (on_begin or ignore)(curve)
    score_lengths(curve, on_progress or ignore, device, threads)
    return curve
