"""MDS shards, as MosaicML's streaming writes them: `index.json` and `shard.00000.mds`, …

A shard starts with the number of samples as a uint32. The number is followed by uint32 offsets from the start of the
file, one for each sample and one for the end. The offsets are followed by the writer's metadata and the samples. A
sample starts with a uint32 size for each column without a fixed size. These sizes are followed by the columns' bytes,
in the order of the index. Shards of several splits may lie in separate folders; the column `folder` holds the folder's
name. Pickled columns are never read.
"""

from __future__ import annotations

import io
import json
import struct
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import numpy as np
import pyarrow
from numpy.typing import NDArray
from PIL import Image
from pydantic import BaseModel, Field, ValidationError, model_validator

from tintype.config.strict import first_problem
from tintype.data.folders import check_inside, first_folder, leads_out
from tintype.data.image_file import Limits, read_file, too_large
from tintype.data.importers.beside import UnreadableError, entries_of, text_of
from tintype.data.importers.importer import FOLDER, MOST_TABLE_BYTES, MOST_TEXT_BYTES, Importer, Item, Reading
from tintype.data.store.attributes import kinds_in
from tintype.errors import UserError, as_user_error

_INDEX, _CODEC = "index.json", "zstd"
_IMAGES = ("jpeg", "png", "pil")
_TEXTS = ("str", "str_int", "str_float", "str_decimal")
_WHOLE = tuple(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64))
_SCALARS = {name: np.dtype(name).newbyteorder("<") for name in (*_WHOLE, "float16", "float32", "float64")}
_KINDS: dict[str, str] = {
    "str": "text",
    **dict.fromkeys(("int", "str_int", *_WHOLE), "int"),
    **dict.fromkeys(("str_float", "str_decimal", "float16", "float32", "float64"), "float"),
}
_UINT32 = np.dtype("<u4")
_RAW_MODES = {"L": (1, "PNG"), "LA": (2, "PNG"), "RGB": (3, "PNG"), "RGBA": (4, "PNG"), "CMYK": (4, "TIFF")}
"""Supported modes of raw pixels, each with its bytes per pixel and a file format that stores such pixels exactly."""


class _File(BaseModel):
    basename: str
    bytes: int = Field(ge=0, lt=1 << 32)


class _Shard(BaseModel):
    """A shard as the index describes it. Keys that are not used here are left out."""

    version: int
    format: str
    column_names: list[str]
    column_encodings: list[str]
    column_sizes: list[int | None]
    compression: str | None = None
    raw_data: _File
    zip_data: _File | None = None
    samples: int = Field(ge=0)

    @model_validator(mode="after")
    def _is_known(self) -> Self:
        if self.version != 2 or self.format != "mds":
            raise ValueError(f"the format is {self.format} version {self.version}, but tintype reads MDS version 2")
        if not len(self.column_names) == len(self.column_encodings) == len(self.column_sizes):
            raise ValueError("the lists of column names, encodings and sizes have different lengths")
        return self

    def encodings(self) -> dict[str, str]:
        """Return the encoding of each column without its options, such as `jpeg` for `jpeg:90`."""
        plain = (encoding.partition(":")[0] for encoding in self.column_encodings)
        return dict(zip(self.column_names, plain, strict=True))


class _Index(BaseModel):
    version: int
    shards: list[_Shard] = Field(min_length=1)


@dataclass(frozen=True)
class _Place:
    path: Path
    split: str | None
    shard: _Shard
    packed: bool


def open_mds(path: Path, reading: Reading) -> MdsImporter | None:
    if not path.is_dir():
        return None
    found = [file for file in (path / _INDEX, *sorted(path.glob(f"[!.]*/{_INDEX}"))) if _is_index(file)]
    if found and found[0].parent == path:
        found = found[:1]  # the top index names the shards of subfolders too
    return MdsImporter(path, found, reading) if found else None


