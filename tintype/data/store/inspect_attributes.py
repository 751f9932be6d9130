"""The attributes of a store, for `tintype data inspect`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from tintype.data.store.histograms import histogram, whole_histogram
from tintype.data.store.inspect_result import AttributeValues
from tintype.data.store.layout import ATTRIBUTE, Store

SHOWN_NAMES = 12


def about_attribute(store: Store, name: str, rows: NDArray[np.int64]) -> AttributeValues:
    column = store.table[ATTRIBUTE + name].take(rows)
    kind, there = store.attributes[name], column.drop_null()
    about: AttributeValues = {
        "kind": kind,
        "missing": column.null_count,
        "distinct": len(there.unique()),
        "spread": None,
        "histogram": None,
        "most_common": [],
    }
    if kind not in ("int", "float"):
        words = (str(value).lower() if isinstance(value, bool) else value for value in there.to_pylist())
        about["most_common"] = [{"value": value, "records": count} for value, count in most_common(words)]
    elif len(values := there.to_numpy()):
        numbers = values.astype(np.float64)
        median = float(np.median(numbers / 2)) * 2
        about["spread"] = {"min": values.min().item(), "median": median, "max": values.max().item()}
        about["histogram"] = whole_histogram(numbers) if kind == "int" else histogram(numbers)
    return about


def most_common(names: Iterable[str]) -> list[tuple[str, int]]:
    """Return the most common names with their counts, and the others as one."""
    counts = Counter(names)
    shown = counts.most_common(SHOWN_NAMES)
    rest = counts.total() - sum(count for _, count in shown)
    return [*shown, (f"{len(counts) - len(shown):,} others", rest)] if rest else shown
