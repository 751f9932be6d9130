"""Functions that train, compare and save tokenizers, cache latents, and train the packaged scene encoder.

Heavy modules are imported when they are needed.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from tintype.errors import StoppedError
from tintype.library.kinds import AnyPath, AnyPlan, AnyRun, Count, OnCount, Seed
from tintype.library.plans import plan_of
from tintype.library.runs import ignore, path_of, watched
from tintype.wording import again

if TYPE_CHECKING:
    from tintype.evaluation.train_scene_encoder import TrainedEncoder
    from tintype.runtime.interrupt import Interrupt
    from tintype.tokenizer_lab.fill_cache import CachedLatents
    from tintype.tokenizer_lab.images import OnImages
    from tintype.tokenizer_lab.report import TokenizerReport
    from tintype.tokenizer_lab.save_tuned import SavedTokenizer
    from tintype.tokenizer_lab.training import TokenizerTraining
    from tintype.train.steps import Progress


def train_encoder(
    out: AnyPath,
    *,
    seed: Seed = 0,
    steps: Count = 8000,
    batch: Count = 512,
    device: str = "cpu",
    on_progress: Callable[[Progress], None] | None = None,
    interrupt: Interrupt | None = None,
) -> TrainedEncoder:
    """Train tintype's packaged scene encoder again and measure its accuracy. A repeated call resumes.

    Args:
        out: folder to write to.
        seed: training seed.
        steps: number of training steps.
        batch: number of images per step.
        device: auto, cpu, cuda or cuda:N.
        on_progress: called at the start and after each step with `step`, `steps`, `loss` and `images_per_s`.
        interrupt: object that stops the training when its `signal` is set; for callers that handle signals.

    Raises:
        UserError: the folder holds a training with other settings.
    """
    from tintype.evaluation import train_scene_encoder
    from tintype.runtime.machine import choose_device

    settings = train_scene_encoder.SceneEncoderTraining(seed=seed, steps=steps, batch=batch)
    where = str(choose_device(device))
    with watched(interrupt) as signalled:
        outcome = train_scene_encoder.train(settings, Path(out), where, signalled, on_progress or ignore)
    if outcome.record is None:
        raise _stopped(outcome.step)
    return outcome.record


def _stopped(step: int) -> StoppedError:
    return StoppedError(f"saved at step {step}" if step else "before the first step", f"{again()} to resume")


@dataclass(frozen=True)
class TrainedTokenizer:
    """A trained tokenizer and its quality."""

    folder: Path
    steps: int
    already_done: bool
    """Whether an earlier call had already finished the training."""
    psnr_db: float
    """PSNR of the reconstructions of held-out images, in dB."""
    held_out: int
    """Number of held-out images."""
    dead_channels: list[int]
    """Indices of latent channels that carry no information."""
    notes: list[str]


def train_tokenizer(
    out: AnyPath,
    *settings: str,
    kind: Literal["small-vae", "rae"] = "small-vae",
    data: str | None = None,
    device: str = "auto",
    on_progress: Callable[[Progress], None] | None = None,
    interrupt: Interrupt | None = None,
) -> TrainedTokenizer:
    """Train a tokenizer on any images. A repeated call resumes, or reports that the work is done.

    Args:
        out: folder to write to.
        settings: override a setting: steps=2000, vae.channels=8, perceptual.kind=lpips.
        kind: small-vae trains an autoencoder; rae trains a decoder for the tokens of a frozen encoder.
        data: images to train on: scenes (default), or a folder, .tar, .parquet file or store of images.
        device: auto, cpu, cuda or cuda:N.
        on_progress: called at the start and after each step with `step`, `steps`, `loss` and `images_per_s`.
        interrupt: object that stops the training when its `signal` is set; for callers that handle signals.

    Raises:
        UserError: a setting is not valid, the images do not exist, or the folder holds another training.
        DivergedError: the loss or the weights are not finite.
    """
    from tintype.config.strict import parse_assignments
    from tintype.runtime.machine import choose_device
    from tintype.tokenizer_lab import training
    from tintype.tokenizer_lab.train_rae import RaeTraining
    from tintype.tokenizer_lab.train_small_vae import Training

    given = [] if data is None else [f"data={json.dumps(data)}"]
    form: type[TokenizerTraining] = RaeTraining if kind == "rae" else Training
    parsed = parse_assignments(form, "training", [*settings, *given])
    folder, where = Path(out), choose_device(device)
    with watched(interrupt) as signalled:
        outcome = training.train_tokenizer(parsed, folder, where, signalled, on_progress or ignore)
    if outcome.record is None:
        raise _stopped(outcome.step)
    trained = outcome.record.trained
    dead = trained["dead_channels"]
    notes = [f"{len(dead)} of the latents' channels carry nothing; {parsed.dead_remedy}"] if dead else []
    quality = trained["psnr_db"], trained["held_out"]
    return TrainedTokenizer(folder, outcome.step, outcome.already_done, *quality, dead, notes)


def cache_latents(
    plan: AnyPlan,
    *,
    verify: bool = False,
    on_progress: OnCount | None = None,
    interrupt: Interrupt | None = None,
) -> CachedLatents:
    """Cache the latents of all training images of a plan, for runs with run.latents=disk. A repeated call resumes.

    Args:
        plan: the plan, or any argument that `load_plan` takes.
        verify: hash all images again, and encode images that have changed.
        on_progress: called with the number of finished images and the number of all images.
        interrupt: object that stops the encoding when its `signal` is set; for callers that handle signals.

    Raises:
        UserError: the plan's tokenizer has no latents to cache, or the plan's data is missing.
    """
    from tintype.tokenizer_lab.fill_cache import fill_cache

    with watched(interrupt) as signalled:
        return fill_cache(plan_of(plan), signalled, verify, on_progress or ignore)


def save_tokenizer(run: AnyRun, out: AnyPath, *, device: str | None = None) -> SavedTokenizer:
    """Save the autoencoder that a run has tuned, as a frozen tokenizer for other plans.

    Args:
        run: folder of a run that tuned its tokenizer (technique repa-e).
        out: folder to write to.
        device: auto, cpu, cuda or cuda:N; by default the device in the run's plan.

    Raises:
        UserError: the run did not tune its tokenizer, or has no weights yet.
    """
    from tintype.tokenizer_lab.save_tuned import save_tuned

    return save_tuned(path_of(run), Path(out), device)


def compare_tokenizers(
    tokenizers: Sequence[str],
    out: AnyPath,
    *settings: str,
    data: str = "scenes",
    device: str = "auto",
    on_progress: OnImages | None = None,
) -> TokenizerReport:
    """Compare tokenizers on any images in one HTML file: quality, compression, speed and latents.

    Args:
        tokenizers: tokenizers to compare: kinds (pixels, small-vae:folder=DIR) or folders of trained tokenizers.
        out: folder to write to.
        settings: override a setting: size_px=256, count=512, "encoders=[inception]".
        data: images for the comparison: scenes, or a folder, .tar, .parquet file or store of images.
        device: auto, cpu, cuda or cuda:N.
        on_progress: called with the current activity, the number of finished images and the number of all images.

    Raises:
        UserError: a tokenizer or a setting is not valid, or the images do not exist.
    """
    from tintype.config.strict import parse_assignments
    from tintype.runtime.machine import choose_device
    from tintype.tokenizer_lab.report import ReportSettings, report_tokenizers

    parsed = parse_assignments(ReportSettings, "report", [*settings, f"data={json.dumps(data)}"])
    return report_tokenizers(list(tokenizers), parsed, Path(out), choose_device(device), on_progress or ignore)
