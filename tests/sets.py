"""One small set of images with captions and splits in each form in which sets lie on disks, written by the formats'
descriptions and not by the code that reads them."""

from __future__ import annotations

import csv
import io
import json
import struct
import tarfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow
from pyarrow import parquet

from tests.tiny_store import image_file
from tintype.data.store.importing import ImportOptions


@dataclass(frozen=True)
class Entry:
    name: str
    content: bytes
    texts: Mapping[str, Any]


def entries(count: int = 6) -> list[Entry]:
    return [
        Entry(
            f"p{index}.{('png', 'jpeg', 'webp')[index % 3].replace('jpeg', 'jpg')}",
            image_file(index, form=("png", "jpeg", "webp")[index % 3]),
            {
                "long": f"„picture“ {index}, with\na line 🙂",
                "short": f"no. {index}",
                "split": ("train", "test")[index % 2],
            },
        )
        for index in range(count)
    ]


def write_metadata(file: Path, some: Sequence[Entry]) -> None:
    rows = [{"file_name": one.name, **one.texts} for one in some]
    if file.suffix == ".jsonl":
        file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    elif file.suffix == ".csv":
        with file.open("w", newline="", encoding="utf-8") as opened:
            writer = csv.DictWriter(opened, list(rows[0]))
            writer.writeheader()
            writer.writerows(rows)
    else:
        parquet.write_table(pyarrow.Table.from_pylist(rows), file)


def jsonl_folder(path: Path, some: Sequence[Entry], metadata: str = "metadata.jsonl") -> Path:
    path.mkdir(parents=True)
    for one in some:
        (path / one.name).write_bytes(one.content)
    write_metadata(path / metadata, some)
    return path


def csv_folder(path: Path, some: Sequence[Entry]) -> Path:
    return jsonl_folder(path, some, "metadata.csv")


def parquet_folder(path: Path, some: Sequence[Entry]) -> Path:
    return jsonl_folder(path, some, "metadata.parquet")


def json_folder(path: Path, some: Sequence[Entry]) -> Path:
    path.mkdir(parents=True)
    for one in some:
        (path / one.name).write_bytes(one.content)
        (path / one.name).with_suffix(".json").write_text(json.dumps({**one.texts, "number": 3}))
    return path


def txt_folder(path: Path, some: Sequence[Entry]) -> Path:
    for one in some:
        place = path / one.texts["split"]
        place.mkdir(parents=True, exist_ok=True)
        (place / one.name).write_bytes(one.content)
        (place / one.name).with_suffix(".txt").write_text(one.texts["long"], encoding="utf-8")
        (place / one.name).with_suffix(".short.txt").write_text(one.texts["short"], encoding="utf-8")
    return path


def plain_parquet(path: Path, some: Sequence[Entry]) -> Path:
    path.mkdir(parents=True)
    parquet.write_table(_table(some), path / "a.parquet")
    return path


def _table(some: Sequence[Entry]) -> pyarrow.Table:
    return pyarrow.Table.from_pylist(
        [{"image": {"bytes": one.content, "path": one.name}, "number": 3, **one.texts} for one in some]
    )