class MdsImporter(Importer):
    def __init__(self, path: Path, indices: Sequence[Path], reading: Reading) -> None:
        self._path = path
        check_inside(path, indices, reading.follow_links)
        self._places = [_place(path, index, shard) for index in indices for shard in _read_index(index)]
        files = [place.path for place in self._places]
        check_inside(path, files, reading.follow_links)
        encodings = self._places[0].shard.encodings()
        if other := next((place for place in self._places if place.shard.encodings() != encodings), None):
            raise UserError(
                f"{other.path} has other columns than {files[0]}, but all shards must have the same columns"
            )
        self._image, self._encodings = _image_column(encodings, path), encodings
        self._most_bytes = _most_bytes(encodings, self._image, reading.limits)
        entries = self._first_entries() if "json" in encodings.values() else {}
        texts = [name for name, encoding in encodings.items() if encoding in (*_TEXTS, "int", "json")]
        texts += [name for name, value in entries.items() if isinstance(value, str)]
        folder = [FOLDER] if any(place.split for place in self._places) else []
        kinds = {**_kinds(encodings, entries), **{name: {"text"} for name in folder}}
        count = sum(place.shard.samples for place in self._places)
        super().__init__([*indices, *files], [*texts, *folder], kinds, count)

    def items(self, columns: Collection[str], first: int) -> Iterator[Item]:
        for place in self._places:
            if first < place.shard.samples:
                for number, sample in _samples(place, first, self._most_bytes):
                    yield self._item(place, number, sample, columns)
            first = max(0, first - place.shard.samples)

    def _item(self, place: _Place, number: int, sample: bytes | str, columns: Collection[str]) -> Item:
        source = f"{place.path.relative_to(self._path)}, sample {number}"
        if isinstance(sample, str):
            return Item(source, problem=sample)
        try:
            parts = _parts(place.shard, sample)
            found: dict[str, object] = {**dict.fromkeys(columns), FOLDER: place.split}
            for name, encoding in self._encodings.items():
                if name in columns or (encoding == "json" and any(one.startswith(f"{name}.") for one in columns)):
                    found.update(_values(name, encoding, parts[name]))
            content = parts[self._image]
            return Item(source, _file_of_raw(content) if self._encodings[self._image] == "pil" else content, found)
        except UnreadableError as error:
            return Item(source, problem=str(error))

    def _first_entries(self) -> dict[str, object]:
        names = [name for name, encoding in self._encodings.items() if encoding == "json"]
        values = next(self.items(names, 0), Item("")).values
        return {key: value for key, value in values.items() if value is not None or key not in (FOLDER, *names)}


def _is_index(file: Path) -> bool:
    """Return whether a file named `index.json` is an index of MDS shards."""
    if not file.is_file():
        return False
    try:
        found = json.loads(read_file(file, MOST_TABLE_BYTES))
    except (OSError, ValueError, RecursionError):
        return any(file.parent.glob("*.mds*"))
    return isinstance(found, dict) and "shards" in found


def _read_index(file: Path) -> list[_Shard]:
    try:
        return _Index.model_validate_json(read_file(file, MOST_TABLE_BYTES)).shards
    except (OSError, ValidationError) as error:
        reason = first_problem(error) if isinstance(error, ValidationError) else error
        raise UserError(f"{file} is not the index of MDS shards: {reason}") from None


def _place(source: Path, index: Path, shard: _Shard) -> _Place:
    """Return a shard's uncompressed file if it exists, otherwise its compressed file."""
    plain, packed = shard.raw_data, shard.zip_data
    if bad := next((one.basename for one in (plain, packed) if one and leads_out(one.basename)), None):
        raise UserError(f"{index} names the shard {bad}, which is not in the folder")
    said = packed if packed and not (index.parent / plain.basename).is_file() else plain
    path = index.parent / said.basename
    if not path.is_file():
        raise UserError(f"{_INDEX} lists {path}, but this file is missing", "copy the shards again")
    if path.stat().st_size != said.bytes:
        raise UserError(f"{path} has {path.stat().st_size:,} bytes, but {_INDEX} records {said.bytes:,}")
    codec = (shard.compression or "").partition(":")[0]
    if said is packed and codec != _CODEC:
        raise UserError(
            f"{path} is compressed with {codec}, but tintype reads only {_CODEC}", "decompress the shards first"
        )
    if said is packed and not pyarrow.Codec.is_available(_CODEC):
        raise UserError(
            f"{path} is compressed with {_CODEC}, which the installed pyarrow does not support",
            "decompress the file first",
        )
    return _Place(path, first_folder(index.parent / plain.basename, source), shard, said is packed)


def _open(place: _Place) -> io.BufferedIOBase:
    size = place.shard.raw_data.bytes
    if not place.packed:
        return place.path.open("rb")
    if size > MOST_TABLE_BYTES:
        raise UserError(
            f"{too_large(str(place.path), size, MOST_TABLE_BYTES)} when decompressed", "decompress the shards first"
        )
    with (
        as_user_error((pyarrow.ArrowException, OSError), f"{place.path} cannot be decompressed"),
        pyarrow.input_stream(str(place.path), compression=_CODEC) as stream,
    ):
        content = stream.read(size + 1)
    if len(content) != size:
        raise UserError(f"{place.path} does not decompress to the {size:,} bytes that {_INDEX} records")
    return io.BytesIO(content)


def _most_bytes(encodings: Mapping[str, str], image: str, limits: Limits) -> int:
    """Return the maximum bytes of a sample, which has an image (possibly as raw pixels) and other columns."""
    raw_bytes = limits.pixels * max(depth for depth, _ in _RAW_MODES.values())
    return (raw_bytes if encodings[image] == "pil" else limits.bytes) + len(encodings) * MOST_TEXT_BYTES


