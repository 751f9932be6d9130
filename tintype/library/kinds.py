"""Types of arguments.

Commands derive their arguments and options from these types. This module imports no heavy modules.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from os import PathLike
from typing import TYPE_CHECKING, Annotated, Literal, TypeAlias, Union

from annotated_types import Ge, Le

if TYPE_CHECKING:
    from tintype.library.runs import Run
    from tintype.plan import Plan
    from tintype.study.study import Study

AnyPath: TypeAlias = str | PathLike[str]
AnyPlan: TypeAlias = Union["Plan", str, PathLike[str]]
"""A plan, or any argument that `load_plan` takes."""
AnyRun: TypeAlias = Union["Run", str, PathLike[str]]
"""A run, or the path of its folder."""
AnySource: TypeAlias = Union["Plan", "Run", str, PathLike[str]]
"""A plan, a run, any argument that `load_plan` takes, or the folder of a study.

In a study, `arm` and `seed` select a run.
"""
AnyStudy: TypeAlias = Union["Study", str, PathLike[str]]
"""A study, or any argument that `load_study` takes."""

AnyJobs: TypeAlias = str | int
"""Number of parallel runs. With "auto", runs are added while they fit into memory and raise the throughput."""

Count: TypeAlias = Annotated[int, Ge(1)]
Seed: TypeAlias = Annotated[int, Ge(0)]
Share: TypeAlias = Annotated[float, Ge(0), Le(1)]
Weights: TypeAlias = Literal["raw", "average"]
Split: TypeAlias = Literal["train", "eval"]
OnCount: TypeAlias = Callable[[int, int], None]
"""Callback that gets the number of finished items and the number of all items."""
Pairs: TypeAlias = Mapping[str, str] | Sequence[str]
"""Values by name, or texts `NAME=VALUE`."""
