"""`data.where`: an expression over a store's columns that selects records.

    words(long) >= 5 and min(width, height) >= 256 and style == 'flat'

No code is executed. Names and quoted texts are masked, Python's own `ast` parses the rest, and only the nodes listed in
`_Builder._node` are accepted. Arrow computes each node for all records at once on the memory-mapped columns, after its
types are checked.

Two forms extend Python's syntax: `[any column name]` and `caption:NAME`. A backslash in a text is a plain backslash.

A missing value is null in Arrow. As in SQL, a comparison with null is neither true nor false (Kleene's logic). A record
for which the whole expression is null is not selected.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial, reduce
from shlex import quote
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray
from pyarrow import ArrowInvalid, ChunkedArray, compute

from tintype.config.strict import nearest
from tintype.data.store.attributes import Kind
from tintype.data.store.layout import ATTRIBUTE, CAPTION, Store
from tintype.errors import UserError

Type = Literal["number", "text", "truth"]
Value: TypeAlias = Any
"""A float, str or bool, or an Arrow scalar or column of such values."""

_LONGEST, _DEEPEST = 4000, 60
_TOO_DEEP = f"nested more than {_DEEPEST} levels deep"
_NUMBERS, _TEXTS = ("width", "height"), ("source", "sha256", "split")
_TYPES: dict[Kind, Type] = {"text": "text", "int": "number", "float": "number", "bool": "truth"}
_TRUTHS = {"true": True, "false": False}
_WORDS = ("and", "or", "not", "in")
_TOKEN = re.compile(
    r"""(?P<word>(?<![0-9.])(?:and|or|not|in)\b)
    |(?P<quoted>'[^']*'|"[^"]*"|\[[^\[\]]+\])
    |(?P<name>(?:caption:)?[^\W\d]\w*)
    |(?P<space>\s)
    |(?P<odd>(?<![=<>!])=(?!=)|[^0-9.<>=!()+\-*/,])""",
    re.VERBOSE,
)
_COMPARE: dict[type[ast.cmpop], tuple[str, Callable[..., Value]]] = {
    ast.Eq: ("==", compute.equal),
    ast.NotEq: ("!=", compute.not_equal),
    ast.Lt: ("<", compute.less),
    ast.LtE: ("<=", compute.less_equal),
    ast.Gt: (">", compute.greater),
    ast.GtE: (">=", compute.greater_equal),
}
_COMPUTE: dict[type[ast.operator], Callable[..., Value]] = {
    ast.Add: compute.add,
    ast.Sub: compute.subtract,
    ast.Mult: compute.multiply,
    ast.Div: compute.divide,
}
_A: dict[Type, str] = {"number": "a number", "text": "a text", "truth": "a comparison"}


@dataclass(frozen=True)
class Function:
    takes: tuple[Type | Literal["any"], ...]
    gives: Type
    compute: Callable[..., Value]
    example: str
    pattern: bool = False
    """Whether the last argument must be a literal text."""


def word_counts(text: Value) -> Value:
    """Return the number of words of each text. Words are separated by white space."""
    trimmed = compute.utf8_trim_whitespace(text)
    pieces = compute.list_value_length(compute.utf8_split_whitespace(trimmed))
    return compute.subtract(pieces, compute.equal(trimmed, "").cast("int32"))  # an empty text has one empty piece


_least, _most = (partial(one, skip_nulls=False) for one in (compute.min_element_wise, compute.max_element_wise))
FUNCTIONS = {
    "words": Function(("text",), "number", word_counts, "words(long)"),
    "characters": Function(("text",), "number", compute.utf8_length, "characters(long)"),
    "min": Function(("number",) * 2, "number", _least, "min(width, height)"),
    "max": Function(("number",) * 2, "number", _most, "max(width, height)"),
    "lower": Function(("text",), "text", compute.utf8_lower, "lower(long)"),
    "contains": Function(("text",) * 2, "truth", compute.match_substring, "contains(long, 'dog')", True),
    "starts": Function(("text",) * 2, "truth", compute.starts_with, "starts(source, 'train/')", True),
    "ends": Function(("text",) * 2, "truth", compute.ends_with, "ends(source, '.png')", True),
    "matches": Function(("text",) * 2, "truth", compute.match_substring_regex, "matches(long, '^A ')", True),
    "missing": Function(("any",), "truth", compute.is_null, "missing(score)"),
}


@dataclass(frozen=True)
class Node:
    type: Type
    at: int
    value: Value
    literal: bool = False
    column: str = ""
    """Name of the column in the shards, if the node is just a column."""

    @property
    def a(self) -> str:
        plain = self.type == "truth" and (self.literal or self.column)
        return "true or false" if plain else _A[self.type]


def kept_by(store: Store, expression: str, option: str = "data.where") -> NDArray[np.bool_]:
    """Return a mask of the rows for which the expression holds."""
    tree = _Builder(expression, option, store).whole()
    found = compute.and_kleene(
        store.table["sha256"].is_valid(), tree.value
    )  # turns a constant result into one value per row
    kept: NDArray[np.bool_] = found.fill_null(False).to_numpy()
    return kept


def known_columns(store: Store) -> dict[str, tuple[Type, str]]:
    """Return the names that an expression can use, with types and columns. A clashing kind is `caption:NAME`."""
    found: dict[str, tuple[Type, str]] = {name: ("text", CAPTION + name) for name in store.captions}
    found |= {name: (_TYPES[kind], ATTRIBUTE + name) for name, kind in store.attributes.items()}
    found |= {CAPTION + name: ("text", CAPTION + name) for name in store.captions}
    return found | {name: ("number", name) for name in _NUMBERS} | {name: ("text", name) for name in _TEXTS}


def written(column: str) -> str:
    if column in (*_NUMBERS, *_TEXTS):
        return CAPTION + column
    plain = re.fullmatch(r"[^\W\d]\w*", column) and column not in (*_WORDS, *_TRUTHS, *FUNCTIONS)
    return column if plain else f"[{column}]"


class _Builder:
    """Parses an expression and computes its nodes. Masking keeps all positions."""

    def __init__(self, expression: str, option: str, store: Store) -> None:
        self._text, self._option = expression.strip(), option
        self._store, self._columns = store, known_columns(store)
        if len(expression) > _LONGEST:
            raise UserError(f"{option} has {len(expression):,} characters; the limit is {_LONGEST:,}")
        self._masked = _TOKEN.sub(self._mask, self._text)

    def whole(self) -> Node:
        try:
            tree = ast.parse(self._masked, mode="eval").body
        except (RecursionError, MemoryError):
            raise self._error(0, _TOO_DEEP) from None
        except SyntaxError as error:
            raise self._explained(error) from None
        return self._typed(tree, "truth", "the whole is to say which records are taken, for example width >= 256")

    def _mask(self, found: re.Match[str]) -> str:
        """Replace a token that Python lacks by a Python token of the same length."""
        token = found.group()
        match found.lastgroup:
            case "word":
                return token
            case "quoted":
                return token[0] + "_" * (len(token) - 2) + token[-1]
            case "name":
                return "_" * len(token)
            case "space":
                return " "
        if token in "'\"[":
            raise self._error(found.start(), "this bracket or quote is never closed")
        raise self._error(
            found.start(), "to compare, write ==" if token == "=" else f"'{token}' is not a known operator"
        )

    def _explained(self, error: SyntaxError) -> UserError:
        at = (error.offset or 0) - 1
        if at < 0 or at >= len(self._text):
            return self._error(len(self._text), "the expression ends too early")
        if "nested" in error.msg:
            return self._error(at, _TOO_DEEP)
        hint = "; join conditions with and, or" if error.msg == "invalid syntax" else ""
        return self._error(at, f"{error.msg.partition(';')[0]}{hint}")

    def _node(self, node: ast.expr, depth: int) -> Node:
        if depth > _DEEPEST:
            raise self._error(node.col_offset, _TOO_DEEP)
        match node:
            case ast.BoolOp():
                is_and = isinstance(node.op, ast.And)
                why = f"'{'and' if is_and else 'or'}' joins comparisons"
                parts = [self._typed(one, "truth", why, depth) for one in node.values]
                return _joined(compute.and_kleene if is_and else compute.or_kleene, parts, node.col_offset)
            case ast.UnaryOp(op=ast.Not()):
                inner = self._typed(node.operand, "truth", "'not' stands before a comparison", depth)
                return Node("truth", node.col_offset, compute.invert(inner.value))
            case ast.UnaryOp(op=ast.USub()):
                inner = self._typed(node.operand, "number", "'-' stands before a number", depth)
                return Node("number", node.col_offset, compute.negate(inner.value), inner.literal)
            case ast.Compare():
                return self._compared(node, depth)
            case ast.BinOp() if type(node.op) in _COMPUTE:
                return self._computed(node, depth)
            case ast.Call(func=ast.Name(), keywords=[]):
                return self._called(node, depth)
            case ast.Name() | ast.List():
                return self._column(node)
            case ast.Constant(value=str()) if (quoted := self._source(node))[0] not in quoted[1:-1]:
                return Node("text", node.col_offset, quoted[1:-1], literal=True)
            case ast.Constant(value=int() | float()):
                return Node("number", node.col_offset, float(self._source(node)), literal=True)
        shown = self._source(node)[:40]
        raise self._error(
            node.col_offset, f"'{shown}' cannot be used here; write a column, a number, a 'text' or a function"
        )

    def _compared(self, node: ast.Compare, depth: int) -> Node:
        if any(isinstance(op, ast.In | ast.NotIn) for op in node.ops):
            return self._within(node, depth)
        parts = [self._node(one, depth + 1) for one in (node.left, *node.comparators)]
        places = [self._sign_at(*pair) for pair in zip((node.left, *node.comparators), node.comparators, strict=False)]
        chain = [
            self._comparison(left, op, at, right)
            for left, op, at, right in zip(parts, node.ops, places, parts[1:], strict=False)
        ]
        return _joined(compute.and_kleene, chain, node.col_offset)  # a <= b < c is a <= b and b < c

    def _comparison(self, left: Node, op: ast.cmpop, at: int, right: Node) -> Node:
        sign, function = _COMPARE[type(op)]
        truths = left.type == "truth" and not (left.literal or right.literal)
        if truths or left.type != right.type:
            hint = _as_number(left, right) or _as_number(right, left)
            raise self._error(at, f"'{sign}' cannot compare {left.a} with {right.a}{hint}")
        if left.type != "number" and sign not in ("==", "!="):
            what = "texts are" if left.type == "text" else "true and false are"
            raise self._error(at, f"{what} compared only with == and !=; '{sign}' is for numbers")
        return Node("truth", at, function(left.value, right.value))

    def _within(self, node: ast.Compare, depth: int) -> Node:
        choices = node.comparators[0]
        elements = choices.elts if isinstance(choices, ast.Tuple) else [choices]
        in_parentheses = self._masked[: elements[0].col_offset].rstrip().endswith("(") if elements else False
        if len(node.ops) > 1 or not in_parentheses:
            raise self._error(
                choices.col_offset, "'in' must be followed by a list in ( ), without another comparison after it"
            )
        left, parts = self._node(node.left, depth + 1), [self._node(one, depth + 1) for one in elements]
        if odd := next((part for part in parts if not part.literal), None):
            raise self._error(odd.at, "the list after 'in' may contain only numbers and texts in quotes")
        found = [self._comparison(left, ast.Eq(), part.at, part) for part in parts]
        taken = _joined(compute.or_kleene, found, node.col_offset)
        return taken if isinstance(node.ops[0], ast.In) else Node("truth", taken.at, compute.invert(taken.value))

    def _computed(self, node: ast.BinOp, depth: int) -> Node:
        at = self._sign_at(node.left, node.right)
        why = f"the operator '{self._masked[at]}' needs numbers"
        first, second = (self._typed(one, "number", why, depth) for one in (node.left, node.right))
        if isinstance(node.op, ast.Div):
            zero = compute.equal(second.value, 0)
            if zeros := compute.sum(zero).as_py():
                records = f"{zeros:,} of the" if isinstance(zero, ChunkedArray) else "all"
                raise self._error(at, f"the divisor is zero in {records} records")
        return Node("number", at, _COMPUTE[type(node.op)](first.value, second.value))

    def _column(self, node: ast.Name | ast.List) -> Node:
        at, shown = node.col_offset, self._source(node)
        name = shown[1:-1] if isinstance(node, ast.List) else shown
        if shown in _TRUTHS:
            return Node("truth", at, _TRUTHS[shown], literal=True)
        if name in FUNCTIONS and name not in self._columns:
            raise self._error(at, f"{name} is a function; write {FUNCTIONS[name].example}")
        if name not in self._columns:
            names = [known for known in self._columns if not known.startswith(CAPTION)]
            guess = nearest(name, names) if len(names) > 1 else ""
            guess = f"{guess} The" if guess.startswith("did you") else "the"
            raise self._error(at, f"there is no column '{name}'; {guess} columns are {', '.join(names)}")
        kind, column = self._columns[name]
        return Node(kind, at, _read(self._store, kind, column), column=column)

    def _called(self, node: ast.Call, depth: int) -> Node:
        name = self._source(node.func)
        function = FUNCTIONS.get(name)
        if function is None:
            raise self._error(node.col_offset, f"there is no function '{name}'; {nearest(name, FUNCTIONS)}")
        if len(node.args) != len(function.takes):
            takes = f"{name} takes {len(function.takes)} values, not {len(node.args)}"
            raise self._error(node.col_offset, f"{takes}: {function.example}")
        given = [
            self._node(one, depth + 1)
            if wanted == "any"
            else self._typed(one, wanted, f"write {function.example}", depth)
            for one, wanted in zip(node.args, function.takes, strict=True)
        ]
        if function.pattern and not given[-1].literal:
            raise self._error(given[-1].at, f"this argument must be a text in quotes: {function.example}")
        try:
            found = function.compute(*(one.value for one in given))
        except ValueError as error:  # Arrow rejects the pattern
            raise self._error(given[-1].at, f"this text is not a valid regular expression: {error}") from None
        value = compute.cast(found, "float64") if function.gives == "number" else found
        return Node(function.gives, node.col_offset, value)

    def _typed(self, node: ast.expr, wanted: Type, why: str, depth: int = -1) -> Node:
        found = self._node(node, depth + 1)
        if found.type != wanted:
            raise self._error(found.at, f"this is {found.a}, but {_A[wanted]} is needed: {why}")
        return found

    def _source(self, node: ast.expr) -> str:
        return self._text[node.col_offset : node.end_col_offset]

    def _sign_at(self, left: ast.expr, right: ast.expr) -> int:
        between = self._masked[left.end_col_offset : right.col_offset]
        return right.col_offset - len(between.lstrip(" )"))

    def _error(self, at: int, problem: str) -> UserError:
        """Return an error that shows the expression on one line, with a mark below the position."""
        shown = "".join(letter if letter.isprintable() else " " for letter in self._text)
        begin = max(0, at - 60)
        cut = ("…" if begin else "") + shown[begin : at + 60] + ("…" if len(shown) > at + 60 else "")
        mark = " " * (at - begin + bool(begin)) + "^"
        return UserError(f"{self._option}, character {at + 1}: {problem}\n  {cut}\n  {mark}")


def _as_number(text: Node, number: Node) -> str:
    """Return the fix for a numeric attribute that was imported as text."""
    if text.type != "text" or number.type != "number" or not text.column.startswith(ATTRIBUTE):
        return ""
    name = text.column.removeprefix(ATTRIBUTE)
    return f"; the attribute {name} was imported as text: import it with {_import_as(f'{name}=COLUMN:float')}"


def _import_as(attribute: str) -> str:
    return f"`tintype data import SOURCE --out DIR --attribute {quote(attribute)}`"


def _read(store: Store, kind: Type, column: str) -> Value:
    try:
        return store.table[column].cast("float64") if kind == "number" else store.table[column]
    except ArrowInvalid:
        raise UserError(
            f"{column} of {store.path} has integers beyond ±2^53, which a condition cannot compare exactly",
            f"import the column as text: {_import_as('NAME=COLUMN:text')}",
        ) from None


def _joined(function: Callable[[Value, Value], Value], parts: Sequence[Node], at: int) -> Node:
    """Fold the nodes with an Arrow function, from left to right."""
    return Node("truth", at, reduce(function, (part.value for part in parts)))
