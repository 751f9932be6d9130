"""The base class of all importers, and their shared constants."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tintype.data.image_file import LIMITS, Limits
from tintype.wording import option

FOLDER = "folder"
"""Column with the first folder on the path to an image, or the name of the image's split. Many importers have it."""
MOST_TEXT_BYTES = 1 << 22
"""Maximum bytes of a caption, or of a JSON object in a sidecar file."""
MOST_TABLE_BYTES = 1 << 30
"""Maximum bytes of a metadata file or an index. Metadata files and indices are read into memory as a whole."""
Kinds = Mapping[str, Collection[str]]
"""Columns, each with the kinds of its values."""


@dataclass(frozen=True)
class Listed:
    """JSON Lines files and the folders of their images. Paths are relative to the source."""

    image: str
    """JSON key of each line that has the image's path, relative to the folder of images."""
    files: Mapping[str, str]
    """JSON Lines files, each mapped to its folder of images."""


@dataclass(frozen=True)
class Reading:
    limits: Limits = LIMITS
    follow_links: bool = False
    """Whether to follow links to files outside of the folder."""
    format: str | None = None
    """Format of the source, a key of `FORMATS`; by default the format is detected from the files."""
    listed: Listed | None = None
    """File names of the format `listed`."""


@dataclass(frozen=True)
class Item:
    """An image as it is stored in the source. If `content` is None, `problem` says why the image could not be read."""

    source: str
    """File or row from which the item was read."""
    content: bytes | None = None
    values: Mapping[str, object] = field(default_factory=dict)
    """Values of the requested columns, which are texts, numbers, booleans, None, or other JSON values."""
    problem: str = ""


class Importer(ABC):
    """Reads a source, whose columns are known before an image is read. Items are yielded from any position on."""

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
        """Text columns, from which captions and splits can be taken."""
        self.kinds = kinds
        """Columns that can become attributes. Without types, as in JSON, a column has all kinds among its values."""
        self.count = count
        self.usual_captions = usual_captions(self.columns) if usual is None else usual
        """Kinds of captions and their columns, used if the user names no columns."""

    @property
    def no_captions(self) -> str:
        """Return an error text with the reason and the fix for empty `usual_captions`."""
        there = ", ".join(self.columns) or "no column of text"
        return (
            f"none of its columns is known for captions; say which: {option('caption', 'long=COLUMN')}. It has {there}"
        )

    @property
    def fingerprint(self) -> list[list[str | int]]:
        """Path, size and modification time of each file. An import resumes only if they are unchanged."""
        stats = [(file, file.stat()) for file in self._files]
        return [[str(file), stat.st_size, stat.st_mtime_ns] for file, stat in stats]

    @abstractmethod
    def items(self, columns: Collection[str], first: int) -> Iterator[Item]:
        """Yield the items from index `first` on, with their values in these columns."""


def usual_captions(columns: Collection[str]) -> dict[str, str]:
    """Map `long` and `short` to columns of that name, also with `caption_`; else map `long` to `caption` or `text`."""
    pairs = {"caption_long": "long", "long": "long", "caption_short": "short", "short": "short"}
    for usual in (pairs, {"text": "long", "caption": "long"}):
        if found := {name: column for column, name in usual.items() if column in columns}:
            return found  # if two columns have captions of one kind, the later column is used
    return {}
