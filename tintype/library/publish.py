"""Publishing in Python: mirror runs and studies. Heavy modules are imported when they are needed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tintype.errors import UserError
from tintype.library.runs import ignore
from tintype.wording import option

if TYPE_CHECKING:
    from tintype.export.mirror import Mirrored


@dataclass(frozen=True)
class SyncUnit:
    """A checkpoint with all its files, or one other file, which `sync` copies as a whole."""

    name: str
    files: int
    bytes: int


def sync(
    source: str,
    target: str | None = None,
    *,
    list_: bool = False,
    on_progress: Callable[[int, int], None] | None = None,
) -> list[SyncUnit] | Mirrored:
    """Mirror a study or run to an object store, or back: only what is whole, and each copy is checked.

    Args:
        source: folder of a study or run, or its address: s3://, gs://, file://, memory://.
        target: folder or address to copy to.
        list_: list what the source has, and copy nothing.
        on_progress: called with the number of files that are done, and of all.

    Returns:
        Counts of the files; `damaged` names what was not copied, and why. With `list_`, what could be copied.

    Raises:
        UserError: an address cannot be used, or there is nothing to copy.
    """
    from tintype.export.mirror import mirror, units_of
    from tintype.export.places import open_place

    if (target is None) != list_:
        problem = "no target is given" if target is None else f"{option('list')} and a target exclude each other"
        raise UserError(problem, f"give a target to copy {source} to, or {option('list')} and no target")
    if target is None:
        units = units_of(open_place(source).sizes())
        return [SyncUnit(unit.name, len(unit.names), unit.bytes) for unit in units]
    return mirror(open_place(source), open_place(target), on_progress or ignore)
