"""Read YAML strictly into settings. Errors name the place, the key, and the nearest valid name.

Three rules differ from plain PyYAML. `2e-4` is a number, `no` and `on` are words, and a duplicate key is an error.
"""

from __future__ import annotations

import copy
import difflib
import json
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, TypeAlias, TypeVar, get_args

import yaml
from pydantic import ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from tintype.errors import UserError, as_user_error
from tintype.plugins.registry import is_added
from tintype.runtime.printable import acts
from tintype.settings import OF_PLUGIN, OneOf, Part, Settings
from tintype.wording import option

KeyPath = tuple[str | int, ...]
Adapt: TypeAlias = Callable[[Any], None]
"""Function that changes the data of a document after an override."""
Resolve: TypeAlias = Callable[[Any], Any]
"""Function that returns the data of a document with values from files filled in."""
S = TypeVar("S", bound=Settings)
_MOST_BYTES = 1 << 18
_MOST_VALUES = 10_000
"""Limit on the total number of keys, values and list items. PyYAML reads about ten thousand of them per second."""
_MOST_DEPTH = 40
_MOST_PROBLEMS = 20
_LONGEST_KEY = 200
"""Maximum number of characters of a key that messages show, and that are compared with valid keys."""


class _RefusedError(Exception):
    """The text is valid YAML but uses a feature or size that no settings file needs."""


class _Loader(yaml.SafeLoader):
    """YAML loader that stops at the first value beyond the limits, so that a hostile file fails fast."""

    values, depth = 0, 0

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        if self.check_event(yaml.AliasEvent):  # a few aliases of aliases would unfold into gigabytes
            raise _RefusedError(f"line {self.line + 1}: YAML aliases (*name) are not supported")
        self.values += 1
        if self.values > _MOST_VALUES:
            raise _RefusedError(f"line {self.line + 1}: the file has more than {_MOST_VALUES:,} keys and values")
        if self.depth > _MOST_DEPTH:
            raise _RefusedError(f"line {self.line + 1}: the values are nested more than {_MOST_DEPTH} levels deep")
        self.depth += 1
        node: yaml.Node | None = super().compose_node(parent, index)
        self.depth -= 1
        return node


class _Dumper(yaml.SafeDumper):
    pass


_SCALARS: dict[str, tuple[str, str, Callable[[str], object]]] = {
    "tag:yaml.org,2002:bool": (r"^(?:true|false)$", "tf", lambda text: text == "true"),
    "tag:yaml.org,2002:null": (r"^(?:null|~|)$", "n~", lambda text: None),
    "tag:yaml.org,2002:int": (r"^[-+]?[0-9]+$", "-+0123456789", int),
    "tag:yaml.org,2002:float": (r"^[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?$", "-+.0123456789", float),
    "tag:yaml.org,2002:str": (r"(?!)", "", str),
}
_KNOWN_TAGS = {*_SCALARS, "tag:yaml.org,2002:map", "tag:yaml.org,2002:seq"}
for _class in (_Loader, _Dumper):
    _class.yaml_implicit_resolvers = {}
    for _tag, (_pattern, _first, _) in _SCALARS.items():
        _class.add_implicit_resolver(_tag, re.compile(_pattern), [*_first, ""])


@dataclass(frozen=True)
class Override:
    """One assignment, `a.b=value`; `prefix` precedes it in messages, and `then` changes the data after it."""

    assignment: str
    prefix: str | None
    then: Adapt | None

    @property
    def label(self) -> str:
        return labelled(self.prefix, self.assignment)


def labelled(prefix: str | None, text: str) -> str:
    return option("set", text) if prefix is None else prefix + text


