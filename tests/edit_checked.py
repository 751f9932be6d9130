"""Change files of a run or study and give them the right checksum: for tests of what else a reader refuses."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tintype.runtime import files


def edit_json(path: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    """Let `change` alter the content of a JSON file."""
    content = json.loads(path.read_text())
    content.pop("checksum", None)
    change(content)
    files.write_checked(path, content, content.get("format", 1))


def edit_lines(path: Path, change: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    """Let `change` return each line of a log anew."""
    files.write_lines(path, [change(line) for line in files.read_lines(path)])


def edit_text(path: Path, old: str, new: str) -> None:
    """Replace words of a plan or study file."""
    text = files.without_seal(path.read_text())
    assert old in text
    files.write_sealed(path, text.replace(old, new))
