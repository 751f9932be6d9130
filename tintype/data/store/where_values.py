"""The values of `data.where` expressions: columns, truths and functions.

A value may be missing. A missing number is NaN, a missing text null. As in SQL, a comparison with a missing value is
neither true nor false: truths are 1, -1 and, where unknown, 0, so that `and` is the smaller of two, `or` the larger,
and `not` the negative (Kleene's logic).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from tintype.data.store.layout import Store
from tintype.errors import UserError

if TYPE_CHECKING:
    import pyarrow

Type = Literal["number", "text", "truth"]
Value: TypeAlias = Any
"""A float or an array of floats, a str or an Arrow column of texts, or truths as an array of -1, 0 and 1."""


class Columns:
    """The columns of a store, converted for computing."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def number(self, name: str) -> NDArray[np.float64]:
        from pyarrow import ArrowInvalid, float64

        try:
            numbers: NDArray[np.float64] = self._store.table[name].cast(float64()).to_numpy()
        except ArrowInvalid:
            raise UserError(
                f"{name} of {self._store.path} has whole numbers beyond ±2^53, which cannot be compared exactly here; "
                "import it as text: --attribute NAME=COLUMN:text"
            ) from None
        return numbers

    def text(self, name: str) -> pyarrow.ChunkedArray:
        return self._store.table[name]

    def truth(self, name: str) -> NDArray[np.int8]:
        return truths_in(self._store.table[name])


def truth(found: Value, known: Value = True) -> NDArray[np.int8]:
    return np.where(known, np.where(found, 1, -1), 0).astype(np.int8)


def truths_in(column: pyarrow.ChunkedArray) -> NDArray[np.int8]:
    """Return the truths of an Arrow column of booleans."""
    return truth(column.fill_null(False).to_numpy(), ~column.is_null().to_numpy())


def compared(compare: Callable[[Value, Value], Value]) -> Callable[[Value, Value], Value]:
    """Return a comparison of numbers that is unknown where one is missing."""
    return lambda first, second: truth(compare(first, second), ~(np.isnan(first) | np.isnan(second)))


def same_text(first: Value, second: Value) -> NDArray[np.int8]:
    from pyarrow import compute

    if isinstance(first, str) and isinstance(second, str):
        return truth(first == second)
    return truths_in(compute.equal(first, second))


def same_truth(first: Value, second: Value) -> Value:
    return first * second


def word_counts(column: pyarrow.ChunkedArray) -> NDArray[np.float64]:
    """Return the number of words, separated by white space, of each text of an Arrow column."""
    from pyarrow import compute

    trimmed = compute.utf8_trim_whitespace(column.fill_null(""))
    count = compute.list_value_length(compute.utf8_split_whitespace(trimmed)).to_numpy()
    empty = compute.equal(compute.utf8_length(trimmed), 0).to_numpy()
    return np.where(empty, 0, count).astype(np.float64)


def _words(text: Value) -> Value:
    if isinstance(text, str):
        return float(len(text.split()))
    return np.where(text.is_null().to_numpy(), np.nan, word_counts(text))


def _characters(text: Value) -> Value:
    from pyarrow import compute, float64

    return float(len(text)) if isinstance(text, str) else compute.utf8_length(text).cast(float64()).to_numpy()


def _on_text(name: str) -> Callable[[Value, str], Value]:
    """Return a function of Arrow on a text and a pattern."""

    def found(text: Value, pattern: str) -> Value:
        import pyarrow
        from pyarrow import compute

        if isinstance(text, str):
            text = pyarrow.chunked_array([[text]])
        return truths_in(getattr(compute, name)(text, pattern))

    return found


def _lower(text: Value) -> Value:
    from pyarrow import compute

    return text.lower() if isinstance(text, str) else compute.utf8_lower(text)


def _missing(value: Value) -> Value:
    if isinstance(value, str):
        return truth(False)
    if isinstance(value, float | np.ndarray | np.generic):
        return truth(value == 0 if np.asarray(value).dtype == np.int8 else np.isnan(value))
    return truth(value.is_null().to_numpy())


@dataclass(frozen=True)
class Function:
    """A function of the language, and an example of its use."""

    takes: tuple[Type | Literal["any"], ...]
    gives: Type
    compute: Callable[..., Value]
    example: str
    pattern: bool = False
    """Whether its last argument must be a literal text."""


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
