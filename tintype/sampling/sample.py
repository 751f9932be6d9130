"""`tintype sample` writes images from prompts as PNGs with their settings, and a contact sheet."""

from __future__ import annotations

import io
import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeAlias

import torch
from PIL import Image, PngImagePlugin
from torch import Tensor

from tintype.data.image_file import open_image, read_file
from tintype.data.image_sets import SHEET
from tintype.errors import UserError, as_user_error
from tintype.plugins.record import record_of
from tintype.plugins.registry import is_built_in
from tintype.runtime.dist import current, refuse_other_steps
from tintype.runtime.fence import OPEN, Fence
from tintype.runtime.files import write_bytes
from tintype.runtime.watchdog import watch_ranks
from tintype.sampling.generate import SamplerSettings, Size, generate, sides, spans
from tintype.settings import plain
from tintype.train.agreement import agree_on_plan
from tintype.train.guide import with_guides
from tintype.train.load import load_run
from tintype.train.parts import Model
from tintype.train.reconstruct import Reconstruction, reconstruction
from tintype.train.record import RunRecord
from tintype.wording import option

OnImages: TypeAlias = Callable[[float, int], None]
"""Callback with the number of finished images and the total."""


@dataclass(frozen=True)
class LoadedRun:
    """A run with its weights loaded."""

    path: Path
    parts: Model
    step: int
    average: Reconstruction | None = None
    """The average computed from the run's snapshots; None for the weights of the newest checkpoint."""


def load_for_sampling(run: Path, device: str | None = None, ema_length: float | None = None) -> LoadedRun:
    """Load a run's newest weights, or an average of its weights over another length."""
    average = reconstruction(run, ema_length) if ema_length is not None else None
    return LoadedRun(run, *load_run(run, device, average), average)


@dataclass(frozen=True)
class Images:
    """Settings of the images to generate with a run."""

    run: LoadedRun
    prompts: Sequence[str]
    settings: SamplerSettings
    seed: int
    size_px: Size

    @property
    def batches(self) -> list[tuple[int, int]]:
        return spans(0, len(self.prompts), self.settings.batch)

    def about(self, index: int) -> dict[str, object]:
        """Return all inputs that determine an image, except its prompt."""
        run, size = self.run, self.size_px if isinstance(self.size_px, int) else list(self.size_px)
        details = {"run": str(run.path), "plan": run.parts.plan.hash, "step": run.step, "seed": self.seed}
        details |= {"ema_length": run.average.length} if run.average else {}
        parts = [("samplers", self.settings.method), ("guidances", self.settings.guidance.kind)]
        if any(not is_built_in(*part) for part in parts):
            details["plugins"] = record_of(parts)
        return {**details, "index": index, "size_px": size, **plain(self.settings)}

    def metadata(self, index: int) -> dict[str, str]:
        """Return the metadata to store inside an image file."""
        return {"prompt": self.prompts[index], "tintype": json.dumps(self.about(index))}

    def make(self, batch: tuple[int, int], on_step: Callable[[int], None]) -> Tensor:
        """Return the images of one of the `batches`, as uint8 [N, 3, height, width]."""
        first, last = batch
        return generate(
            self.run.parts,
            self.prompts[first:last],
            self.settings,
            seed=self.seed,
            size_px=self.size_px,
            first_index=first,
            on_step=on_step,
        )

    def counter(self, on_images: OnImages) -> Callable[[int], None]:
        """Return an `on_step` callback for `make` that reports the finished images, including fractions of images."""
        done, total = 0.0, len(self.prompts)

        def count_step(images: int) -> None:
            nonlocal done
            done += images * current().size / self.settings.steps  # the other ranks are as far as this one
            on_images(min(done, total), total)

        return count_step


def images_of(
    run: LoadedRun, prompts: Sequence[str], settings: SamplerSettings, count: int, seed: int, size_px: Size | None
) -> Images:
    """Return `count` images to generate for each prompt; raise if the model cannot generate images of this size."""
    parts = with_guides(run.path, run.parts, run.step, [settings.guidance.guide])
    run = replace(run, parts=parts)
    if settings.guidance.unbias:  # its mean velocity is taken of the training images
        RunRecord(run.path).check_identity("data", parts.source.identity)
    size_px = size_px or parts.plan.data.size_px
    unit = parts.tokenizer.stride_px * parts.plan.model.patch
    height, width = sides(size_px)
    if height % unit or width % unit:
        shown = f"{size_px}" if isinstance(size_px, int) else f"{width}x{height}"
        raise UserError(f"{option('size', shown)}: this model can only sample sizes that are multiples of {unit} px")
    if height == width:
        size_px = height
    return Images(run, [prompt for prompt in prompts for _ in range(count)], settings, seed, size_px)


