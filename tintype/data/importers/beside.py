"""Images with captions in sidecar files, on disk or in a tar. A sidecar file has the image's name with another suffix.

`dog.txt` becomes the column `txt`, `dog.short.txt` the column `short`, and so on for any name between the dots. The
keys of `dog.json` become columns of the same names; its strings can be captions.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from tintype.data import tar_file
from tintype.data.image_file import BadImageError, read_file, too_large
from tintype.data.image_sets import SUFFIXES
from tintype.data.importers.importer import FOLDER, MOST_TEXT_BYTES, Importer, Item, usual_captions
from tintype.data.store.attributes import add_kinds
from tintype.errors import UserError
from tintype.runtime.files import Json, parse_object
from tintype.wording import option

_PLAIN, _JSON = "txt", "json"


class UnreadableError(Exception):
    """A sidecar file or a column cannot be used. The message gives the reason."""


def text_of(content: bytes, name: str) -> str:
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UnreadableError(f"{name} is not text in UTF-8: {error}") from None


def entries_of(content: bytes, name: str) -> dict[str, Json]:
    try:
        return parse_object(text_of(content, name))
    except ValueError as error:
        raise UnreadableError(f"{name} {error}") from None


@dataclass(frozen=True, slots=True)
class Member:
    """A file on disk, or a member of a tar."""

    name: str
    path: Path
    start: int = 0
    size: int | None = None

    def read(self, most: int) -> bytes:
        if self.size is None:
            return read_file(self.path, most)
        if self.size > most:
            raise UnreadableError(too_large(self.name, self.size, most))
        return tar_file.content(self.path, self.start, self.size)

    def text(self) -> str:
        return text_of(self.read(MOST_TEXT_BYTES), self.name)

    def entries(self) -> dict[str, Json]:
        return entries_of(self.read(MOST_TEXT_BYTES), self.name)


@dataclass
class Sample:
    source: str
    members: dict[str, Member] = field(default_factory=dict)
    """The image and its sidecar files, by the file name's rest after the stem, such as `png`, `txt` or `short.txt`."""
    known: dict[str, str | None] = field(default_factory=dict)
    """Values of columns that do not come from sidecar files."""
    problem: str = ""

    @property
    def image(self) -> str | None:
        """Return the name ending of the image; None unless there is exactly one.

        A plain ending such as `png` takes precedence over an ending such as `left.png`.
        """
        plain = [ending for ending in self.members if f".{ending}" in SUFFIXES]
        some = plain or [ending for ending in self.members if ending.endswith(SUFFIXES)]
        return some[0] if len(some) == 1 else None


class SideImporter(Importer):
    """Reads captions from text files and JSON keys with a known caption name. On a clash, the text file wins."""

    def __init__(
        self, source: Path, files: Sequence[Path], samples: Sequence[Sample], most_bytes: int, folder: bool = False
    ) -> None:
        self._samples, self._most_bytes = samples, most_bytes
        self._texts = sorted({column for sample in samples for one in sample.members if (column := _column(one))})
        entries: dict[str, set[str]] = {}
        for sample in samples:
            if _JSON in sample.members:
                with suppress(OSError, UnreadableError, BadImageError):  # reported with its image
                    add_kinds(entries, sample.members[_JSON].entries())
        strings = {name for name, kinds in entries.items() if "text" in kinds}
        if double := sorted(strings.intersection(self._texts)):
            raise UserError(
                f"{source}: {', '.join(double)} names both .txt files and keys in .json files, but "
                f"a caption name must be unique"
            )
        own = [FOLDER] if folder else []
        kinds = dict(sorted(entries.items())) | {name: {"text"} for name in (*self._texts, *own)}
        plain_first = sorted(self._texts, key=lambda name: name != _PLAIN)
        usual = usual_captions(strings) | {"long" if name == _PLAIN else name: name for name in plain_first}
        super().__init__(files, [*sorted({*self._texts, *strings}), *own], kinds, len(samples), usual)

    @property
    def no_captions(self) -> str:
        image = next((one.members[one.image].name for one in self._samples if one.image), "dog.jpg")
        in_folders = any(sample.known.get(FOLDER) for sample in self._samples)
        others = [column for column in self.columns if column != FOLDER or in_folders]
        column = option("caption", f"long={others[0]}") if others else ""
        way = f", or name another column ({', '.join(others)}): {column}" if others else ""
        return f"no .txt beside the images; write the caption of {image} to {Path(image).with_suffix('.txt')}{way}"

    def items(self, columns: Collection[str], first: int) -> Iterator[Item]:
        return (self._item(sample, set(columns)) for sample in self._samples[first:])

    def _item(self, sample: Sample, columns: set[str]) -> Item:
        if sample.problem:
            return Item(sample.source, problem=sample.problem)
        if sample.image is None:
            endings = ", ".join(sample.members)
            return Item(sample.source, problem=f"the sample must have exactly one image; its members are {endings}")
        try:
            content = sample.members[sample.image].read(self._most_bytes)
            return Item(sample.source, content, self._values_of(sample, columns))
        except (OSError, UnreadableError, BadImageError) as error:
            return Item(sample.source, problem=f"the image or its caption cannot be read: {error}")

    def _values_of(self, sample: Sample, columns: set[str]) -> dict[str, object]:
        found: dict[str, object] = {**dict.fromkeys(columns), **sample.known}
        if _JSON in sample.members and columns.difference(self._texts, sample.known):
            for key, value in sample.members[_JSON].entries().items():
                if key not in self._texts and (key not in sample.known or isinstance(value, str)):
                    found[key] = value
        for ending, member in sample.members.items():
            if (column := _column(ending)) and column in columns:
                found[column] = member.text()
        return found


def _column(ending: str) -> str | None:
    """Return the column for a text file, given the part of its name after the image's stem; None for other files."""
    if ending == _PLAIN:
        return _PLAIN
    return ending.removesuffix(".txt") if ending.endswith(".txt") else None
