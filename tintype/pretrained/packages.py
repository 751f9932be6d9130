"""Import packages of tintype's optional extras when they are needed."""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any, TypeAlias

from tintype.errors import UserError

Untyped: TypeAlias = Any
"""A network, config or tokenizer whose class transformers or diffusers chooses at run time."""


def optional_package(name: str, extra: str, user: str) -> ModuleType:
    """Import an optional package. `user` describes what needs the package, for the error message."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise UserError(f"{user} needs {name} ({error})", f"pip install 'tintype[{extra}]'") from None


def transformers_package() -> ModuleType:
    return optional_package("transformers", "encoders", "this encoder")


def diffusers_package() -> ModuleType:
    return optional_package("diffusers", "diffusers", "this")


def pipeline_class(name: str) -> Untyped:
    """Return the class of a PRX pipeline, and restore `T5GemmaEncoder`, which transformers 5.22 loses on reload."""
    kind, transformers = getattr(diffusers_package(), name), transformers_package()
    if not hasattr(transformers, "T5GemmaEncoder"):
        added = importlib.import_module("diffusers.pipelines.prx").T5GemmaEncoder
        transformers.T5GemmaEncoder = added  # type: ignore[attr-defined]
    return kind


@contextmanager
def quiet(*names: str) -> Iterator[None]:
    """Silence warnings, reports and progress bars of these packages, whose logging is like that of transformers."""
    logs = [importlib.import_module(f"{name}.utils.logging") for name in names]
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
