"""Links in studies and runs that lead out of the served folder: nothing is shown of a folder that has one."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path

from tintype.train.record import CHECKPOINTS, KEPT, SNAPSHOTS

_DEEPEST = 6
_MOST_FOLDERS = 100_000
_UNREAD = (CHECKPOINTS, SNAPSHOTS, KEPT, "samples")
"""Folders of a run that no page shows. They are large, and may be links to another disk."""
_SETTLED_NS = 1_000_000_000
"""The listing of a folder is cached once its last change is this old: a later change then has another time."""


class Links:
    """Finds links that lead out of a served folder. A folder is listed again once it has changed."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._listed: dict[str, tuple[tuple[int, int], Sequence[str], Sequence[str]]] = {}
        """By folder: its inode and last change, and the folders and the links in it."""

    def stay_inside(self, folder: Path) -> bool:
        """Return whether no link in a study or a run leads out, nor one in the places that its links lead to."""
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
        """Return the folders and the links in a folder; none in a file, or where nothing is."""
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
