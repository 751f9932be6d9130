"""Write Arrow IPC files, and check foreign Arrow files before they are read.

An uncompressed buffer is memory-mapped and takes no memory. A compressed buffer states its unpacked size, and Arrow's
reader allocates that many bytes. So a malicious file of a few kilobytes could make the reader allocate gigabytes.
Compressed files are refused, since no tool that writes a supported format compresses buffers. Messages are parsed
according to the format's definition (Apache Arrow, `Message.fbs`, in FlatBuffers).
"""

from __future__ import annotations

import struct
from pathlib import Path

import pyarrow

from tintype.errors import UserError, as_user_error

FILE_HEAD = 8
"""Number of bytes before the stream in the Arrow file format. Unlike the stream format, it also has a footer."""
_WAY_TO_BATCH, _COMPRESSION = {"record batch": (2,), "dictionary": (2, 1)}, 3
"""FlatBuffers field numbers of the path from a message to its record batch, and of the batch's `compression` field."""


def file_of(batch: pyarrow.RecordBatch) -> bytes:
    sink = pyarrow.BufferOutputStream()
    with pyarrow.ipc.new_file(sink, batch.schema) as writer:
        writer.write_batch(batch)
    content: bytes = sink.getvalue().to_pybytes()
    return content


def refuse_compressed(path: Path, first: int = 0) -> None:
    """Raise if the Arrow stream at byte offset `first` is truncated or has a compressed batch."""
    damaged = f"{path} cannot be read as an Arrow stream: it is cut short or damaged"
    explained = as_user_error((pyarrow.ArrowException, OSError, struct.error), damaged)
    with explained, pyarrow.memory_map(str(path)) as file:
        file.seek(first)
        for message in pyarrow.ipc.MessageReader.open_stream(file):
            if _is_compressed(message):
                raise UserError(
                    f"{path} contains compressed record batches, which tintype cannot read",
                    "write the file without compression",
                )


def _is_compressed(message: pyarrow.Message) -> bool:
    """Return whether the message's record batch is compressed. Arrow has already checked the message's offsets."""
    if message.type not in _WAY_TO_BATCH:
        return False
    data = message.metadata.to_pybytes()
    place: int | None = 0
    for field in (*_WAY_TO_BATCH[message.type], _COMPRESSION):
        if place is None:
            return False
        place = _place(data, place + struct.unpack_from("<I", data, place)[0], field)
    return place is not None


def _place(data: bytes, table: int, field: int) -> int | None:
    """Return the position of a field in a FlatBuffers table; None if the table lacks the field."""
    fields = table - struct.unpack_from("<i", data, table)[0]
    (size,) = struct.unpack_from("<H", data, fields)
    at = 4 + 2 * field
    offset = struct.unpack_from("<H", data, fields + at)[0] if at + 2 <= size else 0
    return table + offset if offset else None
