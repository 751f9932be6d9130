"""The user's cache folder. Cached files can be computed or downloaded again."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from contextlib import AbstractContextManager
from pathlib import Path

from tintype.errors import as_user_error
from tintype.runtime.files import write_json


def cache_folder() -> Path:
    root = os.environ.get("TINTYPE_CACHE")
    return Path(root).expanduser() if root else Path.home() / ".cache" / "tintype"


def writing_cache(path: Path, otherwise: str = "") -> AbstractContextManager[None]:
    """Turn disk errors while a cache is written into a `UserError`. `otherwise` says how to avoid the cache."""
    advice = f", or {otherwise}" if otherwise else ""
    remedy = f"make room, set TINTYPE_CACHE to a folder that can be written{advice}"
    return as_user_error(OSError, f"cannot write {path}", remedy)


def stamp_of(made_of: Mapping[str, object]) -> bytes:
    """Return the SHA-256 of all inputs that determine a cache's content."""
    return hashlib.sha256(json.dumps(made_of, sort_keys=True).encode()).digest()


def write_header(file: Path, format_number: int, made_of: Mapping[str, object]) -> None:
    """Write a readable description of a cache to its folder. Make the folder if it is missing."""
    file.parent.mkdir(parents=True, exist_ok=True)
    write_json(file, {"format": format_number, "made_of": made_of})
