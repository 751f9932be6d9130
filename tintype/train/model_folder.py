"""Read what `tintype export --to tintype` writes: a run's plan and weights without the state of its training.

The folder looks like that of a run, so that every command which samples or scores a run takes it. `tintype.json` says
that it is an export, which weights it has, and the SHA-256 of its files. The weights have checksums of their own, as
any checkpoint. Local weights that the plan names are in the folder, and `plan.yaml` names them by `./`.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from shlex import quote
from typing import Any

from tintype.errors import UserError
from tintype.runtime.files import read_json, sha256_of

ABOUT = "tintype.json"
FORM = "tintype"


def read_about(folder: Path) -> Mapping[str, Any]:
    """Return what an export says about itself; nothing for the folder of a run."""
    try:
        about = read_json(folder / ABOUT)
    except ValueError as error:
        raise UserError(f"{folder / ABOUT} is damaged ({error}); export or download the model again") from None
    return about if isinstance(about, dict) and about.get("form") == FORM else {}


def check_files(folder: Path, about: Mapping[str, Any]) -> None:
    """Refuse an export whose files are not those that were written."""
    for name, wanted in about["sha256"].items():
        file = folder / name
        if not file.is_file() or sha256_of(file) != wanted:
            state = "has another checksum than when it was exported" if file.is_file() else "is missing"
            raise UserError(f"{file} {state}; export or download the model again")


def refuse_training(folder: Path) -> None:
    """Refuse to resume an export, which has no optimizer state."""
    if about := read_about(folder):
        weights = ",weights=average" if about["weights"] == "average" else ""
        raise UserError(
            f"{folder} is an exported model without the state of its training and cannot be resumed. Start a new run "
            f"from its weights: tintype train {quote(str(folder / 'plan.yaml'))} "
            f"--technique {quote(f'sft:from={folder}{weights}')} --out DIR"
        )
