"""A worker process that decodes images: it reads a request, answers with the pixels, and ends when its input ends.

Messages are bytes, and nothing is unpickled. A request has two messages. The first is `QUESTION` (height, width, and
whether to stretch the image instead of cropping it) with the image's name. The second is the image file. An answer has
two messages: `ANSWER` (whether decoding failed, and the CPU time in nanoseconds), then the pixels or the error as JSON.
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

    A thread polls whether the parent still exists. The kernel's parent-death signal is not used, since it is also sent
    when only the thread that started this process ends. SIGINT and SIGTERM are ignored: a scheduler sends them to all
    processes of a job, and the run handles them.
    """
    watch_parent(int(sys.argv[1]))
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    torch.set_num_threads(1)
    with Connection(int(sys.argv[2])) as connection, suppress(EOFError, ConnectionError):
        serve(connection)


if __name__ == "__main__":
    main()
