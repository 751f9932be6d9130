"""Compare data with what a run recorded, but for captions that were added to its stores since.

A run cannot read such captions: they were not there when it began, and its plan names all that it reads.
"""

from __future__ import annotations

from collections.abc import Mapping

from tintype.data.mixture.settings import MixtureSettings
from tintype.data.mixture.source import identity_of_parts
from tintype.data.store.columns import earlier_identities
from tintype.data.store.settings import StoreSettings
from tintype.settings import DataPart


def only_added(data: DataPart, name: str, known: Mapping[str, str]) -> bool:
    """Return whether only captions were added.

    `name` and `known` are of a run's record of identities: `data`, and `data/NAME` for a source of a mixture.
    """
    whole, _, source = name.partition("/")
    if whole != "data" or name not in known:
        return False
    if not isinstance(data, MixtureSettings):
        return isinstance(data, StoreSettings) and _had(data, known[name])
    if source:
        return source in data.sources and only_added(data.sources[source].data, whole, {whole: known[name]})
    parts = {one: known.get(f"{name}/{one}") for one in data.read}
    return identity_of_parts(parts) == known[name] and all(
        _is_or_had(data.sources[one].data, identity) for one, identity in parts.items()
    )


def _is_or_had(data: DataPart, identity: str | None) -> bool:
    """Return whether data has or had an identity. Scenes have none: the settings define them."""
    return identity is None or (isinstance(data, StoreSettings) and _had(data, identity, now_too=True))


def _had(data: StoreSettings, identity: str, now_too: bool = False) -> bool:
    store = data.open()
    selection = data.select(store)
    if now_too and selection.identity(store) == identity:
        return True
    return any(selection.identity_of(earlier) == identity for earlier in earlier_identities(store))
