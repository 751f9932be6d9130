"""A view of a folder in which what others write appears late, as over NFS, mounted by FUSE.

Names and attributes that this view has looked up stay as they were for a while, also those of files that were not
there: a rename is seen late, and a file that was replaced is still read as it was. Opening a file asks for its size
anew (close-to-open), what this view writes it sees at once, and of two exclusive creates one wins: the other one is
told that the file is there, and sees it from then on. Two views have no locks in common.

Run as a program, it mounts a view: `late_view.py FOLDER MOUNT LAG_S`. It needs root, `/dev/fuse`, libfuse 2 and fusepy
(Debian: `apt-get install fuse3 python3-fusepy`).
"""

from __future__ import annotations

import errno
import os
import random
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

_DEBIAN = "/usr/lib/python3/dist-packages"
_ATTRIBUTES = ("atime", "ctime", "gid", "mode", "mtime", "nlink", "size", "uid")


class LateView:
    """The operations of the file system. Paths begin with a stroke."""

    def __init__(self, folder: str, lag_s: float) -> None:
        self._folder, self._lag_s = folder, lag_s
        self._known: dict[str, tuple[float, int | None, os.stat_result | None]] = {}
        """Until when each path is believed, with its file and attributes; None where it was not there."""
        self._listed: dict[str, tuple[float, list[str]]] = {}

    def __call__(self, operation: str, *given: Any) -> Any:
        if not hasattr(self, operation):
            raise OSError(errno.ENOSYS, "")
        return getattr(self, operation)(*given)

    def _until_s(self) -> float:
        return time.monotonic() + random.uniform(0, self._lag_s)

    def _look_up(self, path: str) -> tuple[int, os.stat_result]:
        until_s, handle, about = self._known.get(path, (0.0, None, None))
        if time.monotonic() > until_s:
            self._forget(path)
            try:
                handle = os.open(self._folder + path, os.O_PATH | os.O_NOFOLLOW)
                about = os.fstat(handle)
            except FileNotFoundError:
                handle = about = None
            self._known[path] = self._until_s(), handle, about
        if handle is None or about is None:
            raise FileNotFoundError(errno.ENOENT, path)
        return handle, about

    def _forget(self, *paths: str) -> None:
        """Forget what was changed by this view."""
        for path in paths:
            for one in [one for one in self._known if one == path or one.startswith(f"{path}/")]:
                _, handle, _ = self._known.pop(one)
                if handle is not None:
                    os.close(handle)

    def _changed(self, *paths: str) -> None:
        self._forget(*paths)
        for path in paths:
            self._listed.pop(path.rpartition("/")[0] or "/", None)
            self._listed.pop(path, None)

    def getattr(self, path: str, info: Any = None) -> dict[str, Any]:
        about = os.fstat(info.fh) if info is not None else self._look_up(path)[1]
        return {f"st_{name}": getattr(about, f"st_{name}") for name in _ATTRIBUTES}

    def readdir(self, path: str, info: Any) -> list[str]:
        until_s, names = self._listed.get(path, (0.0, []))
        if time.monotonic() > until_s:
            names = os.listdir(self._folder + path)  # noqa: PTH208
            self._listed[path] = self._until_s(), names
        return [".", "..", *names]

    def open(self, path: str, info: Any) -> int:
        handle, _ = self._look_up(path)
        info.fh = os.open(f"/proc/self/fd/{handle}", info.flags & ~(os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW))
        self._known[path] = (self._known[path][0], handle, os.fstat(handle))
        return 0

    def create(self, path: str, mode: int, info: Any) -> int:
        self._changed(path)
        info.fh = os.open(self._folder + path, info.flags | os.O_CREAT, mode)
        return 0

    def read(self, path: str, size: int, offset: int, info: Any) -> bytes:
        return os.pread(info.fh, size, offset)

    def write(self, path: str, content: bytes, offset: int, info: Any) -> int:
        self._forget(path)
        if info.flags & os.O_APPEND:
            return os.write(info.fh, content)
        return os.pwrite(info.fh, content, offset)

    def truncate(self, path: str, length: int, info: Any = None) -> int:
        if info is not None:
            os.ftruncate(info.fh, length)
        else:
            os.truncate(f"/proc/self/fd/{self._look_up(path)[0]}", length)
        self._forget(path)
        return 0

    def release(self, path: str, info: Any) -> int:
        os.close(info.fh)
        return 0

    def flush(self, path: str, info: Any) -> int:
        return 0

    def fsync(self, path: str, datasync: int, info: Any) -> int:
        return 0

    def fsyncdir(self, path: str, datasync: int, info: Any) -> int:
        return 0

    def opendir(self, path: str) -> int:
        return 0

    def releasedir(self, path: str, info: Any) -> int:
        return 0

    def access(self, path: str, mode: int) -> int:
        self._look_up(path)
        return 0

    def mkdir(self, path: str, mode: int) -> int:
        self._changed(path)
        os.mkdir(self._folder + path, stat.S_IMODE(mode))  # noqa: PTH102
        return 0

    def rmdir(self, path: str) -> int:
        self._changed(path)
        os.rmdir(self._folder + path)  # noqa: PTH106
        return 0

    def unlink(self, path: str) -> int:
        self._changed(path)
        os.unlink(self._folder + path)  # noqa: PTH108
        return 0

    def rename(self, old: str, new: str) -> int:
        self._changed(old, new)
        os.rename(self._folder + old, self._folder + new)  # noqa: PTH104
        return 0

    def chmod(self, path: str, mode: int) -> int:
        os.chmod(self._folder + path, mode)  # noqa: PTH101
        self._forget(path)
        return 0

    def chown(self, path: str, user: int, group: int) -> int:
        return 0

    def utimens(self, path: str, times: tuple[float, float] | None = None) -> int:
        os.utime(self._folder + path, times)
        self._forget(path)
        return 0

    def statfs(self, path: str) -> dict[str, int]:
        about = os.statvfs(self._folder)
        names = ("bavail", "bfree", "blocks", "bsize", "favail", "ffree", "files", "flag", "frsize", "namemax")
        return {f"f_{name}": getattr(about, f"f_{name}") for name in names}

    def init(self, path: str) -> None:
        pass

    def destroy(self, path: str) -> None:
        pass


