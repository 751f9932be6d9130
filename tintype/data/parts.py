"""The kinds of data and captions that a plan can have, and functions that make data from other data."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from tintype.config.strict import Document, nearest, parse
from tintype.data.captions import CaptionsPart, ColumnSettings, CurriculumSettings, MixSettings
from tintype.data.mixture.settings import MixtureSettings
from tintype.data.scenes.source import ScenesSettings
from tintype.data.store.settings import StoreSettings
from tintype.errors import UserError
from tintype.settings import DataPart, KeysOf, plain

DATA: tuple[type[DataPart], ...] = (ScenesSettings, StoreSettings, MixtureSettings)
CAPTIONS: tuple[type[CaptionsPart], ...] = (ColumnSettings, MixSettings, CurriculumSettings)
Given = Annotated[dict[str, Any], KeysOf(DATA)]
"""Settings of data, given as a command-line option such as `data.style=photo,data.buckets=[[64,64],[48,80]]`."""
_KINDS = {part.kind_name(): part for part in DATA}
_PINS = {"path": "sha256", "skip": "skip_sha256", "evaluate_path": "evaluate_sha256"}


def like(data: DataPart, given: Mapping[str, object], where: str) -> DataPart:
    """Return `data` with the given settings. A change of the kind keeps only the size. Errors begin with `where`."""
    kind = str(given.get("kind", data.kind))
    if kind not in _KINDS:
        raise UserError(f"{where}: unknown kind of data '{kind}'", nearest(kind, _KINDS))
    same = plain(data) if kind == data.kind else {"kind": kind, "size_px": data.size_px}
    return parse(_KINDS[kind], Document(where, _over(same, given)))


def instead(data: DataPart, given: Mapping[str, object], store: str | None, where: str) -> DataPart:
    """Return other training data for a plan.

    If the plan uses a store, the new data are the store in the folder `store`. Otherwise, the new data are the result
    of `like`. The selection of records (`limit`, `where`, `skip`) is cleared, since it refers to the old store. An
    evaluation set that `data` names (`evaluate_path`, `evaluate_style`) is kept.
    """
    if store is None or not isinstance(data, StoreSettings):
        return like(data, given, where)
    all_of_it = dict.fromkeys(("limit", "where", "skip", "skip_sha256"))
    return like(data, {"path": store, **all_of_it}, where)


def source_like(data: DataPart, given: Mapping[str, object], where: str) -> DataPart:
    """Apply `like` to a source of a mixture. Raise if the source is itself a mixture."""
    if given.get("kind") == MixtureSettings.kind_name():
        raise UserError(
            f"{where}: a source of a mixture cannot be a mixture", "list the inner mixture's sources directly"
        )
    return like(data, given, where)


def _over(same: Any, given: Any) -> Any:
    """Merge settings key by key, so an option can change one source of a mixture. A new kind replaces all keys."""
    if not isinstance(same, Mapping) or not isinstance(given, Mapping):
        return given
    if given.get("kind", same.get("kind")) != same.get("kind"):
        return given
    moved = {pin for place, pin in _PINS.items() if place in given}  # the pin belongs to the old path
    kept = {key: value for key, value in same.items() if key not in moved}
    return {**kept, **{key: _over(kept.get(key), value) for key, value in given.items()}}
