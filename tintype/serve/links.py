"""Find links that point outside of the served folder. A study or run with such a link is not shown."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path

from tintype.train.record import CHECKPOINTS, KEPT, SNAPSHOTS

_DEEPEST = 6
_MOST_FOLDERS = 100_000
_UNREAD = (CHECKPOINTS, SNAPSHOTS, KEPT, "samples")
"""Subfolders of a run without a link check: no page shows them, and they are large or on another disk."""
_SETTLED_NS = 1_000_000_000
"""Minimum age of a folder's last change to cache its listing: later changes then get another modification time."""


class Links:
    """Finder of links that point outside of the served folder. Listings are cached until a folder changes."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._listed: dict[str, tuple[tuple[int, int], Sequence[str], Sequence[str]]] = {}
        """For each folder: inode, modification time, subfolders and links."""

    def stay_inside(self, folder: Path) -> bool:
        """Return whether all links in a study's or run's folder, and in their targets, stay in the served folder."""
        waiting, seen = [(str(folder), 0)], {str(folder)}
        for place, depth in waiting:
            folders, links = self._list(place)
            targets = [os.path.realpath(link) for link in links]
            if not all(Path(target).is_relative_to(self._root) for target in targets):
                return False
            inner = [one for one in (*folders, *targets) if one not in seen] if depth < _DEEPEST else []
            seen.update(inner)
            waiting += [(one, depth + 1) for one in inner]  # which this loop reaches later
        return True

    def _list(self, place: str) -> tuple[Sequence[str], Sequence[str]]:
        """Return the folders and the links in a folder. Both lists are empty for a file or a missing path."""
        try:
            about = os.stat(place)  # noqa: PTH116 (a path's own stat is slower)
            stamp, known = (about.st_ino, about.st_ctime_ns), self._listed.get(place)
            if known is not None and known[0] == stamp:
                return known[1:]
            is_settled = time.time_ns() - about.st_ctime_ns > _SETTLED_NS
            with os.scandir(place) as entries:
                read = [one for one in entries if one.name not in _UNREAD]
                links = [one.path for one in read if one.is_symlink()]
                folders = [one.path for one in read if one.is_dir(follow_symlinks=False)]
        except OSError:
            return (), ()
        if is_settled:
            if len(self._listed) >= _MOST_FOLDERS:
                self._listed.clear()
            self._listed[place] = stamp, folders, links
        return folders, links