@dataclass
class Document:
    """Data of a document, with the place of each key for messages, and the overrides that were applied."""

    name: str
    data: Any
    places: dict[KeyPath, str] = field(default_factory=dict)
    overrides: list[Override] = field(default_factory=list)
    colons: tuple[str, ...] = ()
    """Messages about keys that are probably followed by a full-width colon. Each message includes the fix."""
    _before: object = None
    """The data before the first override."""

    def place(self, path: KeyPath) -> str:
        """Return the place of the deepest known part of a key path."""
        for end in range(len(path), -1, -1):
            if path[:end] in self.places:
                return self.places[path[:end]]
        return self.name

    def without(self, left_out: Collection[Override]) -> object:
        """Return the data without the overrides in `left_out`."""
        other = Document(self.name, copy.deepcopy(self._before if self.overrides else self.data))
        for one in self.overrides:
            if one not in left_out:
                other.override(one.assignment, one.prefix, one.then)
        return other.data

    def override(self, assignment: str, prefix: str | None = None, then: Adapt | None = None) -> None:
        """Apply `a.b=value`, parsed as YAML, and then call `then`; `prefix` precedes the assignment in messages."""
        if not self.overrides:
            self._before = copy.deepcopy(self.data)
        override = Override(assignment, prefix, then)
        self.overrides.append(override)
        dotted, equals, text = assignment.partition("=")
        keys = dotted.strip().split(".")
        if not equals or not all(keys):
            raise UserError(
                f"{override.label} does not assign a value to a setting",
                "write it as key.path=value, for example optimizer.lr=2e-4",
            )
        node = self.data
        for depth, key in enumerate(keys[:-1]):
            self.places.setdefault(tuple(keys[: depth + 1]), override.label)
            if isinstance(node, dict) and node.get(key) is None:
                node[key] = {}  # a section that is absent, or off
            node = node[key] if isinstance(node, dict) else None
        if not isinstance(node, dict):
            raise UserError(f"{override.label}: {'.'.join(keys[:-1])} has a single value and no keys below it")
        node[keys[-1]] = read_yaml(text, labelled(prefix, dotted)).data
        for path in [path for path in self.places if path[: len(keys)] == tuple(keys)]:
            del self.places[path]  # places of the replaced value
        self.places[tuple(keys)] = override.label
        if then is not None:
            then(self.data)


def read_yaml(text: str, name: str) -> Document:
    if len(text) > _MOST_BYTES:
        raise UserError(f"{name} is larger than {_MOST_BYTES >> 10} KiB, the limit for plans and studies")
    document = Document(name, None, colons=tuple(islice(_full_width_colons(text, name), _MOST_PROBLEMS)))
    try:
        node = yaml.compose(text, Loader=_Loader)
        document.data = None if node is None else _plain(node, (), document)
    except _RefusedError as error:
        raise UserError(f"{name}, {error}") from None
    except yaml.YAMLError as error:
        raise UserError("\n".join(document.colons) or _tab_words(error, name) or _yaml_words(error, name)) from None
    return document


_FULL_WIDTH = re.compile(r"(?:^|[{,])[\s-]*([A-Za-z_][\w.-]*)\s*：")
"""Matches a key followed by a full-width colon, as on Chinese and Japanese keyboards; YAML reads it as a letter."""


def _full_width_colons(text: str, name: str) -> Iterator[str]:
    """Yield a message for each key with a full-width colon, which is no error, since text may contain it."""
    for number, line in enumerate(text.splitlines() if "：" in text else (), 1):
        if found := _FULL_WIDTH.search(line):
            key = f"{found[1]:.40}"
            yield f"{name}, line {number}: the colon after '{key}' is full-width (：); write '{key}: '"


def _tab_words(error: yaml.YAMLError, name: str) -> str:
    """Return the error text for a tab in YAML; '' for any other mistake."""
    mark = getattr(error, "problem_mark", None)
    if mark is None or "'\\t'" not in str(getattr(error, "problem", "")):
        return ""
    return f"{name}, line {mark.line + 1}, column {mark.column + 1}: a tab; YAML takes spaces only, so put spaces there"


def _yaml_words(error: yaml.YAMLError, name: str) -> str:
    return f"{name} is not valid YAML: {' '.join(str(error).split())}"


def read_file(path: Path) -> Document:
    not_text = as_user_error(UnicodeDecodeError, f"{path} is not UTF-8 text")
    with as_user_error(OSError, f"cannot read {path}"), not_text, path.open("rb") as file:
        text = file.read(4 * _MOST_BYTES + 1).decode("utf-8")  # a letter has four bytes at most
    return read_yaml(text, str(path))


def _plain(node: yaml.Node, path: KeyPath, document: Document) -> object:
    line = f"{document.name}, line {node.start_mark.line + 1}"
    if path:  # the whole document has no line of its own
        document.places[path] = line
    if node.tag not in _KNOWN_TAGS:
        raise UserError(
            f"{line}: the YAML tag {node.tag:.{_LONGEST_KEY}} is not supported", "write the value without a tag"
        )
    if isinstance(node, yaml.SequenceNode):
        return [_plain(item, (*path, index), document) for index, item in enumerate(node.value)]
    if not isinstance(node, yaml.MappingNode):
        try:
            return _SCALARS[node.tag][2](node.value)
        except (ValueError, TypeError, KeyError):
            raise UserError(f"{line}: {node.value!s:.40} is not a valid value for the YAML tag {node.tag}") from None
    result: dict[str, object] = {}
    for key_node, value_node in node.value:
        key = str(key_node.value)
        if key in result:
            line = f"{document.name}, line {key_node.start_mark.line + 1}"
            raise UserError(f"{line}: the key '{key:.{_LONGEST_KEY}}' is given twice")
        result[key] = _plain(value_node, (*path, key), document)
        document.places[(*path, key)] = f"{document.name}, line {key_node.start_mark.line + 1}"
    return result


