"""Write folders and files completely or not at all. Existing folders and files are never overwritten."""

from __future__ import annotations

import glob
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tintype.errors import UserError, as_user_error
from tintype.runtime.files import remove_unfinished, written_beside
from tintype.wording import option


def refuse_existing(target: Path) -> None:
    """Raise if the target exists and is not an empty folder."""
    if target.is_dir() and not any(target.iterdir()):
        return
    if target.exists() or target.is_symlink():
        raise UserError(f"{target} exists already and is not overwritten", f"choose another {option('out')}")


@contextmanager
def written_whole(target: Path) -> Iterator[Path]:
    """Yield a temporary path for a file or folder. At the end, rename it to the target."""
    refuse_existing(target)
    target = target.absolute()
    with as_user_error(OSError, f"cannot write {target}", f"free some disk space, or choose another {option('out')}"):
        target.parent.mkdir(parents=True, exist_ok=True)
        remove_unfinished(target.parent, glob.escape(target.name))
        with written_beside(target) as temporary:
            yield temporary
            refuse_existing(target)
