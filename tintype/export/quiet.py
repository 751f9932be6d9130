"""Silence the deprecations, warnings and progress bars of diffusers and transformers."""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

from tintype.pretrained.packages import diffusers_package


@contextmanager
def quiet_diffusers() -> Iterator[None]:
    logs = [diffusers_package().utils.logging, importlib.import_module("transformers.utils.logging")]
    before = [(log, log.get_verbosity(), log.is_progress_bar_enabled()) for log in logs]
    for log in logs:
        log.set_verbosity_error()
        log.disable_progress_bar()
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", category=FutureWarning, module="diffusers")
            yield
    finally:
        for log, verbosity, bars in before:
            log.set_verbosity(verbosity)
            if bars:
                log.enable_progress_bar()
