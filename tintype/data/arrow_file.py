"""Write Arrow IPC files, and check those from outside before they are read.

What is not compressed is used where it lies in the file, and takes no memory. A compressed buffer states how large it
is when unpacked, and the reader takes that much: a few kilobytes can stand for gigabytes. No tool whose files are read
here compresses them, so such files are refused. The messages are read as the format writes them (Apache Arrow,
`Message.fbs`, in FlatBuffers).
"""

from __future__ import annotations

import mmap
import struct
from pathlib import Path
from typing import TYPE_CHECKING

from tintype.errors import UserError

if TYPE_CHECKING:
    import pyarrow

FILE_HEAD = 8
"""Bytes before the stream in a file of the form with a footer."""
_CONTINUES = 0xFFFFFFFF
_DICTIONARY_BATCH, _RECORD_BATCH = 2, 3


def file_of(batch: pyarrow.RecordBatch) -> bytes:
    """Return an Arrow IPC file of one batch."""
    import pyarrow

    sink = pyarrow.BufferOutputStream()
    with pyarrow.ipc.new_file(sink, batch.schema) as writer:
        writer.write_batch(batch)
    content: bytes = sink.getvalue().to_pybytes()
    return content


def refuse_compressed(path: Path, first: int = 0) -> None:
    """Raise where a batch of the stream that begins at byte `first` is compressed, or the stream is cut short."""
    try:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
            while (found := _message(content, first)) is not None:
                compressed, first = found
                if compressed:
                    raise UserError(f"{path} has compressed batches, which are not read; write it without compression")
    except (struct.error, ValueError) as error:
        raise UserError(f"{path} cannot be read as an Arrow stream: it is cut short or damaged ({error})") from None


def _message(content: mmap.mmap, at: int) -> tuple[bool, int] | None:
    """Return whether the batch of a message is compressed, and where the next begins; None at the end."""
    (size,) = struct.unpack_from("<I", content, at)
    at += 4
    if size == _CONTINUES:
        (size,) = struct.unpack_from("<i", content, at)
        at += 4
    if not size:
        return None
    if size < 0 or at + size > len(content):
        raise ValueError("a message of no possible size")
    table = _Table(content[at : at + size])
    kind, body = table.number(1, "<B"), table.number(3, "<q")
    if body < 0 or at + size + body > len(content):
        raise ValueError("a body of no possible size")
    batch = table.inner(2) if kind in (_DICTIONARY_BATCH, _RECORD_BATCH) else None
    if batch is not None and kind == _DICTIONARY_BATCH:
        batch = batch.inner(1)
    return batch is not None and batch.place(3) is not None, at + size + body


class _Table:
    """A table in FlatBuffers, by the numbers of its fields."""

    def __init__(self, data: bytes, at: int | None = None) -> None:
        self._data = data
        self._at = struct.unpack_from("<I", data, 0)[0] if at is None else at
        self._fields = self._at - struct.unpack_from("<i", data, self._at)[0]
        if self._fields < 0:
            raise ValueError("a table outside of its message")
        (self._size,) = struct.unpack_from("<H", data, self._fields)

    def place(self, field: int) -> int | None:
        at = 4 + 2 * field
        offset = struct.unpack_from("<H", self._data, self._fields + at)[0] if at + 2 <= self._size else 0
        return self._at + offset if offset else None

    def number(self, field: int, form: str) -> int:
        place = self.place(field)
        return 0 if place is None else int(struct.unpack_from(form, self._data, place)[0])

    def inner(self, field: int) -> _Table | None:
        place = self.place(field)
        if place is None:
            return None
        return _Table(self._data, place + struct.unpack_from("<I", self._data, place)[0])