def write_yaml(data: object) -> str:
    """Return the data as YAML. Use ASCII only, if the text has characters that could control a terminal."""
    text: str = yaml.dump(data, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=100)
    if acts(text):
        text = yaml.dump(data, Dumper=_Dumper, sort_keys=False, allow_unicode=False, width=100)
    return text


def parse_assignments(model: type[S], name: str, assignments: Iterable[str]) -> S:
    """Return settings with the default values, changed by assignments `key.path=value`."""
    document = Document(name, {})
    for assignment in assignments:
        document.override(assignment)
    return parse(model, document)


def parse(model: type[S], document: Document, resolve: Resolve = lambda data: data) -> S:
    """Return validated settings, or raise with one line per mistake; `resolve` first fills in values from files."""
    if not isinstance(document.data, Mapping):
        found = f"{document.name}: expected keys and values, found {type(document.data).__name__}"
        raise UserError("\n".join([*document.colons, found]))
    try:
        return _validated(model, resolve(document.data))
    except ValidationError as error:
        problems = _without_followers(error.errors(include_url=False))
        explained = [_explain(problem, model, document, resolve) for problem in problems[:_MOST_PROBLEMS]]
        if len(problems) == 1 and not document.colons:
            raise UserError(*explained[0]) from None
        lines = [UserError(*one).marked for one in explained]
        more = len(problems) - len(lines)
        raise UserError(
            "\n".join([*document.colons, *lines, *([f"and {more:,} more mistakes"] if more else [])])
        ) from None


def first_problem(error: ValidationError, whole: str = "(top level)") -> str:
    """Describe the first mistake and its key; `whole` names the top level."""
    first = error.errors(include_url=False)[0]
    return f"{'.'.join(map(str, first['loc'])) or whole}: {problem_words(first)}"


_WORDS = {
    **dict.fromkeys(("int_type", "int_parsing", "int_from_float"), "must be a whole number"),
    **dict.fromkeys(("float_type", "float_parsing"), "must be a number"),
    "finite_number": "must be a finite number",
    "string_type": "must be text",
    **dict.fromkeys(("bool_type", "bool_parsing"), "must be true or false"),
    **dict.fromkeys(("tuple_type", "list_type"), "must be a list, as [a, b]"),
    **dict.fromkeys(("model_type", "dict_type", "model_attributes_type"), "must be keys and values, as {{key: value}}"),
    "literal_error": "must be {expected}",
    "greater_than_equal": "must be at least {ge}",
    "greater_than": "must be above {gt}",
    "less_than_equal": "must be at most {le}",
    "less_than": "must be below {lt}",
    "too_short": "must have {min_length} or more values",
    "too_long": "must have {max_length} values at most",
    "string_too_short": "must have {min_length} or more letters",
    "string_pattern_mismatch": "must have {pattern}",
    "missing": "this key is required and missing",
    "extra_forbidden": "unknown key",
}
"""This package's wording for Pydantic's most common error types."""
_PATTERNS = {"^[a-z0-9][a-z0-9-]*$": "small letters, digits and hyphens only, and no hyphen first"}


def problem_words(problem: ErrorDetails) -> str:
    """Describe a mistake in a value, with the fix if the value's form suggests one."""
    return UserError(_mistake(problem), _fix(problem)).marked


def _mistake(problem: ErrorDetails) -> str:
    if problem["type"] not in _WORDS:
        message = problem["msg"].removeprefix("Value error, ")
        return f"{message[0].lower()}{message[1:]}"
    limits = {key: _whole(value) for key, value in problem.get("ctx", {}).items()}
    if pattern := str(limits.get("pattern", "")):
        limits["pattern"] = _PATTERNS.get(pattern, f"the form {pattern}")
    return _WORDS[problem["type"]].format(**limits)


def _whole(limit: object) -> object:
    """Return a limit without the .0 of a whole number."""
    return int(limit) if isinstance(limit, float) and limit.is_integer() else limit


