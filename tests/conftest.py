from __future__ import annotations

import atexit
import os
import shutil
import signal
import tempfile
from collections.abc import Iterator

import pytest
import torch

torch.set_num_threads(1)  # results are bit-exact for one thread count, and tests run side by side


_CACHE = tempfile.mkdtemp(prefix="tintype-tests-")
os.environ["TINTYPE_CACHE"] = _CACHE  # nothing of the user's is read or written
atexit.register(shutil.rmtree, _CACHE, ignore_errors=True)


@pytest.fixture(autouse=True)
def no_armed_faults() -> object:
    from tintype.train import fault

    yield
    fault.disarm()
    return None


@pytest.fixture(autouse=True)
def own_signal_handlers() -> Iterator[None]:
    """Undo what `main` leaves to the end of its process."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)
