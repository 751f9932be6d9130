"""End a process when the one that started it ends, however that one ends.

Linux kills it at once (PR_SET_PDEATHSIG). Elsewhere a thread checks whether the parent is still there.

Run as a script, this file becomes another program that ends with its parent: `parent.py PARENT COMMAND...`. It imports
the standard library alone, so that this takes milliseconds.
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

    Linux does so when the *thread* that started this process ends: where that thread may end before its process, use
    `watch_parent`.
    """
    if not _kill_with_parent():
        watch_parent(parent)
    _end_orphan(parent)  # the parent may have ended before the kernel was asked


def watch_parent(parent: int) -> None:
    """Start a thread that kills this process soon after `parent`, the process that started it, has ended."""

    def watch() -> None:
        while True:
            _end_orphan(parent)
            time.sleep(_CHECK_S)

    threading.Thread(target=watch, name="parent", daemon=True).start()


def command_with_parent(command: Sequence[str]) -> list[str]:
    """Return the command line that runs a program and ends it with this process; elsewhere than on Linux, as it is."""
    if sys.platform != "linux":
        return list(command)
    return [sys.executable, "-I", "-S", __file__, str(os.getpid()), *command]


def _kill_with_parent() -> bool:
    """Ask the kernel to kill this process with its parent; False where it cannot."""
    if sys.platform != "linux":
        return False
    try:
        return bool(ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0) == 0)
    except (OSError, AttributeError):  # a C library without it
        return False


def _end_orphan(parent: int) -> None:
    """End this process at once if its parent is gone: an orphan has another parent."""
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
