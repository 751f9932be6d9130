"""The doors through which images come into a store: one file for each form in which sets lie on disks.

A door knows its columns before it is gone through, and gives items in a fixed order, from any place. To add one, write
a file with an `open_…(path, reading)` that returns a `Door`, or None where the path is nothing for it, and name it in
`_doors`. A door reads no image of more bytes than `reading` allows, and follows no link out of the folder.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from tintype.data.image_file import LIMITS, Limits
from tintype.errors import UserError

MOST_TEXT_BYTES = 1 << 22
"""Of a caption or a JSON object beside an image."""
MOST_TABLE_BYTES = 1 << 30
"""Of a metadata file or an index, which is read as a whole."""


@dataclass(frozen=True)
class Reading:
    """How a source is read."""

    limits: Limits = LIMITS
    follow_links: bool = False
    """Whether to read what lies outside the folder, where links lead there."""


@dataclass(frozen=True)
class Item:
    """An image as it lies in the source. What is None could not be read, and `problem` says why."""

    source: str
    """Its file or row."""
    content: bytes | None
    texts: Mapping[str, str | None] = field(default_factory=dict)
    """The columns that were asked for."""
    problem: str = ""
    values: Mapping[str, Any] = field(default_factory=dict)
    """Those that attributes are taken from, as the source has them: texts, numbers, truths, and whatever JSON holds."""


class Importer(Protocol):
    @property
    def columns(self) -> Sequence[str]:
        """The columns of text that captions and splits can be taken from."""

    @property
    def kinds(self) -> Mapping[str, Collection[str]]:
        """The columns that attributes can be taken from, and the kinds of their values: one where the source says it,
        and where it does not, as in JSON, all that its values have."""

    @property
    def usual_captions(self) -> Mapping[str, str]:
        """Kinds of captions and their columns, as one would take them where nothing else is said."""

    @property
    def count(self) -> int: ...

    @property
    def fingerprint(self) -> list[list[str | int]]:
        """Name, size and time of each file: an import goes on with the same source only."""

    def items(self, columns: Sequence[str], first: int, attributes: Sequence[str] = ()) -> Iterator[Item]:
        """The items from `first` on, with these columns of text, and these for attributes."""


def usual_captions(columns: Sequence[str]) -> dict[str, str]:
    """`long` and `short` from the columns of these names, or caption_long and caption_short; with one column only,
    `long` from `caption` or `text`."""
    found = {}
    for name, candidates in {"long": ("long", "caption_long"), "short": ("short", "caption_short")}.items():
        if column := next((one for one in candidates if one in columns), None):
            found[name] = column
    if not found and (column := next((one for one in ("caption", "text") if one in columns), None)):
        found["long"] = column
    return found


def first_folder(file: Path, source: Path) -> str | None:
    """The first folder on the way to a file, for splits that lie so."""
    parts = file.relative_to(source).parts
    return parts[0] if len(parts) > 1 else None


def leads_out(name: str) -> bool:
    """Whether a path in a set's own files points to somewhere else."""
    return name.startswith(("/", "\\")) or ".." in name.replace("\\", "/").split("/")


def fingerprint(files: Sequence[Path]) -> list[list[str | int]]:
    stats = [(file, file.stat()) for file in files]
    return [[str(file), stat.st_size, stat.st_mtime_ns] for file, stat in stats]


def open_importer(path: Path, reading: Reading | None = None) -> Importer:
    from tintype.data.importers.scenes import open_scenes

    if (scenes := open_scenes(path)) is not None:
        return scenes
    if not path.exists():
        raise UserError(f"{path} does not exist; give {KNOWN}")
    reading = reading or Reading()
    opened = [importer for open_ in _importers() if (importer := open_(path, reading)) is not None]
    if not opened:
        raise UserError(f"{path} holds nothing that can be imported; give {KNOWN}")
    if len(opened) > 1:
        raise UserError(f"{path} holds files of several kinds; give {KNOWN}, with one kind in it")
    return opened[0]


KNOWN = (
    "a .parquet or .tar file, a folder of them, a folder of images with captions in .txt, .json or metadata files, "
    "a data set saved by `save_to_disk`, MDS shards, or `scenes`"
)


def _importers() -> list[Callable[[Path, Reading], Importer | None]]:
    from tintype.data.importers.folder import open_folder
    from tintype.data.importers.mds import open_mds
    from tintype.data.importers.metadata import open_metadata
    from tintype.data.importers.parquet import open_parquet
    from tintype.data.importers.saved import open_saved
    from tintype.data.importers.webdataset import open_webdataset

    return [open_parquet, open_webdataset, open_saved, open_mds, open_metadata, open_folder]
