"""The single JSON document that a command with `--json` writes to stdout, which is its result or its error.

A command sets its document with `put`. With `--json`, everything that the command prints to stdout is dropped. Without
`--json`, the command prints as usual.
"""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout
from typing import TextIO

from tintype.errors import DivergedError, UserError
from tintype.terminal.interrupts import Interrupted, last_words

DIVERGED = 3
"""Exit code of a command if its run diverged, or if it was given a diverged run."""
EXIT_CODES = {
    0: "done",
    1: "done, and bad news: runs failed or diverged, `audit` found lost precision, `bench --against` is slower, `push` "
    "was declined; or a fault of tintype itself, with its traceback",
    2: "not done: the request, a file or the disk is not as it should be; the message says what to do",
    DIVERGED: "a run has diverged, or a diverged run was given",
    130: "stopped by SIGINT (Ctrl-C); the same command resumes",
    141: "the reader of stdout went away",
    143: "stopped by SIGTERM; the same command resumes",
}
_NONE, _WRITTEN = object(), object()


class _State:
    """The document of this process's command."""

    asked = False
    document: object = _NONE
    stdout: TextIO | None = None
    """The real stdout for the document, while printed text is dropped."""


def put(document: object) -> None:
    """Set the document of this command. Without `--json`, write the document immediately."""
    if _State.asked:
        _State.document = document
    else:
        _write(document, sys.stdout)


def put_now(document: object) -> None:
    """Write the document of a command that runs until a signal ends it. Do nothing without `--json`."""
    if _State.asked and _State.stdout is not None:
        _State.document = _WRITTEN
        _write(document, _State.stdout)
        _State.stdout.flush()


def exit_code(error: BaseException) -> int:
    if isinstance(error, SystemExit):
        return error.code if isinstance(error.code, int) else int(error.code is not None)
    if isinstance(error, Interrupted):
        return 128 + error.number
    if isinstance(error, UserError | OSError):
        return DIVERGED if isinstance(error, DivergedError) else 2
    return 1


def write_error(code: int, message: str, stream: TextIO | None = None) -> None:
    _write(_error(code, message), stream or sys.stdout)


@contextmanager
def one_document(silent: Callable[[], bool] = lambda: False) -> Iterator[None]:
    """Write one document to stdout, whether the command succeeds or fails. A `silent` rank writes nothing."""
    stdout = sys.stdout
    _State.asked, _State.document, _State.stdout = True, _NONE, stdout
    try:
        with redirect_stdout(io.StringIO()):
            yield
    except BaseException as error:
        if _State.document is _NONE:
            _State.document = _ended(error)
        raise
    finally:
        _State.asked = False
        if not silent() and _State.document not in (_NONE, _WRITTEN):
            _write(_State.document, stdout)


def _ended(error: BaseException) -> dict[str, object]:
    code = exit_code(error)
    if isinstance(error, UserError):
        return _error(code, str(error), error.problem, error.fix)
    stopped = isinstance(error, SystemExit | Interrupted)
    return _error(code, last_words() or "interrupted" if stopped else str(error) or type(error).__name__)


def _error(code: int, message: str, problem: str = "", fix: str = "") -> dict[str, object]:
    return {"error": {"code": code, "message": message, "problem": problem or message, "fix": fix}}


def _write(document: object, stream: TextIO) -> None:
    text = json.dumps(document, indent=1, allow_nan=False)
    stream.write(text.replace("\x7f", "\\u007f") + "\n")  # the only control character that JSON does not escape
