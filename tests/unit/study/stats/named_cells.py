"""Cells of values given by the name of the arm."""

from __future__ import annotations

from collections.abc import Sequence

from tintype.study.stats.cells import RAW, Cells, Scale


def cells(scale: Scale = RAW, /, **values: Sequence[float]) -> Cells:
    """Return the cells of these arms with seeds from zero. One called control has the baseline's plan."""
    known = {name: dict(enumerate(of)) for name, of in values.items()}
    return Cells(known, scale, {"control": "baseline"} if "control" in known else {})
