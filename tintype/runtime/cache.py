"""The user's cache: what is computed or fetched once and can be made again."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from tintype.errors import UserError
from tintype.runtime.files import write_json


def cache_folder() -> Path:
    root = os.environ.get("TINTYPE_CACHE")
    return Path(root).expanduser() if root else Path.home() / ".cache" / "tintype"


@contextmanager
def writing_cache(file: Path, otherwise: str = "") -> Iterator[None]:
    """Raise a `UserError` for an error of the disk. `otherwise` is what a user can do without a cache."""
    try:
        yield
    except OSError as error:
        raise unwritable(file, error, otherwise) from None


def unwritable(path: Path, error: OSError, otherwise: str = "") -> UserError:
    advice = f", or {otherwise}" if otherwise else ""
    return UserError(
        f"cannot write {path}: {error.strerror}; make room, set TINTYPE_CACHE to a folder that can be written{advice}"
    )


def stamp_of(made_of: Mapping[str, object]) -> bytes:
    """Return the SHA-256 of all that decides what a cache holds."""
    return hashlib.sha256(json.dumps(made_of, sort_keys=True).encode()).digest()


def write_header(file: Path, format_number: int, made_of: Mapping[str, object]) -> None:
    """Describe a cache to people, in its folder, which is made."""
    file.parent.mkdir(parents=True, exist_ok=True)
    write_json(file, {"format": format_number, "made_of": made_of})
