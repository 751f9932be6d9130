"""Change files of a run or study and give them the right checksum: for tests of what else a reader refuses."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tintype.plan import Plan
from tintype.runtime import files


def write_plan(folder: Path, plan: Plan) -> None:
    """Make a folder that of a run, before other files of the run are written there."""
    folder.mkdir(parents=True, exist_ok=True)
    files.write_sealed(folder / files.PLAN, plan.to_yaml(), run=plan.hash)


def edit_json(path: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    """Let `change` alter the content of a JSON file."""
    content = json.loads(path.read_text())
    content.pop("checksum", None)
    content.pop("seal", None)
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
