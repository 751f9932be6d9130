"""Named protocols that come with the package: a study names one in its `evaluation`, `tintype evaluate` by `preset`."""

from __future__ import annotations

from collections.abc import Sequence

from tintype import recipes
from tintype.config.strict import Document, nearest, parse
from tintype.errors import UserError
from tintype.evaluation.protocol import Protocol
from tintype.settings import Plain

PRESET = "preset"
"""The key of a protocol that names the preset which it starts from."""


def expand(given: object, place: str) -> object:
    """Return a protocol as it was written, with the settings of the preset that it names; its own replace them.

    It names one by `evaluation: prx`, or beside settings of its own by `evaluation: {preset: prx, count: 2000}`.
    """
    if isinstance(given, str):
        return _preset(given, place)
    if not isinstance(given, dict) or PRESET not in given:
        return given
    own = {key: value for key, value in given.items() if key != PRESET}
    return {**_preset(given[PRESET], place), **own}


def expand_in(section: str, document: Document) -> None:
    """Expand the preset that a section of a document names, in its place."""
    if isinstance(document.data, dict) and section in document.data:
        document.data[section] = expand(document.data[section], document.place((section,)))


def protocol_of(assignments: Sequence[str]) -> Protocol:
    """Return the protocol of overrides on the command line, of which one may be `preset=prx`."""
    document = Document("evaluation", {})
    for assignment in assignments:
        document.override(assignment)
    document.data = expand(document.data, document.place((PRESET,)))
    return parse(Protocol, document)


def _preset(name: object, place: str) -> Plain:
    known = recipes.names("protocols")
    if name not in known:
        raise UserError(f"{place}: unknown preset '{name}' of an evaluation; {nearest(str(name), known)}")
    found: Plain = recipes.find("protocols", str(name)).data
    return found