def sample_run(
    run: Path,
    prompts: list[str],
    prompt_file: Path | None,
    out: Path,
    settings: SamplerSettings,
    *,
    count: int,
    seed: int,
    size_px: Size | None,
    device: str | None = None,
    ema_length: float | None = None,
    on_images: OnImages = lambda done, total: None,
) -> list[Path]:
    """Write `count` images for each prompt, and their contact sheet; return the paths, with the sheet last.

    Numbers continue after images of other commands; the same command overwrites its own images. Images from an average
    over another length have this length in their names. The ranks take turns in making the batches of a single process,
    and the first rank makes the sheet. In `on_images`, an unfinished image counts as a fraction.
    """
    prompts = [*prompts, *(_read_prompts(prompt_file) if prompt_file else [])]
    if not prompts:
        raise UserError(
            "no prompt is given", f"give prompts after the run's folder, or {option('prompt-file', 'FILE')}"
        )
    loaded = load_for_sampling(run, device, ema_length)
    plan, average = loaded.parts.plan, loaded.average
    agree_on_plan(plan, current(), sampler=plain(settings), prompts=prompts, count=count, seed=seed)
    refuse_other_steps(current().all_gather(loaded.step), run)
    wanted = images_of(loaded, prompts, settings, count, seed, size_px)
    with as_user_error(OSError, f"cannot write to {out}", f"choose another {option('out')}"):
        out.mkdir(parents=True, exist_ok=True)
    ending = f"-ema-{average.length!r}.png" if average else ".png"
    made = [(prompt, wanted.about(index)) for index, prompt in enumerate(wanted.prompts)]
    first_number = current().broadcast(_first_number(out, ending, made))
    written = [out / f"{first_number + index:04d}{ending}" for index in range(len(made))]
    count_step = wanted.counter(on_images)

    def make(batch: tuple[int, int]) -> Tensor:
        images = wanted.make(batch, count_step)
        for index, image in enumerate(images, batch[0]):
            save_png(image, written[index], wanted.metadata(index))
        return images

    with watch_ranks(current(), plan.run.watchdog):
        images = current().share(wanted.batches, make)
    sheet = out / f"contact-sheet{f'-{first_number:04d}' if first_number else ''}{ending}"
    if images is not None:
        save_png(contact_sheet(images), sheet, {SHEET: f"{len(images)} images"})
    return [*written, sheet]


_SIZE = re.compile(r"([1-9][0-9]*)(?:[x×]([1-9][0-9]*))?")


def read_size(text: str) -> Size:
    """Return the size given by `--size`, which is the side of square images, or WIDTHxHEIGHT."""
    if (found := _SIZE.fullmatch(text.strip())) is None:
        raise UserError(
            f"{option('size', text)} is not a valid size",
            "give the side of a square in pixels (512), or WIDTHxHEIGHT (832x1248)",
        )
    first, second = found.groups()
    return int(first) if second is None else (int(second), int(first))


Made = tuple[str, dict[str, object]]
"""The prompt of an image, and all other inputs that determine the image."""


def _first_number(out: Path, ending: str, images: Sequence[Made]) -> int:
    """Return the number of the first image, which the same command used before, or else the next free number."""
    there = {}
    for path in out.glob(f"*{ending}"):
        number = path.name.removesuffix(ending)
        if number.isdecimal() and len(number) >= 4:
            there[int(number)] = _read_made(path)
    wanted = [_same(made) for made in images]

    def fits(first: int) -> bool:
        return all(there.get(first + index, made) == made for index, made in enumerate(wanted))

    starts = sorted(number for number, made in there.items() if made == wanted[0])
    return next((first for first in starts if fits(first)), max(there, default=-1) + 1)


def _read_made(path: Path) -> Made | None:
    """Return the inputs from which an image was made; None if the file does not record them."""
    try:
        with open_image(read_file(path), path.name) as image:
            return _same((str(image.info["prompt"]), dict(json.loads(image.info["tintype"]))))
    except (UserError, OSError, KeyError, TypeError, ValueError):
        return None


def _same(made: Made) -> Made:
    """Remove inputs that do not change the image, such as the batch and the notation of the run's path."""
    prompt, about = made
    return prompt, {key: value for key, value in about.items() if key not in ("run", "batch")}


def _read_prompts(path: Path) -> list[str]:
    with as_user_error((OSError, UnicodeDecodeError), f"cannot read the prompts in {path}"):
        lines = path.read_text(encoding="utf-8").splitlines()
    return [line.strip() for line in lines if line.strip()]


def as_image(image_CHW: Tensor) -> Image.Image:
    return Image.fromarray(image_CHW.permute(1, 2, 0).cpu().numpy())


def save_png(image_CHW: Tensor, path: Path, metadata: Mapping[str, str] | None = None, fence: Fence = OPEN) -> None:
    text = PngImagePlugin.PngInfo()
    for key, value in (metadata or {}).items():
        text.add_itxt(key, value)
    content = io.BytesIO()
    as_image(image_CHW).save(content, "PNG", pnginfo=text)
    write_bytes(path, content.getvalue(), fence=fence)


def contact_sheet(image_NCHW: Tensor, gap_px: int = 2) -> Tensor:
    """Arrange all images on a nearly square sheet, as uint8 [3, height, width]."""
    count, channels, height, width = image_NCHW.shape
    columns = math.ceil(math.sqrt(count))
    rows = math.ceil(count / columns)
    sheet = torch.full((channels, rows * (height + gap_px) - gap_px, columns * (width + gap_px) - gap_px), 255).byte()
    for index, image in enumerate(image_NCHW):
        top, left = (index // columns) * (height + gap_px), (index % columns) * (width + gap_px)
        sheet[:, top : top + height, left : left + width] = image
    return sheet
