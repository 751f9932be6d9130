"""Importers read foreign image formats into a store. There is one module for each format.

To add an importer, add a function `open_…(path, reading)` to `_IMPORTERS`; a plugin lists its functions in `IMPORTERS`.
The function returns None if the path has another format. An importer must not read images with more bytes than
`reading` allows, or follow links out of the folder.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

from tintype.data.importers.coco import open_coco
from tintype.data.importers.folder import open_folder
from tintype.data.importers.importer import Importer, Reading
from tintype.data.importers.listed import open_listed
from tintype.data.importers.mds import open_mds
from tintype.data.importers.metadata import open_metadata
from tintype.data.importers.parquet import open_parquet
from tintype.data.importers.saved import open_saved
from tintype.data.importers.scenes import open_scenes
from tintype.data.importers.webdataset import open_webdataset
from tintype.errors import UserError
from tintype.plugins.load import added
from tintype.plugins.registry import declare

Open: TypeAlias = Callable[[Path, Reading], Importer | None]
_IMPORTERS: tuple[Open, ...] = (
    open_parquet,
    open_webdataset,
    open_saved,
    open_mds,
    open_metadata,
    open_folder,
)
declare("importers", [open_.__name__ for open_ in (open_scenes, *_IMPORTERS)], None)
_KNOWN = (
    "a .parquet or .tar file, a folder of them, a folder of images with captions in .txt, .json or metadata files, "
    "a data set saved by `save_to_disk`, MDS shards, or `scenes`"
)
FORMATS: dict[str, Callable[[Path, Reading], Importer | None]] = {
    "parquet": open_parquet,
    "webdataset": open_webdataset,
    "coco": open_coco,
    "listed": open_listed,
}
"""Formats that a preset can name. For such a preset, files of other formats in the folder are skipped."""


def open_importer(path: Path, reading: Reading | None = None) -> Importer:
    """Return the importer that can read the path; raise unless exactly one importer can."""
    if (scenes := open_scenes(path)) is not None:
        return scenes
    if reading is not None and reading.format is not None:
        return _open_as(path, reading.format, reading)
    if not path.exists():
        raise UserError(f"{path} does not exist", f"give {_KNOWN}")
    openers: tuple[Open, ...] = (*_IMPORTERS, *(one.part for one in added("importers").values()))
    opened = [found for open_ in openers if (found := open_(path, reading or Reading())) is not None]
    if not opened:
        raise UserError(f"{path} contains no images that can be imported", f"give {_KNOWN}")
    if len(opened) > 1:
        raise UserError(f"{path} contains files of several formats", f"give {_KNOWN}, with files of one format")
    return opened[0]


def _open_as(path: Path, form: str, reading: Reading) -> Importer:
    if not path.exists():
        raise UserError(f"{path} does not exist")
    if (opened := FORMATS[form](path, reading)) is None:
        raise UserError(f"{path} contains no files of the format {form}")
    return opened
