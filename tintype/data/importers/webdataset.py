"""WebDataset tars: members of one name up to the first dot are a record, in the order of their first members.

The part after that dot says what a member is: an image's ending; `txt` and `NAME.txt`, the columns `txt` and `NAME`;
`json`, whose entries are columns, the strings among them also of captions. Nothing is unpacked to the disk. What cannot
be a record (links, devices, paths that lead out, records without an image) is an item with a problem.
"""

from __future__ import annotations

import tarfile
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tintype.data import tar_file
from tintype.data.folders import files_in
from tintype.data.image_file import too_large
from tintype.data.image_sets import SUFFIXES
from tintype.data.importers.beside import PLAIN, UnreadableError, entries_of, side_columns, text_of
from tintype.data.importers.importer import MOST_TEXT_BYTES, Importer, Item, Reading, leads_out
from tintype.data.store.attributes import add_kinds

_JSON = "json"


@dataclass
class _Sample:
    tar: Path
    name: str
    members: dict[str, tuple[int, int]] = field(default_factory=dict)
    """Start and size of each member, by what follows the first dot."""
    problem: str = ""

    @property
    def image(self) -> str | None:
        """Return the member that is the image: one with a plain ending, or else the only one that ends so."""
        plain = [ending for ending in self.members if f".{ending}" in SUFFIXES]
        some = plain or [ending for ending in self.members if ending.endswith(SUFFIXES)]
        return some[0] if len(some) == 1 else None

    @property
    def source(self) -> str:
        return f"{self.tar.name}:{self.name}"


def open_webdataset(path: Path, reading: Reading) -> WebDatasetImporter | None:
    """Open a file, or a folder with such files at any depth, in the order of their names."""
    if path.is_file():
        return WebDatasetImporter([path], reading.limits.bytes) if path.suffix.lower() == ".tar" else None
    files = files_in(path, (".tar",), reading.follow_links)
    return WebDatasetImporter(files, reading.limits.bytes) if files else None


class WebDatasetImporter(Importer):
    def __init__(self, files: Sequence[Path], most_bytes: int) -> None:
        self._most_bytes = most_bytes
        self._samples = [sample for file in files for sample in _index(file)]
        self._texts = {column for sample in self._samples for one in sample.members if (column := _column(one))}
        found = side_columns(files[0], self._texts, _entries(self._samples))
        super().__init__(files, found.columns, found.kinds, len(self._samples), found.usual)

    def items(self, columns: Collection[str], first: int) -> Iterator[Item]:
        return (self._item(sample, set(columns)) for sample in self._samples[first:])

    def _item(self, sample: _Sample, columns: set[str]) -> Item:
        image = sample.image
        if sample.problem:
            return Item(sample.source, problem=sample.problem)
        if image is None:
            endings = ", ".join(sample.members)
            return Item(sample.source, problem=f"it has no image, or more than one: its members are {endings}")
        try:
            content, values = _read(sample, image, self._most_bytes), self._values_of(sample, columns)
            return Item(f"{sample.source}.{image}", content, values)
        except UnreadableError as error:
            return Item(sample.source, problem=f"it or its caption cannot be read: {error}")

    def _values_of(self, sample: _Sample, columns: set[str]) -> dict[str, object]:
        found: dict[str, object] = dict.fromkeys(columns)
        if _JSON in sample.members and columns - self._texts:
            entries = entries_of(_read(sample, _JSON, MOST_TEXT_BYTES), _JSON)
            found.update({key: value for key, value in entries.items() if key not in self._texts})
        for ending in sample.members:
            if (column := _column(ending)) is not None and column in columns:
                found[column] = text_of(_read(sample, ending, MOST_TEXT_BYTES), ending)
        return found


def _index(path: Path) -> list[_Sample]:
    """Return where each member lies, from the headers alone."""
    samples: dict[str, _Sample] = {}
    refused: list[_Sample] = []
    for member in tar_file.members(path):
        if reason := _refusal(member):
            refused.append(_Sample(path, member.name, problem=reason))
        elif not any(part.startswith(".") and part != "." for part in member.name.split("/")):
            _take(samples, path, member)
    return [*samples.values(), *refused]


def _take(samples: dict[str, _Sample], path: Path, member: tarfile.TarInfo) -> None:
    name = member.name.removeprefix("./")
    folder, slash, base = name.rpartition("/")
    stem, _, ending = base.partition(".")
    key, ending = f"{folder}{slash}{stem}", ending.lower()
    sample = samples.setdefault(key, _Sample(path, key))
    if ending in sample.members:
        sample.problem = f"it has two members .{ending}"
    sample.members[ending] = (member.offset_data, member.size)


def _refusal(member: tarfile.TarInfo) -> str:
    if member.issym() or member.islnk():
        return f"it is a link to {member.linkname}; links are not followed"
    if not tar_file.is_plain(member):
        return "it is no plain file (a device, a pipe, or sparse)"
    return "its path leads out of the tar" if leads_out(member.name) else ""


def _column(ending: str) -> str | None:
    if ending == PLAIN:
        return PLAIN
    return ending.removesuffix(".txt") if ending.endswith(".txt") else None


def _entries(samples: Sequence[_Sample]) -> dict[str, set[str]]:
    """Return the names of all entries and their kinds; an unreadable member is reported with its record."""
    found: dict[str, set[str]] = {}
    for sample in samples:
        if _JSON in sample.members:
            try:
                add_kinds(found, entries_of(_read(sample, _JSON, MOST_TEXT_BYTES), _JSON))
            except UnreadableError:
                continue
    return found


def _read(sample: _Sample, ending: str, most: int) -> bytes:
    start, size = sample.members[ending]
    if size > most:
        raise UnreadableError(too_large(ending, size, most))
    return tar_file.content(sample.tar, start, size)
