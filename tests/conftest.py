from __future__ import annotations

import atexit
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Iterator

import pytest
import torch

if torch.cuda.is_available():
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # torch reads it at the first product of all tests
else:
    os.environ["TRITON_INTERPRET"] = "1"  # read when Triton is imported: kernels are interpreted where there is no GPU

from tests.other_rounding import OtherRounding
from tintype.terminal.lines import show_notes

show_notes()
pytest_plugins = ["tests.fault.promises"]

torch.set_num_threads(1)  # results are bit-exact for one thread count, and tests run side by side
os.fsync = lambda fd: None  # what a killed process wrote is kept without: only a machine that fails needs it
if not torch.accelerator.is_available():
    for device in (torch.cuda, torch.mtia, torch.xpu):  # they would note each seed, with the stack, for later
        setattr(device, "manual_seed_all", lambda seed: None)  # noqa: B010 (mypy does not know it of all)


_CACHE = tempfile.mkdtemp(prefix="tintype-tests-")
os.environ["TINTYPE_CACHE"] = _CACHE  # nothing of the user's is read or written
atexit.register(shutil.rmtree, _CACHE, ignore_errors=True)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--other-rounding", type=int, metavar="SEED", help="round like another machine in every test")
    parser.addoption("--record", action="store_true", help="write the golden numbers instead of comparing them")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("--other-rounding") is not None:
        for item in items:
            if isinstance(item, pytest.Function) and "other_rounding" not in item.fixturenames:
                item.fixturenames.append("other_rounding")


@pytest.fixture
def other_rounding(request: pytest.FixtureRequest) -> Iterator[None]:
    """Round like another machine: for tests that compare two computations of the same numbers."""
    with OtherRounding(request.config.getoption("--other-rounding") or 0):
        yield


@pytest.fixture(autouse=True)
def no_armed_faults() -> object:
    from tintype.runtime import fault

    yield
    fault.disarm()
    return None


@pytest.fixture(autouse=True)
def own_signal_handlers() -> Iterator[None]:
    """Undo what `main` leaves to the end of its process."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGALRM)}
    hook = sys.unraisablehook
    yield
    sys.unraisablehook = hook
    for number, handler in before.items():
        signal.signal(number, handler)
