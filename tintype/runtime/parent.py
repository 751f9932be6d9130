"""End a process when its parent process ends for any reason.

Linux kills the process immediately (PR_SET_PDEATHSIG). On other systems, a thread polls the parent.

As a script (`parent.py PARENT COMMAND...`), this file replaces itself by another program that ends with its parent. The
script imports only the standard library, so it starts in milliseconds.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import threading
import time
from collections.abc import Sequence

_CHECK_S = 0.5
_PR_SET_PDEATHSIG = 1
_EXIT_CODE = 128 + signal.SIGKILL


def end_with_parent(parent: int) -> None:
    """Kill this process when `parent`, the process that started it, ends.

    On Linux, the kernel kills this process when the *thread* that started this process ends. If that thread may end
    before the parent process, use `watch_parent`.
    """
    if not _kill_with_parent():
        watch_parent(parent)
    _end_orphan(parent)  # the parent may have ended before the call above


def watch_parent(parent: int) -> None:
    """Start a thread that kills this process soon after `parent`, the process that started it, has ended."""

    def watch() -> None:
        while True:
            _end_orphan(parent)
            time.sleep(_CHECK_S)

    threading.Thread(target=watch, name="parent", daemon=True).start()


def command_with_parent(command: Sequence[str]) -> list[str]:
    """Return a command that ends when this process ends; outside of Linux, return `command` unchanged."""
    if sys.platform != "linux":
        return list(command)
    return [sys.executable, "-I", "-S", __file__, str(os.getpid()), *command]


def _kill_with_parent() -> bool:
    """Ask the kernel to kill this process when its parent ends; return False if the kernel cannot do this."""
    if sys.platform != "linux":
        return False
    try:
        return bool(ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0) == 0)
    except (OSError, AttributeError):  # the C library lacks the function
        return False


def _end_orphan(parent: int) -> None:
    """End this process immediately if its parent is gone. When a parent ends, its child gets another parent."""
    if os.getppid() != parent:
        os._exit(_EXIT_CODE)


def main() -> None:
    _kill_with_parent()
    _end_orphan(int(sys.argv[1]))
    try:
        os.execvp(sys.argv[2], sys.argv[2:])
    except OSError as error:
        sys.stderr.write(f"{sys.argv[2]}: {error.strerror}\n")
        sys.exit(127)


if __name__ == "__main__":
    main()
