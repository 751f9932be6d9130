"""The base of all importers, and what they share."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tintype.data.image_file import LIMITS, Limits
from tintype.wording import option

FOLDER = "folder"
"""A column that many importers have: the first folder on the path of an image, or the name of its split."""
MOST_TEXT_BYTES = 1 << 22
"""Most bytes of a caption or of a JSON object beside an image."""
MOST_TABLE_BYTES = 1 << 30
"""Most bytes of a metadata file or an index, which is read as a whole."""
Kinds = Mapping[str, Collection[str]]
"""Columns, and the kinds of the values in each."""


@dataclass(frozen=True)
class Listed:
    """Names of JSON Lines files and of the folders with their images, seen from the source."""

    image: str
    """The entry of a line that names its image, seen from the folder of images."""
    files: Mapping[str, str]
    """Files, and the folder of images of each."""


@dataclass(frozen=True)
class Reading:
    """Limits for reading a source."""

    limits: Limits = LIMITS
    follow_links: bool = False
    """Whether to read files outside the folder where links lead there."""
    format: str | None = None
    """The format that the source has, a key of `FORMATS`; by default that of the files that are found in it."""
    listed: Listed | None = None
    """Names of the files, for the format `listed`."""


@dataclass(frozen=True)
class Item:
    """An image as it lies in the source. Where `content` is None, `problem` says why it could not be read."""

    source: str
    """File or row of the item."""
    content: bytes | None = None
    values: Mapping[str, object] = field(default_factory=dict)
    """The requested columns: texts, numbers, truths, None, and whatever JSON holds."""
    problem: str = ""


class Importer(ABC):
    """Knows its columns before any image is read, and yields items in a fixed order, from any position."""

    def __init__(
        self,
        files: Sequence[Path],
        columns: Sequence[str],
        kinds: Kinds,
        count: int,
        usual: Mapping[str, str] | None = None,
    ) -> None:
        self._files = files
        self.columns = list(dict.fromkeys(columns))
        """The columns of text that captions and splits can be taken from."""
        self.kinds = kinds
        """The columns that attributes can be taken from. There is one kind where the source states it; where it does
        not, as in JSON, there are all that the values have."""
        self.count = count
        self.usual_captions = usual_captions(self.columns) if usual is None else usual
        """Kinds of captions and their columns, where the user names none."""

    @property
    def no_captions(self) -> str:
        """Return why `usual_captions` is empty, and what to do."""
        there = ", ".join(self.columns) or "no column of text"
        return (
            f"none of its columns is known for captions; say which: {option('caption', 'long=COLUMN')}. It has {there}"
        )

    @property
    def fingerprint(self) -> list[list[str | int]]:
        """Name, size and time of each file: an import resumes from the same source only."""
        stats = [(file, file.stat()) for file in self._files]
        return [[str(file), stat.st_size, stat.st_mtime_ns] for file, stat in stats]

    @abstractmethod
    def items(self, columns: Collection[str], first: int) -> Iterator[Item]:
        """Yield the items from number `first` on, with the values of these columns."""


def usual_captions(columns: Collection[str]) -> dict[str, str]:
    """Return `long` and `short` from the columns of these names, or from caption_long and caption_short.

    Where there is neither, `long` is from `caption` or `text`.
    """
    pairs = {"caption_long": "long", "long": "long", "caption_short": "short", "short": "short"}
    for usual in (pairs, {"text": "long", "caption": "long"}):
        if found := {name: column for column, name in usual.items() if column in columns}:
            return found  # of two columns for one kind, the later
    return {}
