"""Pages of the reference on the settings of plans and studies, from the classes that validate them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import get_args

from pydantic.fields import FieldInfo

from tintype.plan import Plan
from tintype.settings import Settings, is_housekeeping
from tintype.study.settings import StudySettings
from tools.site.words import class_words, code, default_words, kinds_of, sentence, table, type_words

PLAN, STUDY = "reference/plan", "reference/study"
Kinds = dict[str, type[Settings]]
"""Settings by their kind."""


def pages() -> dict[str, str]:
    """Return the Markdown of the pages by their paths."""
    sections = {name: field for name, field in Plan.model_fields.items() if kinds_of(field)}
    book = _Book()
    found = {f"{PLAN}/{name}.md": "\n".join(book.section(name, field)) for name, field in sections.items()}
    found[f"{PLAN}.md"] = "\n".join(_plan_page(sections))
    found[f"{STUDY}.md"] = "\n".join(_study_page(book))
    return found


def _plan_page(sections: dict[str, FieldInfo]) -> Iterator[str]:
    yield "# Settings of a plan\n"
    yield (
        "A [plan](../glossary.md) has one section for each exchangeable part. Set a value by "
        "`--set SECTION.SETTING=VALUE`, in a plan file, or in the `set:` of a study. An unknown key is refused, and "
        "the nearest known one is named. `tintype plan show NAME` prints a plan with every default resolved.\n"
    )
    rows = []
    for name, field in Plan.model_fields.items():
        words = f"[{code(name)}](plan/{name}.md)" if name in sections else code(name)
        kinds = [code(kind) for kind in kinds_of(field) if kind]
        rows.append(
            (words, default_words(field) if kinds or name == "seed" else "", ", ".join(kinds), field.description or "")
        )
    yield from table(("section", "default", "kinds", "meaning"), rows)
    yield "```{toctree}\n:hidden:\n"
    yield from (f"plan/{name}" for name in sections)
    yield "```\n"


def _study_page(book: _Book) -> Iterator[str]:
    yield "# Settings of a study\n"
    yield (
        "A study is a YAML file of these settings ([studies](../studies.md)). `--set` of `tintype ablate` overrides "
        'them: `--set "seeds=[0,1]"`, `--set evaluation.count=256`.\n'
    )
    yield from book.of_class(StudySettings, "", 2)


class _Book:
    """Makes tables of settings. A class that several fields hold is described once, and linked to elsewhere."""

    def __init__(self) -> None:
        self._described: set[type[Settings]] = set()

    def section(self, name: str, field: FieldInfo) -> Iterator[str]:
        """Yield the lines of the page of one section of a plan."""
        kinds = kinds_of(field)
        yield f"# {name}\n"
        yield f"{sentence(field.description or '')}\n"
        if len(kinds) > 1 and isinstance(field.default, Settings):
            yield f"The default is {default_words(field)}.\n"
        elif field.default is None:
            yield "Off by default.\n"
        yield from self._kinds(kinds, f"{name}.0" if field.default == () else name, 2)

    def _kinds(self, kinds: Kinds, prefix: str, level: int) -> Iterator[str]:
        for kind, one in kinds.items():
            yield f"({_place(one)})="
            yield f"{'#' * level} {code(f'{prefix}.kind: {kind}' if kind else prefix)}\n"
            yield from self.of_class(one, prefix, level)

    def of_class(self, one: type[Settings], prefix: str, level: int) -> Iterator[str]:
        """Yield the words and the table of settings, then those of the parts inside them."""
        self._described.add(one)
        yield f"{class_words(one)}\n"
        rows = [self._row(one, name, prefix) for name in one.model_fields if not _is_fixed_kind(one, name)]
        if rows:
            yield from table(("setting", "default", "meaning"), rows)
        else:
            yield "It has no settings.\n"
        for name, field in one.model_fields.items():
            kinds = {kind: held for kind, held in kinds_of(field).items() if held not in self._described}
            yield from self._kinds(kinds, _key(prefix, name, field), level + 1)

    def _row(self, one: type[Settings], name: str, prefix: str) -> tuple[str, str, str]:
        field = one.model_fields[name]
        kinds = kinds_of(field)
        links = [f"[{code(kind) if kind else 'its settings'}](#{_place(held)})" for kind, held in kinds.items()]
        words = [sentence(field.description or "")]
        words.append(f"See {', '.join(links)}." if links else f"*{sentence(type_words(field))}*")
        if is_housekeeping(one, name):
            words.append("Not part of the plan's hash.")
        return code(_key(prefix, name, field)), default_words(field), " ".join(words)


def _key(prefix: str, name: str, field: FieldInfo) -> str:
    return f"{prefix}.{field.alias or name}".lstrip(".")


def _is_fixed_kind(one: type[Settings], name: str) -> bool:
    """Return whether a setting is a `kind` with one value, which the heading has."""
    return name == "kind" and len(get_args(one.model_fields[name].annotation)) == 1


def _place(one: type[Settings]) -> str:
    """Return the label of the settings' heading."""
    return re.sub(r"[^a-z0-9]+", "-", f"settings-{one.__module__}-{one.__qualname__}".lower())
