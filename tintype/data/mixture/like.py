"""Data that is like other data but for a few settings: how a technique's options name a source."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tintype.data.mixture.settings import MixtureSettings
from tintype.data.store.settings import StoreSettings
from tintype.errors import UserError
from tintype.settings import DataPart, DataSettings, plain
from tintype.strict import Document, nearest, parse

Given = dict[str, str | int | float | bool | None]
"""Settings of data as an option gives them: `data.style=photo,data.count=512`."""
_KINDS: dict[str, type[DataPart]] = {
    str(part.model_fields["kind"].default): part for part in (DataSettings, StoreSettings, MixtureSettings)
}

_PINS = {"path": "sha256", "skip": "skip_sha256"}


def like(data: DataPart, given: Mapping[str, Any], where: str) -> DataPart:
    """What is not given is as in `data`; of another kind, only the size is. `where` stands before what is refused."""
    kind = str(given.get("kind", data.kind))
    if kind not in _KINDS:
        raise UserError(f"{where}: unknown kind of data '{kind}'; {nearest(kind, _KINDS)}")
    same = plain(data) if kind == data.kind else {"kind": kind, "size_px": data.size_px}
    for place, pin in _PINS.items():
        if place in given:
            same.pop(pin, None)  # it names what lies in the other place
    return parse(_KINDS[kind], Document(where, {**same, **given}))
