"""Stores of images in Python. Heavy modules are imported when they are needed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeAlias

from annotated_types import Ge, Le

from tintype.errors import UserError
from tintype.library.kinds import AnyPath, Count
from tintype.library.runs import ignore
from tintype.wording import option

if TYPE_CHECKING:
    from tintype.data.presets import DataPreset
    from tintype.data.store.layout import AboutStore
    from tintype.data.store.show import StoreShown

OnCount: TypeAlias = Callable[[int, int], None]


def data_presets(preset: str | None = None) -> list[DataPreset]:
    """List public sets that `tintype data import --preset` knows: licence, records, and where to get them.

    Args:
        preset: show all about this one.

    Raises:
        UserError: there is no such preset.
    """
    from tintype.data.presets import named_presets

    return named_presets(preset)


@dataclass(frozen=True)
class Shapes:
    """Shapes of about equal area."""

    buckets: list[tuple[int, int]]
    """Height and width of each in pixels."""
    setting: str
    """The setting of a plan that trains on them."""


def choose_shapes(
    *,
    size: Annotated[int, Ge(16), Le(4096)] = 256,
    unit: Count = 16,
    ratio: Annotated[float, Ge(1)] = 2.0,
) -> Shapes:
    """Choose shapes of about equal area, as the setting data.buckets, to train on images that are not square.

    Args:
        size: data.size_px of the plan.
        unit: tokenizer stride × model.patch of the plan.
        ratio: largest ratio of the longer to the shorter side.

    Raises:
        UserError: the size is no multiple of the unit.
    """
    from tintype.data.buckets import shapes

    if size % unit:
        raise UserError(f"{option('size', size)} is no multiple of {option('unit', unit)}")
    made = shapes(size, unit, ratio)
    found = ",".join(f"[{height},{width}]" for height, width in made)
    return Shapes(made, f"data.buckets=[{found}]")


def show_store(
    store: AnyPath,
    *,
    check: bool = False,
    where: str | None = None,
    skip: AnyPath | None = None,
    on_progress: OnCount | None = None,
) -> StoreShown:
    """Show what a store holds; with --check verify it, with --where and --skip count the records that are left.

    Args:
        store: folder of a store.
        check: read everything and compare it with its checksums.
        where: only records that match, as in data.where: "width >= 256".
        skip: file with the hashes of records to leave out, as in data.skip.
        on_progress: called with the number of checked records and of all.

    Raises:
        UserError: there is no store, it is damaged, or the selection is not valid.
    """
    from tintype.data.store import show

    return show.show_store(Path(store), check, where, None if skip is None else Path(skip), on_progress or ignore)


def upgrade_store(store: AnyPath, *, on_progress: OnCount | None = None) -> AboutStore:
    """Check a store of an earlier version, and add checksums of all its columns.

    Args:
        store: folder of a store.
        on_progress: called with the number of checked records and of all.

    Raises:
        UserError: there is no store, or it is damaged.
    """
    from tintype.data.store import changes

    return changes.upgrade_store(Path(store), on_progress or ignore)
