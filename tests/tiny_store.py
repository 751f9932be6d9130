"""Small sets of images, and stores of them."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

from tintype.data.store import layout
from tintype.data.store.importing import Imported, ImportOptions, Progress, import_images
from tintype.data.store.layout import AboutStore
from tintype.runtime.files import checksum_of
from tintype.runtime.interrupt import Interrupt


def image_file(seed: int, size: tuple[int, int] = (24, 20), form: str = "png", **options: Any) -> bytes:
    """Colours that change slowly: JPEG and resizing leave them nearly as they are."""
    generator = torch.Generator().manual_seed(seed)
    coarse = torch.rand(1, 3, 3, 3, generator=generator) * 255
    pixels_HWC = torch.nn.functional.interpolate(coarse, (size[1], size[0]), mode="bilinear")[0].permute(1, 2, 0)
    buffer = io.BytesIO()
    Image.fromarray(pixels_HWC.round().to(torch.uint8).contiguous().numpy()).save(buffer, form, **options)
    return buffer.getvalue()


def parquet_of(path: Path, images: Sequence[bytes | None], **columns: Sequence[str | None]) -> Path:
    import pyarrow
    from pyarrow import parquet

    structs = [{"bytes": image, "path": None} for image in images]
    parquet.write_table(pyarrow.table({"image": structs, **columns}), path, row_group_size=4)
    return path


def captioned(path: Path, count: int, **columns: Sequence[str | None]) -> Path:
    return parquet_of(
        path,
        [image_file(index) for index in range(count)],
        caption_long=[f"a long caption of number {index}" for index in range(count)],
        caption_short=[f"number {index}" for index in range(count)],
        **columns,
    )


def imported(
    source: Path, out: Path, options: ImportOptions | None = None, on_progress: Callable[[Progress], None] | None = None
) -> AboutStore:
    return tried(source, out, options, on_progress).about


def imported_earlier(source: Path, out: Path, options: ImportOptions) -> AboutStore:
    """As versions did that let captions have the names of other columns."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(layout, "RESERVED", ())
        return imported(source, out, options)


def tried(
    source: Path,
    out: Path,
    options: ImportOptions | None = None,
    on_progress: Callable[[Progress], None] | None = None,
    interrupt: Interrupt | None = None,
) -> Imported:
    told = on_progress or (lambda progress: None)
    options = replace(options or ImportOptions(), most_bad=1.0)  # of so few, one is many
    return import_images(source, out, options, interrupt or Interrupt(), told)


def tiny_store(folder: Path, count: int = 60, name: str = "store", eval_share: float = 0.4) -> Path:
    source = captioned(folder / f"{name}.parquet", count)
    imported(source, folder / name, ImportOptions(eval_share=eval_share))
    return folder / name


def rewrite_about(store: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Change `store.json` as someone does who knows how to write a new checksum."""
    content = json.loads((store / "store.json").read_text())
    del content["checksum"]
    change(content)
    (store / "store.json").write_text(json.dumps({**content, "checksum": checksum_of(content)}))
