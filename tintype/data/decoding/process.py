"""A process that decodes images for another: it reads one, answers with its pixels, and ends with its input.

A question is `QUESTION` (lengths of name and content, height and width to cover), the name and the content. The answer
is `ANSWER` (the length of what follows, negative where that is the text of an error; nanoseconds of the CPU) and the
pixels.
"""

from __future__ import annotations

import os
import signal
import struct
import sys
import time
from typing import BinaryIO

import torch

from tintype.data.fit import covering
from tintype.data.image_file import Encoded
from tintype.data.image_sets import decode
from tintype.errors import UserError
from tintype.runtime.parent import watch_parent

QUESTION = struct.Struct("<IQII")
ANSWER = struct.Struct("<qQ")


def serve(questions: BinaryIO, answers: BinaryIO) -> None:
    """Decode one image after the other, until no request comes."""
    while len(head := questions.read(QUESTION.size)) == QUESTION.size:
        began_ns = time.process_time_ns()
        name_length, length, height, width = QUESTION.unpack(head)
        name, content = questions.read(name_length).decode(), questions.read(length)
        if len(content) < length:
            return
        answer, sign = _pixels(Encoded(name, content), height, width)
        answers.write(ANSWER.pack(sign * answer.nbytes, time.process_time_ns() - began_ns))
        answers.write(answer)
        answers.flush()


def _pixels(one: Encoded, height: int, width: int) -> tuple[memoryview, int]:
    """Return the pixels and 1, or the text of an error and -1."""
    try:
        return covering(decode(one), height, width).contiguous().numpy().data, 1
    except UserError as error:
        return memoryview(str(error).encode()), -1


def main() -> None:
    """Decode for the process whose id is the argument. Whatever writes to the output by mistake writes to the errors.

    A thread of that process started this one, and may end before it: the kernel is not asked. Signals are for the run:
    a scheduler sends them to all processes of a job.
    """
    watch_parent(int(sys.argv[1]))
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    torch.set_num_threads(1)
    with os.fdopen(os.dup(1), "wb") as answers, os.fdopen(0, "rb") as questions:
        os.dup2(2, 1)
        serve(questions, answers)


if __name__ == "__main__":
    main()
