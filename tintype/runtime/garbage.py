"""Make garbage collection shorter in long-lived processes."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def without_pauses() -> Iterator[None]:
    """Exclude loaded objects from garbage collection: scanning all imports takes a quarter of a second."""
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


@contextmanager
def without_collections() -> Iterator[None]:
    """Collect no garbage while much is read that stays: each collection would scan all of it."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