def _fix(problem: ErrorDetails) -> str:
    """Return the fix for a value in the wrong notation, such as a quoted number; empty if there is no such fix."""
    kind, found = problem["type"], problem["input"]
    if kind == "string_type" and isinstance(found, int | float):
        return "put it in quotes"
    if kind in ("int_type", "float_type") and isinstance(found, str) and _NUMBER.fullmatch(found):
        return "write it without quotes"
    if kind == "int_type" and isinstance(found, float) and found.is_integer() and abs(found) < _MOST_SHOWN:
        return f"write {found:.0f}"
    return ""


_NUMBER = re.compile(_SCALARS["tag:yaml.org,2002:float"][0])
_MOST_SHOWN = 1e15
"""Bound below which every whole number is shown without a decimal point. Floats represent these numbers exactly."""


def _without_followers(problems: Sequence[ErrorDetails]) -> list[ErrorDetails]:
    """Drop each error about a too short list if the list's items also have errors, since these cause it."""
    outer = {problem["loc"][:depth] for problem in problems for depth in range(len(problem["loc"]))}
    return [problem for problem in problems if problem["type"] != "too_short" or problem["loc"] not in outer]


def _validated(model: type[S], data: object) -> S:
    return model.model_validate_json(json.dumps(data))  # JSON's rules: a list may fill a tuple


def closest(word: str, valid: Iterable[str]) -> str | None:
    """Return the valid name most similar to the word, or None if none is similar."""
    found = difflib.get_close_matches(word[:_LONGEST_KEY], sorted(valid), n=1, cutoff=0.5)
    return found[0] if found else None


def nearest(word: str, valid: Iterable[str]) -> str:
    """Return 'did you mean …?', or the list of valid names."""
    names = sorted(valid)
    if (close := closest(word, names)) is not None:
        return f"did you mean '{close}'?"
    return f"valid: {', '.join(names)}" if names else "nothing is valid here yet"


def _explain(problem: ErrorDetails, model: type[Settings], document: Document, resolve: Resolve) -> tuple[str, str]:
    """Return a mistake with its place, and the fix."""
    ends_with_key = problem["type"] in ("missing", "extra_forbidden")
    path = _path_in_data(problem["loc"], document.data, ends_with_key)
    shown_path = ".".join(map(str, path))
    place = _cause(problem, model, document, resolve) or document.place(_named_path(problem, path, document))
    parts = [place, f"{shown_path:.{_LONGEST_KEY}}"]
    where = ": ".join(filter(None, parts))
    if problem["type"] == "extra_forbidden":
        key, loc = str(path[-1]), problem["loc"][:-1]
        if kinds := _other_kinds_with(key, model, loc):
            return f"{where}: kind {loc[-1]} has no such key", f"kind {' and '.join(kinds)} has it"
        return f"{where}: unknown key", nearest(key, _valid_keys(model, loc))
    if problem["type"] == "union_tag_invalid":
        kind, valid = problem["ctx"]["tag"], set(problem["ctx"]["expected_tags"].replace("'", "").split(", "))
        if OF_PLUGIN in valid:
            valid = (valid - {OF_PLUGIN}) | _kinds_at(model, problem["loc"])
        return f"{where}: unknown kind '{kind:.{_LONGEST_KEY}}'", nearest(kind, valid)
    if problem["type"] == "union_tag_not_found":
        return f"{where}: say which kind", f"valid: {', '.join(sorted(_kinds_at(model, problem['loc'])))}"
    if problem["type"] == "missing":
        return f"{where}: {_mistake(problem)}", ""
    shown = "" if isinstance(problem["input"], Mapping) else f" (found {_as_written(problem['input']):.80})"
    return f"{where}: {_mistake(problem)}{shown}", _fix(problem)


def _as_written(found: object) -> str:
    """Return a value in YAML notation."""
    return {"None": "null", "True": "true", "False": "false"}.get(repr(found), repr(found))


_FIRST_KEY = re.compile(r"([\w.-]+)(: )?")
"""Matches the key at the start of a message. After a colon and a space, a nested key can follow."""


def _named_path(problem: ErrorDetails, path: KeyPath, document: Document) -> KeyPath:
    """Return the path of the wrong key; some messages begin with the path, such as `tune: optimizer.lr: …`."""
    words = problem["msg"].removeprefix("Value error, ") if problem["type"] == "value_error" else ""
    while found := _FIRST_KEY.match(words):
        dotted = (int(key) if key.isdigit() else key for key in found[1].split("."))
        deeper = [one for one in ((*path, found[1]), (*path, *dotted)) if one in document.places]
        if not deeper:
            break
        path, words = deeper[0], words[found.end() :] if found[2] else ""
    return path


