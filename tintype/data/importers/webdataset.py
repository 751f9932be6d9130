"""WebDataset tars: members of one name up to the first dot are a record, in the order of their first members.

The part behind that dot says what a member is: an image's ending; `txt` and `NAME.txt`, the columns `txt` and `NAME`;
`json`, whose entries are columns, the strings among them also of captions. Nothing is unpacked to the disk. What a
record cannot be made of (links, devices, paths that lead out, records without an image) is an item too, so that it is
told of.
"""

from __future__ import annotations

import tarfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tintype.data.folders import files_in
from tintype.data.image_file import too_large
from tintype.data.image_sets import SUFFIXES, refuse_cut, refuse_rest
from tintype.data.importers import MOST_TEXT_BYTES, Item, Reading, fingerprint, leads_out
from tintype.data.importers.beside import (
    PLAIN,
    UnreadableError,
    captions_beside,
    entries_of,
    kinds_beside,
    strings_in,
    text_of,
)
from tintype.data.store.attributes import add_kinds
from tintype.errors import UserError

_JSON = "json"
_PLAIN_FILES = (tarfile.REGTYPE, tarfile.AREGTYPE, tarfile.CONTTYPE)


@dataclass(frozen=True)
class _Member:
    start: int
    size: int


@dataclass
class _Sample:
    tar: Path
    name: str
    members: dict[str, _Member] = field(default_factory=dict)
    """By what stands behind the first dot."""
    problem: str = ""

    @property
    def image(self) -> str | None:
        """The member that is the image: one with a plain ending, or else the only one with an ending of that kind."""
        plain = [ending for ending in self.members if f".{ending}" in SUFFIXES]
        some = plain or [ending for ending in self.members if ending.endswith(SUFFIXES)]
        return some[0] if len(some) == 1 else None

    @property
    def source(self) -> str:
        return f"{self.tar.name}:{self.name}"


def open_webdataset(path: Path, reading: Reading) -> WebDatasetImporter | None:
    """A file, or a folder with such files at any depth, in the order of their names."""
    if path.is_file():
        return WebDatasetImporter([path], reading.limits.bytes) if path.suffix.lower() == ".tar" else None
    files = files_in(path, (".tar",), reading.follow_links)
    return WebDatasetImporter(files, reading.limits.bytes) if files else None


class WebDatasetImporter:
    def __init__(self, files: Sequence[Path], most_bytes: int) -> None:
        self._files, self._most_bytes = files, most_bytes
        texts: set[str] = set()
        kinds: dict[str, set[str]] = {}
        self._samples: list[_Sample] = []
        for file in files:
            samples = _index(file)
            self._samples.extend(samples)
            texts.update(column for sample in samples for one in sample.members if (column := _column(one)))
            _add_entries(kinds, samples)
        entries = {name for name, some in kinds.items() if "text" in some}
        if double := sorted(texts & entries):
            raise UserError(f"{files[0]}: {', '.join(double)} is the name of .txt members and of entries in .json ones")
        self._texts = texts
        self.columns = sorted(texts | entries)
        self.kinds = kinds_beside(texts, kinds)
        self.usual_captions = captions_beside(texts, entries)
        self.count = len(self._samples)

    @property
    def fingerprint(self) -> list[list[str | int]]:
        return fingerprint(self._files)

    def items(self, columns: Sequence[str], first: int, attributes: Sequence[str] = ()) -> Iterator[Item]:
        return (self._item(sample, columns, attributes) for sample in self._samples[first:])

    def _item(self, sample: _Sample, columns: Sequence[str], attributes: Sequence[str]) -> Item:
        image = sample.image
        if sample.problem:
            return Item(sample.source, None, {}, sample.problem)
        if image is None:
            endings = ", ".join(sample.members)
            return Item(sample.source, None, {}, f"it has no image, or more than one: its members are {endings}")
        try:
            found = self._values_of(sample, {*columns, *attributes})
            texts = {**dict.fromkeys(columns), **strings_in({column: found[column] for column in columns})}
            values = {column: found[column] for column in attributes}
            return Item(f"{sample.source}.{image}", _read(sample, image, self._most_bytes), texts, values=values)
        except UnreadableError as error:
            return Item(sample.source, None, {}, f"it or its caption cannot be read: {error}")

    def _values_of(self, sample: _Sample, columns: set[str]) -> dict[str, Any]:
        found: dict[str, Any] = dict.fromkeys(columns)
        if _JSON in sample.members and columns - self._texts:
            entries = entries_of(_read(sample, _JSON, MOST_TEXT_BYTES), _JSON)
            found.update({key: value for key, value in entries.items() if key not in self._texts})
        for ending in sample.members:
            if (column := _column(ending)) in columns and column is not None:
                found[column] = text_of(_read(sample, ending, MOST_TEXT_BYTES), ending)
        return found


def _index(path: Path) -> list[_Sample]:
    """Where everything lies, from the headers alone."""
    refuse_cut(path)
    samples: dict[str, _Sample] = {}
    refused: list[_Sample] = []
    size = path.stat().st_size
    try:
        with tarfile.open(path, "r:", errors="surrogateescape") as tar:
            for member in tar:
                if member.isdir():
                    continue
                if reason := _refusal(member):
                    refused.append(_Sample(path, member.name, problem=reason))
                elif not _hidden(member.name):
                    if member.offset_data + member.size > size:
                        raise UserError(f"{path} cannot be read as a tar file: it is cut short at {member.name}")
                    _take(samples, path, member)
            refuse_rest(path, tar)
    except (tarfile.TarError, OSError) as error:
        raise UserError(f"{path} cannot be read as a tar file: {error}") from None
    return [*samples.values(), *refused]


def _take(samples: dict[str, _Sample], path: Path, member: tarfile.TarInfo) -> None:
    name = member.name.removeprefix("./")
    folder, slash, base = name.rpartition("/")
    stem, _, ending = base.partition(".")
    key, ending = f"{folder}{slash}{stem}", ending.lower()
    sample = samples.setdefault(key, _Sample(path, key))
    if ending in sample.members:
        sample.problem = f"it has two members .{ending}"
    sample.members[ending] = _Member(member.offset_data, member.size)


def _refusal(member: tarfile.TarInfo) -> str:
    if member.issym() or member.islnk():
        return f"it is a link to {member.linkname}; links are not followed"
    if member.type not in _PLAIN_FILES or member.issparse():
        return "it is no plain file (a device, a pipe, or sparse)"
    return "its path leads out of the tar" if leads_out(member.name) else ""


def _hidden(name: str) -> bool:
    return any(part.startswith(".") and part != "." for part in name.split("/"))


def _column(ending: str) -> str | None:
    if ending == PLAIN:
        return PLAIN
    return ending.removesuffix(".txt") if ending.endswith(".txt") else None


def _add_entries(kinds: dict[str, set[str]], samples: Sequence[_Sample]) -> None:
    """The names of all entries and their kinds; what cannot be read is told of when its record comes."""
    for sample in samples:
        if _JSON in sample.members:
            try:
                add_kinds(kinds, entries_of(_read(sample, _JSON, MOST_TEXT_BYTES), _JSON))
            except UnreadableError:
                continue


def _read(sample: _Sample, ending: str, most: int) -> bytes:
    member = sample.members[ending]
    if member.size > most:
        raise UnreadableError(too_large(ending, member.size, most))
    with sample.tar.open("rb") as file:
        file.seek(member.start)
        return file.read(member.size)
