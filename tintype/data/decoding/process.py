"""A worker process that decodes images.

Messages are bytes, and nothing is unpickled. A request consists of the two messages `QUESTION` and the image file.
`QUESTION` has height, width, whether to stretch the image instead of cropping it, and the image's name. An answer
consists of the message `ANSWER`, and a second message with the pixels or the error as JSON. `ANSWER` says whether
decoding failed, and gives the CPU time in nanoseconds.
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
    """Decode images one after the other. Raise EOFError when the other end of the connection is closed."""
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

    A thread polls whether the parent still exists. The kernel's parent-death signal is not used, since it is also sent
    if only the parent's thread that started this process ends. SIGINT and SIGTERM are ignored, since a scheduler sends
    them to all processes of a job, and the run handles them.
    """
    watch_parent(int(sys.argv[1]))
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    torch.set_num_threads(1)
    with Connection(int(sys.argv[2])) as connection, suppress(EOFError, ConnectionError):
        serve(connection)


if __name__ == "__main__":
    main()
