"""Folders and files that are whole or absent: written beside their place, then renamed into it."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from safetensors import SafetensorError

from tintype.errors import UserError

_WRITING = "writing"


def refuse_existing(target: Path) -> None:
    """Nothing is written over. An empty folder will do."""
    if target.is_dir() and not any(target.iterdir()):
        return
    if target.exists() or target.is_symlink():
        raise UserError(f"{target} is there already, and nothing is written over it; choose another --out")


@contextmanager
def written_whole(target: Path) -> Iterator[Path]:
    """A temporary path beside the target, to be made a folder or a file, that takes the target's name at the end.

    What goes wrong before leaves nothing behind; what a process that was killed left is removed by the next one.
    """
    refuse_existing(target)
    target = target.absolute()
    temporary = target.with_name(f".{target.name}.{_WRITING}-{os.getpid()}")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        for leftover in target.parent.glob(f".{target.name}.{_WRITING}-*"):
            if not _alive(leftover):
                _remove(leftover)
        _remove(temporary)
        yield temporary
        refuse_existing(target)
        temporary.rename(target)
    except (OSError, SafetensorError) as error:
        reason = error.strerror if isinstance(error, OSError) else None
        raise UserError(f"cannot write {target}: {reason or error}; make room or choose another --out") from error
    finally:
        _remove(temporary)


def _alive(leftover: Path) -> bool:
    """Whether the process that writes it is at work."""
    number = leftover.name.rpartition("-")[2]
    if not number.isdigit() or int(number) == os.getpid():
        return False
    try:
        os.kill(int(number), 0)  # asks, and sends nothing
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        return True
    return True


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    elif path.exists() or path.is_symlink():
        path.unlink()
