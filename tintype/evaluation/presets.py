"""Named protocols in the package. A study names its protocol in `evaluation`, and `tintype evaluate` in `preset`."""

from __future__ import annotations

from collections.abc import Sequence

from tintype.config.strict import Document, nearest, parse
from tintype.errors import UserError
from tintype.evaluation.protocol import Protocol
from tintype.plan import Plan
from tintype.recipes import packaged
from tintype.settings import Plain, plain

PRESET = "preset"
_GENERAL = Protocol()


def expand(given: object, place: str) -> object:
    """Return a protocol with the settings of its preset added. The protocol's own settings take precedence.

    A preset is named by `evaluation: prx`, or together with other settings by `evaluation: {preset: prx, count: 2000}`.
    """
    if isinstance(given, str):
        return _preset(given, place)
    if not isinstance(given, dict) or PRESET not in given:
        return given
    own = {key: value for key, value in given.items() if key != PRESET}
    return {**_preset(given[PRESET], place), **own}


def expand_in(section: str, document: Document) -> None:
    """In a section of a document, replace the preset by its settings. The document is changed in place."""
    if isinstance(document.data, dict) and section in document.data:
        document.data[section] = expand(document.data[section], document.place((section,)))


def protocol_of(assignments: Sequence[str], default: Protocol = _GENERAL) -> Protocol:
    """Return the default protocol with command-line overrides. An override `preset=prx` replaces the default."""
    document = _overridden({}, assignments)
    if PRESET in document.data:
        document.data = expand(document.data, document.place((PRESET,)))
        return parse(Protocol, document)
    given = {*default.model_fields_set, *document.data}
    return _as_given(parse(Protocol, _overridden(plain(default), assignments)), given)


def default_protocol(plan: Plan) -> Protocol:
    """Return the protocol in a plan's `run.protocol`, or the general defaults.

    The settings count as not given by the user, so `fit_protocol` can replace settings that do not fit the data.
    """
    name = plan.run.protocol
    return _GENERAL if name is None else _as_given(parse(Protocol, packaged.find("protocols", name)), set())


def completed(given: Protocol, default: Protocol) -> Protocol:
    """Return a protocol whose missing settings, including the sampler's settings, come from the default."""
    own = {key: getattr(given, key) for key in given.model_fields_set}
    if "sampler" in own:
        of_sampler = {key: getattr(given.sampler, key) for key in given.sampler.model_fields_set}
        own["sampler"] = default.sampler.model_copy(update=of_sampler)
    return _as_given(Protocol(**{**dict(default), **own}), given.model_fields_set)


def _overridden(data: Plain, assignments: Sequence[str]) -> Document:
    document = Document("evaluation", data)
    for assignment in assignments:
        document.override(assignment)
    return document


def _as_given(protocol: Protocol, keys: set[str]) -> Protocol:
    return Protocol.model_construct(_fields_set=set(keys), **dict(protocol))


def _preset(name: object, place: str) -> Plain:
    known = packaged.names("protocols")
    if name not in known:
        raise UserError(f"{place}: unknown evaluation preset '{name}'", nearest(str(name), known))
    found: Plain = packaged.find("protocols", str(name)).data
    return found
