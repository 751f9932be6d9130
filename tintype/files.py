"""Files that are whole or absent: written beside their place, then renamed into it."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tintype.errors import UserError


@contextmanager
def written_beside(path: Path, *, durable: bool = False) -> Iterator[Path]:
    """A path to write the file to, which takes the file's name at the end. What goes wrong before leaves nothing.

    Of two processes that write one file, the later wins. A `durable` one lies on the disk before anything goes on.
    """
    temporary = path.with_name(f".{path.name}.writing-{os.getpid()}")
    try:
        yield temporary
        if durable:
            flush(temporary)
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    if durable:
        flush(path.parent)


def remove_unfinished(folder: Path) -> None:
    """Remove what processes that were killed in the middle of `written_beside` have left in a folder."""
    for file in folder.glob(".*.writing-*"):
        process = file.name.rpartition("-")[2]
        if process.isdigit() and not _is_alive(int(process)):
            file.unlink(missing_ok=True)


def _is_alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except OSError:  # it is another user's
        return True
    return True


def write_bytes(path: Path, content: bytes, *, durable: bool = False) -> None:
    with written_beside(path, durable=durable) as temporary:
        temporary.write_bytes(content)


def write_text(path: Path, text: str) -> None:
    write_bytes(path, text.encode("utf-8"))


def write_json(path: Path, content: Any) -> None:
    write_text(path, json.dumps(content, indent=1) + "\n")


def read_json(path: Path) -> dict[str, Any]:
    """What an earlier `write_json` wrote there; empty where there is no file."""
    if not path.exists():
        return {}
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return found


def read_lines(path: Path) -> list[dict[str, Any]]:
    """The whole lines of a JSON-lines file; a last line without its end was cut short and is left out."""
    if not path.exists():
        return []
    text = path.read_text(encoding="utf-8")
    try:
        return [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]
    except ValueError as error:
        raise UserError(f"{path} has a line that is not JSON ({error}); mend or remove the file") from None


def flush(path: Path) -> None:
    """Returns when the file, or the list of the names in the folder, is on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sha256_of(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
