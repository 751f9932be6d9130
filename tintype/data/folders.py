"""List the files of an untrusted folder. Symbolic links in the folder must not lead out of it.

A link to a file within the folder is followed. A link to a subfolder is skipped, since the subfolder's files are listed
anyway. A link that leads out of the folder is refused, unless the user allows such links.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from tintype.errors import UserError
from tintype.wording import option


def files_in(folder: Path, suffixes: Sequence[str] | None = None, follow_links: bool = False) -> list[Path]:
    """Return the files at any depth, sorted by name, without hidden files; raise if a link leads out of the folder.

    If `folder` is a file, return that file.
    """
    if folder.is_file():
        return [folder] if suffixes is None or folder.suffix.lower() in suffixes else []
    root = _real(folder)
    found: list[Path] = []
    outside: list[Path] = []
    seen = {root}
    for place, folders, files in os.walk(folder, followlinks=follow_links):
        links = [Path(place, name) for name in _shown(folders) if Path(place, name).is_symlink()]
        leaving = [link for link in links if leaves(link, root)]
        new = {
            _real(link): link.name for link in leaving if _real(link) not in seen
        }  # a link may lead to a parent folder
        seen.update(new)
        folders[:] = [name for name in _shown(folders) if Path(place, name) not in links or name in new.values()]
        paths = [Path(place, name) for name in _shown(files)]
        outside += leaving + [path for path in paths if path.is_symlink() and leaves(path, root)]
        found += [path for path in paths if path.is_file() and (suffixes is None or path.suffix.lower() in suffixes)]
    if outside and not follow_links:
        raise _refusal(folder, outside)
    return sorted(found)


def leaves(path: Path, root: Path) -> bool:
    """Return whether a path leads out of the folder `root`. `root` must be a resolved path."""
    return not _real(path).is_relative_to(root)


def check_inside(folder: Path, files: Sequence[Path], follow_links: bool) -> None:
    """Raise if a data set names a file that is a link out of the data set's folder."""
    root = _real(folder)
    if not follow_links and (outside := [file for file in files if leaves(file, root)]):
        raise _refusal(folder, outside)


def first_folder(file: Path, source: Path) -> str | None:
    """Return the first folder on the path from `source` to a file. Data sets often have one such folder per split."""
    parts = file.relative_to(source).parts
    return parts[0] if len(parts) > 1 else None


def leads_out(name: str) -> bool:
    """Return whether a path that a data set names points outside the data set."""
    return name.startswith(("/", "\\")) or ".." in name.replace("\\", "/").split("/")


def _refusal(folder: Path, outside: Sequence[Path]) -> UserError:
    first = min(outside)
    others = f" and {len(outside) - 1:,} more are links that lead" if len(outside) > 1 else " is a link that leads"
    return UserError(
        f"{first}{others} out of {folder} (to {_real(first)})",
        "put the files themselves there (`cp -rL` copies them); "
        f"if the command has the option {option('follow-links')}, it reads the targets of the links",
    )


def _real(path: Path) -> Path:
    """Return the resolved path. Unlike `Path.resolve`, accept links to themselves."""
    return Path(os.path.realpath(path))


def _shown(names: Sequence[str]) -> list[str]:
    return [name for name in names if not name.startswith(".")]
