"""Worker processes that decode images, for training that needs more images per second than threads can decode.

Because of the interpreter lock, Python threads wait for each other and for the thread that drives the GPU, except while
decoding. If images are also shrunk, sixteen threads prepare hardly more images per second than one thread. A worker
process serves one thread at a time, and this thread only waits for the answer.

C: channels. H, W: rows, columns.
"""

from __future__ import annotations

import atexit
import json
import os
import subprocess
import sys
from functools import lru_cache
from multiprocessing import Pipe
from pathlib import Path
from queue import LifoQueue
from threading import Lock

from torch import Tensor

from tintype.data.decoding.process import ANSWER, QUESTION
from tintype.data.image_file import Encoded
from tintype.errors import UserError
from tintype.wording import again

_TRIES = 2


class _Decoder:
    """A worker process with its own session, so that Ctrl-C in a terminal sends its signal only to the run."""

    def __init__(self) -> None:
        places = os.pathsep.join(place or str(Path.cwd()) for place in sys.path)
        self._connection, theirs = Pipe()
        with theirs:
            self.process = subprocess.Popen(
                [sys.executable, "-P", "-m", "tintype.data.decoding.process", str(os.getpid()), str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=2,  # stray prints go to stderr
                pass_fds=[theirs.fileno()],
                env={**os.environ, "PYTHONPATH": places, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""},
                start_new_session=True,
            )

    def fit(self, one: Encoded, out_CHW: Tensor, stretch: bool) -> float:
        """Write the fitted image to `out_CHW`; return the CPU seconds used."""
        self._connection.send_bytes(QUESTION.pack(*out_CHW.shape[1:], stretch) + one.name.encode())
        self._connection.send_bytes(one.content)
        failed, cpu_ns = ANSWER.unpack(self._connection.recv_bytes())
        if failed:
            raise UserError(*json.loads(self._connection.recv_bytes()))
        self._connection.recv_bytes_into(out_CHW.view(-1).numpy())
        return float(cpu_ns) / 1e9

    def end(self) -> int:
        self._connection.close()
        return self.process.wait()


class Decoders:
    """A pool of worker processes. If all workers are busy, another worker is started, up to `count`."""

    def __init__(self, count: int) -> None:
        self._free: LifoQueue[_Decoder | None] = LifoQueue()
        for _ in range(count):
            self._free.put(None)
        self._lock, self.cpu_s = Lock(), 0.0
        self.running: list[_Decoder] = []

    def fit(self, one: Encoded, out_CHW: Tensor, stretch: bool = False) -> None:
        """Shrink and center-crop the image into `out_CHW`, or with `stretch` resize it. A killed worker is replaced."""
        code = 0
        for _ in range(_TRIES):
            decoder = self._free.get() or self._start()
            try:
                cpu_s = decoder.fit(one, out_CHW, stretch)
            except (EOFError, OSError):  # the process has ended
                code = self._forget(decoder)
            except UserError:
                self._free.put(decoder)
                raise
            except BaseException:  # otherwise the worker's next request would get this answer
                self._forget(decoder)
                raise
            else:
                self._free.put(decoder)
                with self._lock:
                    self.cpu_s += cpu_s
                return
        raise UserError(
            f"{one.name}: the process that decoded this image ended {_TRIES} times, with exit code {code} (-9 "
            f"means killed, mostly for lack of memory); the output of the process is above",
            f"{again()} again to resume",
        )

    def end(self) -> None:
        for decoder in self.running:
            decoder.process.kill()  # workers hold no state
        while self.running:
            self.running.pop().end()

    def _start(self) -> _Decoder:
        try:
            decoder = _Decoder()
        except OSError as error:
            self._free.put(None)  # otherwise the next caller would wait forever
            raise UserError(
                f"a process for decoding images cannot be started: {error.strerror or error}",
                f"allow more processes, memory or open files, then {again()} again to resume",
            ) from error
        with self._lock:
            self.running.append(decoder)
        return decoder

    def _forget(self, decoder: _Decoder) -> int:
        with self._lock:
            self.running.remove(decoder)
        self._free.put(None)
        return decoder.end()


@lru_cache(maxsize=8)
def decoders(count: int) -> Decoders:
    """Return the worker pool that all sources of a run share."""
    found = Decoders(count)
    atexit.register(found.end)
    return found