def _cause(problem: ErrorDetails, model: type[Settings], document: Document, resolve: Resolve) -> str:
    """Return the overrides that cause a mistake; '' if the mistake also occurs without any override."""
    every = document.overrides

    def stays(left_out: Collection[Override]) -> bool:
        """Return whether the data without these overrides has the same mistake."""
        try:
            _validated(model, resolve(document.without(left_out)))
        except UserError:  # an override needs another one
            return False
        except ValidationError as error:
            others = error.errors(include_url=False)
            return any(all(one[key] == problem[key] for key in ("type", "loc", "msg")) for one in others)
        return False

    if not every or stays(every):
        return ""
    found = [one for one in every if not stays([one])]
    return ", ".join(dict.fromkeys(one.label for one in found or every))


def _path_in_data(loc: KeyPath, data: object, ends_with_key: bool) -> KeyPath:
    """Remove the union tags from a pydantic path. The user did not write these tags.

    A tag can equal the name of a key: the kind `column` has a key `column`. So the path ends at a key with a plain
    value, except one that is only the name of a kind (`teacher: vgg16`). With `ends_with_key`, the last element is a
    key even if the data lacks it, or pydantic spells it differently.
    """
    path: list[str | int] = []
    for depth, key in enumerate(loc):
        last = depth == len(loc) - 1
        if isinstance(data, Mapping | list) and (key in data if isinstance(data, Mapping) else isinstance(key, int)):
            inner = data[key]  # type: ignore[index]
            if last or isinstance(inner, Mapping | list) or inner == loc[depth + 1]:
                data = inner
                path.append(key)
        elif last and ends_with_key:
            path.append(key)
    return tuple(path)


def _valid_keys(model: type[Settings], loc: KeyPath) -> set[str]:
    fields = (item for candidate in _classes_at(model, loc) for item in candidate.model_fields.items())
    return {field.alias or name for name, field in fields}


def _classes_at(model: type[Settings], loc: KeyPath) -> list[type[Settings]]:
    """Return the settings classes that a pydantic path can refer to. The path includes the tags of unions."""
    candidates = [model]
    for key in loc:
        if key == OF_PLUGIN and (of_plugins := [c for c in candidates if is_added(c)]):
            candidates = of_plugins
            continue
        of_kind: list[type[Settings]] = [c for c in candidates if issubclass(c, Part) and c.kind_name() == key]
        deeper = [c.model_fields[key] for c in candidates if isinstance(key, str) and key in c.model_fields]
        inside = [c for field in deeper for c in settings_in(field)]
        if inside or (deeper and not of_kind):
            candidates = inside
        elif of_kind:
            candidates = of_kind
    return candidates


def _other_kinds_with(key: str, model: type[Settings], loc: KeyPath) -> list[str]:
    """Return the other kinds of a part that have this key; the chosen kind, last in the path, lacks it."""
    kinds = [one for one in _classes_at(model, loc[:-1]) if issubclass(one, Part)]
    if not loc or loc[-1] not in {one.kind_name() for one in kinds}:
        return []
    return sorted(one.kind_name() for one in kinds if key in one.model_fields)


def _kinds_at(model: type[Settings], loc: KeyPath) -> set[str]:
    return {c.kind_name() for c in _classes_at(model, loc) if issubclass(c, Part)}


def marks_of(field: FieldInfo) -> Iterator[object]:
    """Yield the types that a field can hold and all their annotations, also within unions and containers."""
    yield from field.metadata
    yield from _inside(field.annotation)


def _inside(annotation: object) -> Iterator[object]:
    yield annotation
    for inner in get_args(annotation):  # for `Annotated`: the type and its annotations
        yield from _inside(inner)


def settings_in(field: FieldInfo) -> list[type[Settings]]:
    """Return the settings classes that a field can hold."""
    chosen = [part for mark in marks_of(field) if isinstance(mark, OneOf) for part in mark.parts]
    return chosen or [one for one in marks_of(field) if isinstance(one, type) and issubclass(one, Settings)]


_MARKS = re.compile(r"""'[^']*'|"[^"]*"|[\[({\])},]""")
"""Matches quoted text, brackets and commas. Quotes and brackets determine whether a comma separates two options."""


def assignments_in(options: str) -> list[str]:
    """Split `key=value,key=[value,value]` into assignments, but not at commas within brackets or quotes."""
    commas, depth = [], 0
    for mark in _MARKS.finditer(options):
        if mark[0] == "," and depth == 0:
            commas.append(mark.start())
        depth = max(0, depth + (mark[0] in ("[", "(", "{")) - (mark[0] in ("]", ")", "}")))
    cut = zip([0, *(comma + 1 for comma in commas)], [*commas, len(options)], strict=True)
    return [options[start:end] for start, end in cut if start < end]
