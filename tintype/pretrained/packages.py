"""Packages that an extra of tintype brings, imported where they are needed."""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import Any, TypeAlias

from tintype.errors import UserError

Untyped: TypeAlias = Any
"""A network, config or tokenizer of a class that transformers or diffusers picks when it runs."""


def optional_package(name: str, extra: str, user: str) -> ModuleType:
    """Import a package; `user` names in words what needs it."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise UserError(f"{user} needs {name} ({error}): pip install 'tintype[{extra}]'") from None


def transformers_package() -> ModuleType:
    return optional_package("transformers", "encoders", "this encoder")


def diffusers_package() -> ModuleType:
    return optional_package("diffusers", "diffusers", "this")
