"""Keeps back what diffusers says of its own affairs: deprecations inside it, and of steps that are meant as given."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager

from tintype.tokenizers.published import diffusers_package


@contextmanager
def quiet_diffusers() -> Iterator[None]:
    log = diffusers_package().utils.logging
    before = log.get_verbosity()
    log.set_verbosity_error()
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", category=FutureWarning, module="diffusers")
            yield
    finally:
        log.set_verbosity(before)
