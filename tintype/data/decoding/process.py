"""A worker process that decodes images: it reads a request, answers with the pixels, and ends when its input ends.

Messages are bytes; nothing is unpickled. A request is two messages: `QUESTION` with the image's name, and the image
file. `QUESTION` has height and width, and whether to stretch the image to them or to cover them and crop. An answer is
two messages: `ANSWER`, and the pixels or the error as JSON. `ANSWER` has whether decoding failed, and the CPU time in
nanoseconds.
"""

from __future__ import annotations

import json
import signal
import struct
import sys
import time
from contextlib import suppress
from multiprocessing.connection import Connection

import torch

from tintype.data.fit import covering, stretched
from tintype.data.image_file import Encoded
from tintype.data.image_sets import decode
from tintype.errors import UserError
from tintype.runtime.parent import watch_parent

QUESTION = struct.Struct("<II?")
ANSWER = struct.Struct("<?Q")


def serve(connection: Connection) -> None:
    """Decode one image after the other; raise EOFError when the other end is closed."""
    while True:
        question, content = connection.recv_bytes(), connection.recv_bytes()
        began_ns = time.process_time_ns()
        height, width, stretch = QUESTION.unpack_from(question)
        one = Encoded(question[QUESTION.size :].decode(), content)
        try:
            fitted = stretched if stretch else covering
            answer, failed = fitted(decode(one), height, width).flatten().numpy().data, False
        except UserError as error:
            answer, failed = memoryview(json.dumps(error.parts).encode()), True
        connection.send_bytes(ANSWER.pack(failed, time.process_time_ns() - began_ns))
        connection.send_bytes(answer)


def main() -> None:
    """Run a worker. Arguments are the parent's process id, and the file descriptor of the connection.

    The parent id is watched by polling: the thread that started this process may end before it, which the kernel's
    parent-death signal would take for the parent's end. SIGINT and SIGTERM are ignored, since the run handles them: a
    scheduler sends them to all processes of a job.
    """
    watch_parent(int(sys.argv[1]))
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    torch.set_num_threads(1)
    with Connection(int(sys.argv[2])) as connection, suppress(EOFError, ConnectionError):
        serve(connection)


if __name__ == "__main__":
    main()
