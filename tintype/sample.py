"""`tintype sample`: images from prompts, on disk."""

from __future__ import annotations

import json
from pathlib import Path

from torch import Tensor

from tintype.errors import UserError
from tintype.generate import SamplerSettings, cut, generate
from tintype.images import contact_sheet, save_png
from tintype.settings import plain
from tintype.train.folder import RunFolder
from tintype.train.load import load_run
from tintype.train.reconstruct import reconstruction
from tintype.world import current, refuse_other_steps


def sample_run(
    run: Path,
    prompts: list[str],
    prompt_file: Path | None,
    out: Path,
    settings: SamplerSettings,
    *,
    count: int,
    seed: int,
    size_px: int | None,
    device: str | None = None,
    ema_length: float | None = None,
) -> list[Path]:
    """Writes `count` images for each prompt and a contact sheet; returns the paths, the sheet last.

    Those of an average of another length carry it in their names. Ranks make batches in turn, the same ones as a
    process alone, and write their images; the first rank makes the sheet.
    """
    prompts = [*prompts, *(_read_prompts(prompt_file) if prompt_file else [])]
    if not prompts:
        raise UserError("no prompt: give prompts after the run's folder, or --prompt-file FILE")
    average = reconstruction(run, ema_length) if ema_length is not None else None
    parts, step = load_run(run, device, average)
    refuse_other_steps(current().tell(step), run)
    if settings.guidance.unbias:  # its mean velocity is taken of the training images
        RunFolder(run).check_identity("data", parts.source.identity)
    size_px = size_px or parts.plan.data.size_px
    unit = parts.tokenizer.stride_px * parts.plan.model.patch
    if size_px % unit:
        raise UserError(f"--size {size_px}: this model makes sizes that are multiples of {unit}")
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"cannot write to {out}: {error.strerror}; choose another --out") from None
    repeated = [prompt for prompt in prompts for _ in range(count)]
    behind = f"-ema-{average.length!r}" if average else ""
    written = [out / f"{index:04d}{behind}.png" for index in range(len(repeated))]
    details = {"run": str(run), "plan": parts.plan.hash, "step": step, "seed": seed}
    details |= {"ema_length": average.length} if average else {}

    def make(batch: tuple[int, int]) -> Tensor:
        first, last = batch
        images = generate(parts, repeated[first:last], settings, seed=seed, size_px=size_px, first_index=first)
        for index, image in enumerate(images, first):
            about = {**details, "index": index, "size_px": size_px, **plain(settings)}
            save_png(image, written[index], {"prompt": repeated[index], "tintype": json.dumps(about)})
        return images

    images = current().share(cut(0, len(repeated), settings.batch), make)
    sheet = out / f"contact-sheet{behind}.png"
    if images is not None:
        save_png(contact_sheet(images), sheet)
    return [*written, sheet]


def _read_prompts(path: Path) -> list[str]:
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"cannot read the prompts in {path}: {error}") from None
    return [line.strip() for line in lines if line.strip()]
