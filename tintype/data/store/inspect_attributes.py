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
    return {**about, "most_common": _most_common(there.to_pylist())}


def _numbers(values: NDArray[Any], whole: bool) -> dict[str, Any]:
    if not len(values):
        return {"spread": None, "histogram": None}
    numbers = values.astype(np.float64)
    spread = {"min": values.min().item(), "median": float(np.median(numbers)), "max": values.max().item()}
    return {"spread": spread, "histogram": (whole_histogram if whole else histogram)(numbers)}


def _most_common(values: list[Any]) -> list[dict[str, Any]]:
    said: list[str] = [str(value).lower() if isinstance(value, bool) else value for value in values]
    counts = Counter(said)
    shown = [{"value": value, "records": count} for value, count in counts.most_common(_SHOWN)]
    others = len(counts) - len(shown)
    rest = len(values) - sum(one["records"] for one in shown)
    return [*shown, {"value": f"{others:,} others", "records": rest}] if others else shown
