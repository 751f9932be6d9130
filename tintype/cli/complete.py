"""Shell completion of names.

This module does not import torch, since the import takes seconds and completion runs at every press of the tab key.
"""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from pathlib import Path

TECHNIQUES = Path(__file__).parents[1] / "techniques"
_NO_TECHNIQUES = ("__init__", "technique", "apply")
_WIDTH = 80


def recipe_names(incomplete: str) -> list[tuple[str, str]]:
    return _packaged("plans", incomplete)


def study_names(incomplete: str) -> list[tuple[str, str]]:
    return _packaged("studies", incomplete)


def preset_names(incomplete: str) -> list[tuple[str, str]]:
    return _packaged("data", incomplete)


def technique_names(incomplete: str) -> list[tuple[str, str]]:
    """Return each technique as `name: description`, with the first line of its file as the description."""
    files = [file for file in sorted(TECHNIQUES.glob("*.py")) if file.stem not in _NO_TECHNIQUES]
    return _matching({file.stem.replace("_", "-"): _summary(file) for file in files}, incomplete)


def _packaged(kind: str, incomplete: str) -> list[tuple[str, str]]:
    from tintype.recipes import packaged

    return _matching({name: packaged.describe(kind, name) for name in packaged.names(kind)}, incomplete)


def _matching(described: Mapping[str, str], incomplete: str) -> list[tuple[str, str]]:
    """Return the matching names with their descriptions, shortened to one line as shells require."""
    found = {name: words for name, words in described.items() if name.startswith(incomplete)}
    return [(name, textwrap.shorten(words, _WIDTH, placeholder=" ...")) for name, words in found.items()]


def _summary(file: Path) -> str:
    with file.open(encoding="utf-8") as lines:
        return next(lines).strip().strip('"').partition(": ")[2].removesuffix(".")