def _fusepy() -> Any:
    for name in ("fusepy", "fuse"):
        with suppress(ImportError, OSError):
            found = import_module(name)
            if hasattr(found, "FUSE"):
                return found
    raise ImportError("fusepy or libfuse 2 not found; apt-get install fuse3 python3-fusepy")


@cache
def why_not() -> str:
    """Return why no view can be mounted here; empty where one can."""
    if os.geteuid() != 0:
        return "mounting needs root"
    if not Path("/dev/fuse").exists():
        return "there is no /dev/fuse"
    asked = [sys.executable, __file__]
    tried = subprocess.run(asked, capture_output=True, text=True, check=False)
    return "" if tried.returncode == 0 else tried.stderr.strip().splitlines()[-1]


@contextmanager
def late_view(folder: Path, mount: Path, lag_s: float) -> Iterator[Path]:
    """Mount a view of a folder, in which changes by others are seen up to `lag_s` late."""
    mount.mkdir(parents=True)
    serving = subprocess.Popen([sys.executable, __file__, str(folder), str(mount), str(lag_s)])
    try:
        until_s = time.monotonic() + 20
        while not os.path.ismount(mount):
            assert serving.poll() is None and time.monotonic() < until_s, "the view was not mounted"
            time.sleep(0.05)
        yield mount
    finally:
        subprocess.run(["umount", "--lazy", str(mount)], check=False, capture_output=True)
        serving.terminate()
        serving.wait()


if __name__ == "__main__":
    sys.path.append(_DEBIAN)
    fusepy = _fusepy()
    if len(sys.argv) > 1:
        at_once = {"entry_timeout": 0, "attr_timeout": 0, "negative_timeout": 0}
        view = LateView(sys.argv[1], float(sys.argv[3]))
        fusepy.FUSE(view, sys.argv[2], raw_fi=True, foreground=True, nothreads=True, allow_other=True, **at_once)
