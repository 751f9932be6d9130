"""The public library.

`import tintype` provides the functions of this package, and the commands call the same functions.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

from tintype.errors import UserError
from tintype.runtime.notes import notes_in

P = ParamSpec("P")
R = TypeVar("R")


def for_python(function: Callable[P, R]) -> Callable[P, R]:
    """Return the function with errors and notes for Python, which name arguments instead of command-line options."""

    @wraps(function)
    def called(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            with notes_in("python"):
                return function(*args, **kwargs)
        except UserError as error:
            error.speak("python")
            raise

    return called
