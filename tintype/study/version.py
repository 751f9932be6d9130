"""Record and check the version that began a study. Versions that compute other numbers in training must not join."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import tintype
from tintype.errors import UserError
from tintype.runtime.files import read_checked
from tintype.runtime.machine import code_commit
from tintype.study.study import remake_study
from tintype.wording import option

VERSION = "version.json"
"""The file in a study's folder that records the version."""
FIRST_NUMERICS = 1
"""The `NUMERICS` of all versions that did not record this number."""


def this_version() -> dict[str, Any]:
    return {"tintype": tintype.__version__, "commit": code_commit(), "numerics": tintype.NUMERICS}


def read_version(out: Path) -> dict[str, Any]:
    """Return the version that began a study; empty if no version was recorded."""
    return read_checked(out / VERSION, remake_study(out))


def check_version(out: Path) -> None:
    """Raise if this version computes different numbers in training than the version that began the study."""
    begun = read_version(out)
    if begun and begun.get("numerics") != tintype.NUMERICS:
        commit = f", commit {begun['commit']}" if begun.get("commit") else ""
        raise UserError(
            f"{out} was started with tintype {begun.get('tintype')}{commit}, whose training gives other numbers "
            f"(NUMERICS {begun.get('numerics')}, but {tintype.NUMERICS} in this version), so its runs could "
            f"not be compared with new runs",
            f"use that version of tintype, or start again in another {option('out')}",
        )


def version_events(environment: Mapping[str, object], out: Path) -> list[dict[str, object]]:
    """Return an event if a run was last trained by a version or commit different from the one that began the study."""
    if "tintype" not in environment or not (begun := read_version(out)):
        return []
    own = {"tintype": environment["tintype"], "commit": environment.get("commit", "")}
    other = {key: value for key, value in own.items() if value != begun.get(key)}
    if not other:
        return []
    words = {
        key: f"{value or 'unknown'}; the study was begun by {begun.get(key) or 'unknown'}"
        for key, value in other.items()
    }
    return [{"event": "another-version", "step": 0, **words}]
