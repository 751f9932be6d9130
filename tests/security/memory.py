"""Reads hostile files in a process of its own, and prints what came of each and how far its memory rose.

Run as a module with the folder of the files. Writing 5 to `clear_refs` sets the peak of the process back (proc(5)).
Each file is read in a fork: memory that the allocator keeps from one file would hide the rise of the next.
"""

from __future__ import annotations

import json
import multiprocessing
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pyarrow
from PIL import Image
from pyarrow import parquet

from tintype.data.image_file import Encoded
from tintype.data.image_sets import decode, open_images
from tintype.data.importers import open_importer
from tintype.data.importers.importer import Item, Reading
from tintype.data.store.encode import Refused, Sizing, prepare
from tintype.data.store.layout import open_shard
from tintype.data.store.selection import read_skip_list
from tintype.errors import UserError


def status(name: str) -> int:
    """A line of /proc/self/status, in bytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * int(next(line for line in lines if line.startswith(name)).split()[1])


def risen(work: Callable[[], object]) -> tuple[str, int]:
    """Return what the work said and by how many bytes the memory rose while it ran."""
    Path("/proc/self/clear_refs").write_text("5")
    before = status("VmRSS")
    try:
        said = str(work())
    except UserError as error:
        said = f"refused: {error}"
    return said, status("VmHWM") - before


def imported(path: Path) -> str:
    importer = open_importer(path, Reading())
    items = [(item.problem or "read") for item in importer.items(["caption"], 0)]
    return f"{len(items)} items: {items[0]}"


def image(path: Path) -> str:
    kept = prepare(Item(path.name, path.read_bytes()), Sizing())
    if isinstance(kept, Refused):
        return f"refused: {kept.reason}"
    return f"decoded {tuple(decode(Encoded(path.name, path.read_bytes())).shape)}"


def image_without_limits(path: Path) -> str:
    Image.MAX_IMAGE_PIXELS = None
    with Image.open(path) as opened:
        return f"decoded {opened.convert('RGB').size}"


def batches(path: Path) -> int:
    with pyarrow.memory_map(str(path)) as file, pyarrow.ipc.open_stream(file) as stream:
        return sum(batch.num_rows for batch in stream)


FIRST = 2
"""So many of the files are read first, and not measured: they load what all need."""
READERS: dict[str, Callable[[Path], object]] = {
    "import": imported,
    "score": lambda path: sum(len(one.content) for one in open_images(path).encoded()),
    "skip list": read_skip_list,
    "shard": open_shard,
    "image": image,
    "control: a table": lambda path: parquet.read_table(path).num_rows,
    "control: batches": batches,
    "control: an image": image_without_limits,
}


def read(reader: str, path: Path) -> tuple[str, int]:
    return risen(partial(READERS[reader], path))


def main(folder: Path) -> None:
    asked = [(reader, folder / name) for reader, name in json.loads((folder / "asked.json").read_text())]
    for reader, path in asked[:FIRST]:
        read(reader, path)
    with multiprocessing.get_context("fork").Pool(1, maxtasksperchild=1) as forks:
        print(json.dumps(forks.starmap(read, asked[FIRST:], chunksize=1)))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
