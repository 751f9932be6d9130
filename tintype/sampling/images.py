"""Images on disk: PNGs with their settings inside, and contact sheets."""

from __future__ import annotations

import io
import math
from collections.abc import Mapping
from pathlib import Path

import torch
from PIL import Image, PngImagePlugin
from torch import Tensor

from tintype.runtime.files import write_bytes


def save_png(image_CHW: Tensor, path: Path, metadata: Mapping[str, str] | None = None) -> None:
    text = PngImagePlugin.PngInfo()
    for key, value in (metadata or {}).items():
        text.add_itxt(key, value)
    content = io.BytesIO()
    Image.fromarray(image_CHW.permute(1, 2, 0).cpu().numpy()).save(content, "PNG", pnginfo=text)
    write_bytes(path, content.getvalue())


def contact_sheet(image_NCHW: Tensor, gap_px: int = 2) -> Tensor:
    """Put all images on one sheet, nearly square: uint8 [3, height, width]."""
    count, channels, height, width = image_NCHW.shape
    columns = math.ceil(math.sqrt(count))
    rows = math.ceil(count / columns)
    sheet = torch.full((channels, rows * (height + gap_px) - gap_px, columns * (width + gap_px) - gap_px), 255).byte()
    for index, image in enumerate(image_NCHW):
        top, left = (index // columns) * (height + gap_px), (index % columns) * (width + gap_px)
        sheet[:, top : top + height, left : left + width] = image
    return sheet
