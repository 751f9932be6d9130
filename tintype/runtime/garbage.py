"""Make garbage collection shorter in long-lived processes."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def without_pauses() -> Iterator[None]:
    """Exclude all loaded objects from garbage collection. Scanning them takes a quarter of a second per collection."""
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


@contextmanager
def without_collections() -> Iterator[None]:
    """Pause garbage collection while many long-lived objects are read. Each collection would scan all these objects."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
