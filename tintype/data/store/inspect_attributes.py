"""What the attributes of a store are like, for `tintype data inspect`."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tintype.data.store.histograms import histogram, whole_histogram
from tintype.data.store.layout import ATTRIBUTE, Store

_SHOWN = 12


def about_attribute(store: Store, name: str, rows: NDArray[np.int64]) -> dict[str, Any]:
    column = store.column(ATTRIBUTE + name).take(rows)
    kind, there = store.attributes[name], column.drop_null()
    about = {"kind": kind, "missing": column.null_count, "distinct": len(there.unique())}
    if kind in ("int", "float"):
        return {**about, **_numbers(there.to_numpy(), whole=kind == "int")}
    return {**about, "spread": None, "histogram": None, "most_common": _most_common(there.to_pylist())}


def _numbers(values: NDArray[Any], whole: bool) -> dict[str, Any]:
    if not len(values):
        return {"spread": None, "histogram": None, "most_common": []}
    numbers = values.astype(np.float64)
    spread = {"min": values.min().item(), "median": float(np.median(numbers / 2)) * 2, "max": values.max().item()}
    bars = whole_histogram(numbers) if whole else histogram(numbers)
    return {"spread": spread, "histogram": bars, "most_common": []}


def _most_common(values: list[Any]) -> list[dict[str, Any]]:
    said: list[str] = [str(value).lower() if isinstance(value, bool) else value for value in values]
    counts = Counter(said)
    shown = [{"value": value, "records": count} for value, count in counts.most_common(_SHOWN)]
    others = len(counts) - len(shown)
    rest = len(values) - sum(count for _, count in counts.most_common(_SHOWN))
    return [*shown, {"value": f"{others:,} others", "records": rest}] if others else shown
