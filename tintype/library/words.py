"""Messages for people who call functions. The rooms below name the options of commands, which have the same names."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

from tintype.errors import UserError

P = ParamSpec("P")
R = TypeVar("R")
_COMMAND = re.compile(r"(`[^`]*`)")
_SET, _OPTION = re.compile(r"--(?:set|technique) +(?=['\"]|[\w.-]+[=:])"), re.compile(r"--([a-z][a-z-]*)")
_OTHER_NAMES = {"set": "settings", "technique": "techniques", "arm-seed": "seed"}
_AGAIN = ("run the same command", "make the same call"), ("the same command", "the same call")


def in_python(text: str) -> str:
    """Return a message that names arguments of functions where it names options of commands.

    A whole command, between backticks, stays: it can be run as it is.
    """
    return "".join(part if part.startswith("`") else _reworded(part) for part in _COMMAND.split(text))


def _reworded(text: str) -> str:
    text = _SET.sub("", text)
    for command, call in _AGAIN:
        text = text.replace(command, call)
    return _OPTION.sub(lambda found: f"`{_argument(found[1])}`", text)


def _argument(option: str) -> str:
    return _OTHER_NAMES.get(option, option.replace("-", "_"))


def for_python(function: Callable[P, R]) -> Callable[P, R]:
    """Return the function with messages for people who call it from Python."""

    @wraps(function)
    def called(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return function(*args, **kwargs)
        except UserError as error:
            error.args = (in_python(str(error)),)
            raise

    return called
