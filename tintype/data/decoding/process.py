"""A process that decodes images for another: it reads one, answers with its pixels, and ends with its input.

Messages are bytes; nothing is unpickled. A question is `QUESTION` (height and width, and whether the image is stretched
to them or covers them) with the image's name, and the content. An answer is `ANSWER` (whether an error follows;
nanoseconds of the CPU), and the pixels or the parts of the error as JSON.
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
    """Decode one image after the other; raises EOFError once the other end is closed."""
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
    """Decode for the process whose id is the first argument, through the open file that is the second.

    A thread of that process started this one, and may end before it: the kernel is not asked. Signals are for the run:
    a scheduler sends them to all processes of a job.
    """
    watch_parent(int(sys.argv[1]))
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    torch.set_num_threads(1)
    with Connection(int(sys.argv[2])) as connection, suppress(EOFError, ConnectionError):
        serve(connection)


if __name__ == "__main__":
    main()
