"""What an expression of `data.where` is computed with: columns, truths and functions.

A value may be missing. A number that is missing is NaN, a text null. As in SQL, a comparison with what is missing is
neither true nor false: truths are 1, -1 and, where it is not known, 0, so that `and` is the smaller of two, `or` the
larger, and `not` the opposite. (Kleene's logic.)
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from tintype.errors import UserError

if TYPE_CHECKING:
    from tintype.data.store.layout import Store

Type = Literal["number", "text", "truth"]


class Columns:
    """The columns of a store as they are computed with."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def number(self, name: str) -> NDArray[np.float64]:
        from pyarrow import ArrowInvalid, float64

        try:
            numbers: NDArray[np.float64] = self._store.column(name).cast(float64()).to_numpy()
        except ArrowInvalid:
            raise UserError(
                f"{name} of {self._store.path} has whole numbers beyond ±2^53, which cannot be compared exactly here; "
                "import it as text: --attribute NAME=COLUMN:text"
            ) from None
        return numbers

    def text(self, name: str) -> Any:
        return self._store.column(name)

    def truth(self, name: str) -> NDArray[np.int8]:
        return truths_in(self._store.column(name))


def truth(found: Any, known: Any = True) -> Any:
    return np.where(known, np.where(found, 1, -1), 0).astype(np.int8)


def truths_in(column: Any) -> NDArray[np.int8]:
    """Of an Arrow column of booleans."""
    found: NDArray[np.int8] = truth(column.fill_null(False).to_numpy(), ~column.is_null().to_numpy())
    return found


def compared(compare: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """A comparison of numbers."""
    return lambda first, second: truth(compare(first, second), ~(np.isnan(first) | np.isnan(second)))


def same_text(first: Any, second: Any) -> Any:
    from pyarrow import compute

    if isinstance(first, str) and isinstance(second, str):
        return truth(first == second)
    return truths_in(compute.equal(first, second))


def same_truth(first: Any, second: Any) -> Any:
    return first * second


def word_counts(column: Any) -> NDArray[np.float64]:
    """Of every text of an Arrow column how many words it has, parted by white space."""
    from pyarrow import compute

    trimmed = compute.utf8_trim_whitespace(column.fill_null(""))
    count = compute.list_value_length(compute.utf8_split_whitespace(trimmed)).to_numpy()
    empty = compute.equal(compute.utf8_length(trimmed), 0).to_numpy()
    return np.where(empty, 0, count).astype(np.float64)


def _words(text: Any) -> Any:
    if isinstance(text, str):
        return float(len(text.split()))
    return np.where(text.is_null().to_numpy(), np.nan, word_counts(text))


def _characters(text: Any) -> Any:
    from pyarrow import compute, float64

    return float(len(text)) if isinstance(text, str) else compute.utf8_length(text).cast(float64()).to_numpy()


def _on_text(name: str) -> Callable[[Any, str], Any]:
    """A function of Arrow on a text and a pattern."""

    def found(text: Any, pattern: str) -> Any:
        import pyarrow
        from pyarrow import compute

        if isinstance(text, str):
            text = pyarrow.chunked_array([[text]])
        return truths_in(getattr(compute, name)(text, pattern))

    return found


def _lower(text: Any) -> Any:
    from pyarrow import compute

    return text.lower() if isinstance(text, str) else compute.utf8_lower(text)


def _missing(value: Any) -> Any:
    if isinstance(value, str):
        return truth(False)
    if isinstance(value, float | np.ndarray | np.generic):
        return truth(value == 0 if np.asarray(value).dtype == np.int8 else np.isnan(value))
    return truth(value.is_null().to_numpy())


@dataclass(frozen=True)
class Function:
    takes: tuple[Type | Literal["any"], ...]
    gives: Type
    compute: Callable[..., Any]
    example: str
    pattern: bool = False
    """Whether its last value is a text that must be known before."""


FUNCTIONS = {
    "words": Function(("text",), "number", _words, "words(long)"),
    "characters": Function(("text",), "number", _characters, "characters(long)"),
    "min": Function(("number", "number"), "number", np.minimum, "min(width, height)"),
    "max": Function(("number", "number"), "number", np.maximum, "max(width, height)"),
    "lower": Function(("text",), "text", _lower, "lower(long)"),
    "contains": Function(("text", "text"), "truth", _on_text("match_substring"), "contains(long, 'dog')", True),
    "starts": Function(("text", "text"), "truth", _on_text("starts_with"), "starts(source, 'train/')", True),
    "ends": Function(("text", "text"), "truth", _on_text("ends_with"), "ends(source, '.png')", True),
    "matches": Function(("text", "text"), "truth", _on_text("match_substring_regex"), "matches(long, '^A ')", True),
    "missing": Function(("any",), "truth", _missing, "missing(score)"),
}