def tar_of(path: Path, members: Sequence[tuple[str | tarfile.TarInfo, bytes]]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w") as tar:
        for name, content in members:
            info = tarfile.TarInfo(name) if isinstance(name, str) else name
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return path


def tars(path: Path, some: Sequence[Entry]) -> Path:
    half = len(some) // 2
    for index, part in enumerate((some[:half], some[half:])):
        members: list[tuple[str | tarfile.TarInfo, bytes]] = []
        for one in part:
            stem, texts = one.name.partition(".")[0], dict(one.texts)
            members.append((f"./{stem}.txt", str(texts.pop("long")).encode()))
            members.append((f"./{one.name}", one.content))
            members.append((f"./{stem}.json", json.dumps({**texts, "number": 3}).encode()))
        tar_of(path / f"{index:05d}.tar", members)
    return path


def saved(path: Path, some: Sequence[Entry]) -> Path:
    """A `DatasetDict` in two splits, of which one is in two files."""
    (path).mkdir(parents=True)
    (path / "dataset_dict.json").write_text(json.dumps({"splits": ["train", "test"]}))
    for split in ("train", "test"):
        ours = [one for one in some if one.texts["split"] == split]
        saved_split(path / split, [ours[:1], ours[1:]] if split == "train" else [ours])
    return path


def saved_split(path: Path, files: Sequence[Sequence[Entry]]) -> Path:
    path.mkdir(parents=True)
    names = [f"data-{index:05d}-of-{len(files):05d}.arrow" for index in range(len(files))]
    for name, part in zip(names, files, strict=True):
        table = _table(part)
        with pyarrow.OSFile(str(path / name), "wb") as sink, pyarrow.ipc.new_stream(sink, table.schema) as stream:
            stream.write_table(table, max_chunksize=2)
    (path / "dataset_info.json").write_text("{}")
    state = {"_data_files": [{"filename": name} for name in names], "_fingerprint": "0", "_split": path.name}
    (path / "state.json").write_text(json.dumps(state))
    return path


MDS_COLUMNS = {"caption_long": "str", "caption_short": "json", "image": "jpeg:90", "number": "int", "split": "str"}


def mds(path: Path, some: Sequence[Entry]) -> Path:
    def row(one: Entry) -> list[bytes]:
        long, short, split = (str(one.texts[name]) for name in ("long", "short", "split"))
        return [long.encode(), json.dumps(short).encode(), one.content, struct.pack("<q", -7), split.encode()]

    half = len(some) // 2
    return mds_of(path, MDS_COLUMNS, [[row(one) for one in part] for part in (some[:half], some[half:])])


def mds_of(
    path: Path, columns: Mapping[str, str], shards: Sequence[Sequence[Sequence[bytes]]], compress: str | None = None
) -> Path:
    """Shards as the format's description has them; the fixed size of an `int` is 8."""
    path.mkdir(parents=True, exist_ok=True)
    sizes = [8 if encoding == "int" else None for encoding in columns.values()]
    index = []
    for number, rows in enumerate(shards):
        samples = []
        for row in rows:
            lengths = [len(value) for value, size in zip(row, sizes, strict=True) if size is None]
            samples.append(struct.pack(f"<{len(lengths)}I", *lengths) + b"".join(row))
        note = b'{"a": "note of the writer"}'
        at = 4 + 4 * (len(samples) + 1) + len(note)
        offsets = [at]
        for sample in samples:
            offsets.append(offsets[-1] + len(sample))
        content = struct.pack(f"<{len(offsets) + 1}I", len(samples), *offsets) + note + b"".join(samples)
        name, zipped = f"shard.{number:05d}.mds", None
        if compress:
            packed = pyarrow.compress(content, codec="zstd", asbytes=True)
            zipped = {"basename": f"{name}.zstd", "bytes": len(packed), "hashes": {}}
            (path / f"{name}.zstd").write_bytes(packed)
        else:
            (path / name).write_bytes(content)
        index.append(
            {
                "column_encodings": list(columns.values()),
                "column_names": list(columns),
                "column_sizes": sizes,
                "compression": compress,
                "format": "mds",
                "hashes": [],
                "raw_data": {"basename": name, "bytes": len(content), "hashes": {}},
                "samples": len(samples),
                "size_limit": 1 << 26,
                "version": 2,
                "zip_data": zipped,
            }
        )
    (path / "index.json").write_text(json.dumps({"shards": index, "version": 2}))
    return path


BY_COLUMN, BY_FOLDER = ImportOptions(split_column="split"), ImportOptions(split_column="folder")
FORMS: dict[str, tuple[Callable[[Path, Sequence[Entry]], Path], ImportOptions]] = {
    "parquet": (plain_parquet, BY_COLUMN),
    "txt": (txt_folder, BY_FOLDER),
    "json": (json_folder, BY_COLUMN),
    "jsonl": (jsonl_folder, BY_COLUMN),
    "csv": (csv_folder, BY_COLUMN),
    "metadata.parquet": (parquet_folder, BY_COLUMN),
    "webdataset": (tars, BY_COLUMN),
    "saved": (saved, BY_FOLDER),
    "mds": (mds, BY_COLUMN),
}
