"""A view shows the progress of a library function on the terminal, and then its result."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar, runtime_checkable

from tintype.terminal import answers
from tintype.terminal.lines import progress_console

if TYPE_CHECKING:
    from rich.console import Console

R = TypeVar("R")


@runtime_checkable
class Ended(Protocol):
    """A result that sets the exit code of its command; 0 means success."""

    @property
    def exit_code(self) -> int: ...


class View(Generic[R]):
    """The terminal output of one command. With `--json`, the document contains the result, and lines go to stderr."""

    def __init__(self, console: Console, given: Mapping[str, Any], as_json: bool) -> None:
        self.console, self.given = console, given
        self.lines = progress_console if as_json else console
        self.as_json = as_json

    @contextmanager
    def calls(self) -> Iterator[dict[str, Any]]:
        """Show progress while the function runs. Yield the callbacks that the caller passes to the function."""
        yield {}

    def show(self, result: R) -> None:
        raise NotImplementedError

    def document(self, result: R) -> object:
        """Return the object that is written as JSON, which is the result or an object of another type."""
        return result

    def finish(self, result: R) -> None:
        """Print the result or write it as JSON. End the command with the result's exit code if the code is not 0."""
        if not self.as_json:
            self.show(result)
        elif not self.console.quiet:  # another rank prints it
            from pydantic import TypeAdapter  # slow to import

            found = self.document(result)
            answers.put(TypeAdapter(type(found)).dump_python(found, mode="json"))
        if isinstance(result, Ended) and result.exit_code:
            sys.exit(result.exit_code)