def _samples(place: _Place, first: int, most_bytes: int) -> Iterator[tuple[int, bytes | str]]:
    """Yield each sample's number and its bytes. If a sample is not read, yield the reason instead of the bytes."""
    with _open(place) as file:
        offsets = _offsets(file, place)
        for number in range(first, place.shard.samples):
            start, size = int(offsets[number]), int(offsets[number + 1]) - int(offsets[number])
            if size > most_bytes:
                yield number, too_large("it", size, most_bytes)
                continue
            file.seek(start)
            yield number, file.read(size)


def _offsets(file: io.BufferedIOBase, place: _Place) -> NDArray[np.uint32]:
    count, size = place.shard.samples, place.shard.raw_data.bytes
    head = file.read(4 * min(count + 2, size // 4))
    numbers = np.frombuffer(head, _UINT32)
    if len(numbers) != count + 2 or numbers[0] != count:
        raise UserError(
            f"{place.path} is damaged: the file does not contain the {count:,} samples that {_INDEX} records"
        )
    offsets = numbers[1:]
    if offsets[0] < len(head) or (offsets[1:] < offsets[:-1]).any() or offsets[-1] > size:
        raise UserError(f"{place.path} is damaged: the offsets of the samples do not increase, or lie outside the file")
    return offsets


def _parts(shard: _Shard, sample: bytes) -> dict[str, bytes]:
    varying = sum(not size for size in shard.column_sizes)
    if len(sample) < 4 * varying:
        raise UnreadableError("the sample is damaged: its data ends within the column sizes")
    stated = iter(np.frombuffer(sample, _UINT32, varying).tolist())
    sizes = [size or next(stated) for size in shard.column_sizes]
    if 4 * varying + sum(sizes) != len(sample):
        raise UnreadableError(f"the sample is damaged: its {len(sample):,} bytes do not match the sizes of its columns")
    ends = np.cumsum([4 * varying, *sizes]).tolist()
    return {name: sample[ends[at] : ends[at + 1]] for at, name in enumerate(shard.column_names)}


def _kinds(encodings: Mapping[str, str], first: Mapping[str, object]) -> dict[str, set[str]]:
    """Return the columns' kinds by their encoding, and the kinds of JSON keys from the first sample.

    If a JSON value is a whole number in the first sample, its kind is float, since other samples may have fractions.
    """
    entries = {name: {"float" if kind == "int" else kind for kind in some} for name, some in kinds_in([first]).items()}
    return {name: {_KINDS[encoding]} for name, encoding in encodings.items() if encoding in _KINDS} | entries


def _values(name: str, encoding: str, content: bytes) -> Mapping[str, object]:
    """Decode the value of a column. A JSON object gives `NAME.KEY` for each of its keys."""
    if encoding == "int":
        return {name: str(int.from_bytes(content, "little", signed=True))}  # also a column of text
    if encoding in _SCALARS:
        if len(content) != _SCALARS[encoding].itemsize:
            raise UnreadableError(
                f"the column {name} has {len(content)} bytes, which is not the size of the type {encoding}"
            )
        return {name: np.frombuffer(content, _SCALARS[encoding])[0].item()}
    if encoding != "json":
        return {name: text_of(content, f"the column {name}")}
    if content[:1] == b'"':
        try:
            return {name: str(json.loads(content))}
        except ValueError as error:
            raise UnreadableError(f"the column {name} cannot be read as JSON: {error}") from None
    entries = entries_of(content, f"the column {name}")
    return {f"{name}.{key}": value for key, value in entries.items()}


def _file_of_raw(content: bytes) -> bytes:
    """Convert raw pixels to an image file. The header has width, height, length of the mode's name, and the name."""
    width, height, named = struct.unpack("<III", content[:12]) if len(content) >= 12 else (0, 0, 0)
    mode, raw = content[12 : 12 + named].decode("ascii", "replace"), content[12 + named :]
    if mode not in _RAW_MODES:
        raise UnreadableError(f"the raw pixels have the mode '{mode[:12]}'; tintype can store {', '.join(_RAW_MODES)}")
    depth, form = _RAW_MODES[mode]
    if not width or not height or width * height * depth != len(raw):
        raise UnreadableError(
            f"the sample is damaged: {len(raw):,} bytes cannot be {width} × {height} pixels of {depth} bytes each"
        )
    buffer = io.BytesIO()
    Image.frombytes(mode, (width, height), raw).save(buffer, form)
    return buffer.getvalue()


def _image_column(encodings: Mapping[str, str], path: Path) -> str:
    """Return the column `image`, else the only image column. If there is none, choose among the columns of bytes."""
    images = [name for name, encoding in encodings.items() if encoding in _IMAGES]
    some = images or [name for name, encoding in encodings.items() if encoding == "bytes"]
    if "image" in some:
        return "image"
    if len(some) == 1:
        return some[0]
    columns = ", ".join(f"{name} ({encoding})" for name, encoding in encodings.items())
    raise UserError(
        f"{path} needs a column 'image', or exactly one column with the encoding jpeg, png, pil or bytes; its "
        f"columns are {columns}"
    )
