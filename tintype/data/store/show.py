"""`tintype data show`: what a store holds, and how many records a selection leaves."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from tintype.data.store.layout import SPLITS, AboutStore, open_store
from tintype.data.store.selection import select
from tintype.wording import option


class StoreShown(AboutStore, frozen=True):
    """The content of `store.json`, and counts."""

    missing: dict[str, int]
    """Number of records without a value, by attribute."""
    checked: bool
    """Whether everything was read and compared with its checksums."""
    left: dict[str, int] | None
    """Number of selected records of each split; None where nothing selects."""
    left_out: dict[str, int]
    """Number of records that `where` and `skip` leave out."""
    note: str | None
    """A note on the skip list."""


def show_store(
    path: Path, check: bool, where: str | None, skip: Path | None, on_progress: Callable[[int, int], None]
) -> StoreShown:
    store = open_store(path)
    selection = select(store, where, skip, name=option("where"))
    left = {str(split): len(selection.rows(store, split)) for split in SPLITS}
    if check:
        store.check(lambda done: on_progress(done, len(store)))
    return StoreShown(
        **dict(store.about),
        missing=store.missing(),
        checked=check,
        left=None if where is None and skip is None else left,
        left_out={"where": selection.by_where, "skip": selection.by_skip},
        note=selection.note,
    )
