"""Make garbage collections shorter in long-lived processes."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def without_pauses() -> Iterator[None]:
    """Exclude all loaded objects from garbage collection.

    Otherwise, each collection would scan these objects for a quarter of a second.
    """
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


@contextmanager
def without_collections() -> Iterator[None]:
    """Pause garbage collection while many long-lived objects are read.

    Otherwise, each collection would scan all these objects.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
