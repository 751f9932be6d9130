"""`data.where`: which records of a store are taken, as an expression over its columns.

    words(long) >= 5 and min(width, height) >= 256 and style == 'flat'

Nothing is ever executed: an own tokenizer and a parser by recursive descent build a tree, whose types are checked
against the store's columns before any is read. It is computed for all records at once, on the memory-mapped columns.

    either     = both {"or" both}                 negated   = ["not"] compared
    both       = negated {"and" negated}          compared  = sum {("==" | "!=" | "<" | "<=" | ">" | ">=") sum}
    sum        = product {("+" | "-") product}              | sum ["not"] "in" "(" literal {"," literal} ")"
    product    = signed {("*" | "/") signed}      signed    = "-" signed | atom
    atom       = number | 'text' | true | false | column | [any column] | function "(" either {"," either} ")"
               | "(" either ")"

A value may be missing; then a comparison is neither true nor false (`where_values.py`), and its record is not taken.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from tintype.config.strict import nearest
from tintype.data.store.attributes import Kind
from tintype.data.store.where_values import FUNCTIONS, Columns, Type, compared, same_text, same_truth, truth
from tintype.errors import UserError

if TYPE_CHECKING:
    from tintype.data.store.layout import Store

_LONGEST, _DEEPEST = 4000, 60
_NUMBERS, _TEXTS = ("width", "height"), ("source", "sha256", "split")
_CAPTION, _ATTRIBUTE = "caption:", "attribute:"
_TYPES: dict[Kind, Type] = {"text": "text", "int": "number", "float": "number", "bool": "truth"}
_TRUTHS = {"true": True, "false": False}
_WORDS = ("and", "or", "not", "in")
_TOKEN = re.compile(
    r"""\s*(?:(?P<number>\d+(?:\.\d+)?)(?![\w.])
    |(?P<text>'[^']*'|"[^"]*")
    |(?P<name>(?:caption:)?[^\W\d]\w*|\[[^\[\]]+\])
    |(?P<sign><=|>=|==|!=|[<>()+\-*/,]))""",
    re.VERBOSE,
)
_COMPARE: dict[str, Callable[[Any, Any], Any]] = {
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
_A: dict[Type, str] = {"number": "a number", "text": "a text", "truth": "a comparison"}


@dataclass(frozen=True)
class Token:
    kind: str
    text: str
    at: int


@dataclass(frozen=True)
class Node:
    """A part of the expression. `value` gives a float or an array of them, a str or an Arrow column, or truths
    as -1, 0 and 1."""

    type: Type
    at: int
    value: Callable[[Columns], Any]
    literal: bool = False
    column: str = ""
    """What it is called in the shards, where it is nothing else."""

    @property
    def a(self) -> str:
        """What it is, in messages."""
        plain = self.type == "truth" and (self.literal or self.column)
        return "true or false" if plain else _A[self.type]


def kept_by(store: Store, expression: str, option: str = "data.where") -> NDArray[np.bool_]:
    """Of every row whether the expression holds."""
    tree = _Parser(expression, option, known_columns(store)).whole()
    return np.array(np.broadcast_to(tree.value(Columns(store)) == 1, len(store)), dtype=np.bool_)


def known_columns(store: Store) -> dict[str, tuple[Type, str]]:
    """The names that an expression can use: their types, and their columns in the shards. A kind of caption that has
    the name of another column is `caption:NAME`; attributes have names of their own."""
    captions = store.captions
    own: dict[str, tuple[Type, str]] = {name: ("number", name) for name in _NUMBERS}
    own |= {name: ("text", name) for name in _TEXTS}
    prefixed: dict[str, tuple[Type, str]] = {_CAPTION + name: ("text", _CAPTION + name) for name in captions}
    attributes = {name: (_TYPES[kind], _ATTRIBUTE + name) for name, kind in store.attributes.items()}
    return {**{name: ("text", _CAPTION + name) for name in captions}, **attributes, **prefixed, **own}


def written(caption: str) -> str:
    """How an expression names a kind of caption, or an attribute."""
    if caption in (*_NUMBERS, *_TEXTS):
        return _CAPTION + caption
    plain = re.fullmatch(r"[^\W\d]\w*", caption) and caption not in (*_WORDS, *_TRUTHS, *FUNCTIONS)
    return caption if plain else f"[{caption}]"


class _Parser:
    def __init__(self, expression: str, option: str, columns: Mapping[str, tuple[Type, str]]) -> None:
        self._text, self._option, self._columns = expression, option, columns
        if len(expression) > _LONGEST:
            raise UserError(f"{option} has {len(expression):,} characters; the most is {_LONGEST:,}")
        self._tokens, self._next, self._depth = self._cut(), 0, 0

    def whole(self) -> Node:
        tree = self._either()
        if (rest := self._peek()).kind != "end":
            raise self._error(rest.at, f"'{rest.text}' is not expected here; join conditions with and, or")
        return self._typed(tree, "truth", "the whole is to say which records are taken, for example width >= 256")

    def _cut(self) -> list[Token]:
        tokens, at, end = [], 0, len(self._text.rstrip())
        while at < end:
            found = _TOKEN.match(self._text, at)
            if found is None or found.lastgroup is None:
                at += len(self._text[at:]) - len(self._text[at:].lstrip())
                raise self._error(at, self._odd(at))
            word = found.group(found.lastgroup)
            kind = "sign" if word in _WORDS else found.lastgroup
            tokens.append(Token(kind, word, found.start(found.lastgroup)))
            at = found.end()
        return [*tokens, Token("end", "", end)]

    def _odd(self, at: int) -> str:
        if self._text[at] in "'\"[":
            return "this is not closed"
        return "to compare, write ==" if self._text[at] == "=" else f"'{self._text[at]}' is not known here"

    def _peek(self) -> Token:
        return self._tokens[self._next]

    def _take(self, *signs: str) -> Token | None:
        token = self._peek()
        if token.kind != "sign" or token.text not in signs:
            return None
        self._next += 1
        return token

    def _need(self, sign: str) -> None:
        if self._take(sign) is None:
            token = self._peek()
            raise self._error(token.at, f"'{sign}' is missing here")

    def _either(self) -> Node:
        return self._joined("or", np.maximum, lambda: self._joined("and", np.minimum, self._negated))

    def _joined(self, word: str, join: Callable[[Any, Any], Any], inner: Callable[[], Node]) -> Node:
        left = inner()
        while token := self._take(word):
            why = f"'{word}' joins comparisons"
            first, second = self._typed(left, "truth", why).value, self._typed(inner(), "truth", why).value
            left = Node("truth", token.at, _both(join, first, second))
        return left

    def _negated(self) -> Node:
        self._depth += 1
        if self._depth > _DEEPEST:
            raise self._error(self._peek().at, f"nested more than {_DEEPEST} levels deep")
        if token := self._take("not"):
            inner = self._typed(self._negated(), "truth", "'not' stands before a comparison").value
            found = Node("truth", token.at, lambda columns: -inner(columns))
        else:
            found = self._compared()
        self._depth -= 1
        return found

    def _compared(self) -> Node:
        left, chain = self._sum(), []
        if token := self._take("in", "not"):
            if token.text == "not":
                self._need("in")
            return self._within(left, token)
        while token := self._take(*_COMPARE):
            right = self._sum()
            chain.append(self._comparison(left, token, right))
            left = right
        for following in chain[1:]:  # a <= b < c is a <= b and b < c
            chain[0] = Node("truth", chain[0].at, _both(np.minimum, chain[0].value, following.value))
        return chain[0] if chain else left

    def _comparison(self, left: Node, token: Token, right: Node) -> Node:
        truths = left.type == "truth" and not (left.literal or right.literal)
        if truths or left.type != right.type:
            hint = next((hint for one, other in ((left, right), (right, left)) if (hint := _as_number(one, other))), "")
            raise self._error(token.at, f"'{token.text}' cannot compare {left.a} with {right.a}{hint}")
        if left.type == "number":
            return Node("truth", token.at, _both(compared(_COMPARE[token.text]), left.value, right.value))
        if token.text not in ("==", "!="):
            what = "texts are" if left.type == "text" else "true and false are"
            raise self._error(token.at, f"{what} compared with == and !=; '{token.text}' is for numbers")
        value = _both(same_text if left.type == "text" else same_truth, left.value, right.value)
        return Node("truth", token.at, value if token.text == "==" else lambda columns: -value(columns))

    def _within(self, left: Node, token: Token) -> Node:
        self._need("(")
        choices = [self._comparison(left, Token("sign", "==", self._peek().at), self._literal())]
        while self._take(","):
            choices.append(self._comparison(left, Token("sign", "==", self._peek().at), self._literal()))
        self._need(")")

        def value(columns: Columns) -> Any:
            found = np.maximum.reduce(np.broadcast_arrays(*(choice.value(columns) for choice in choices)))
            return -found if token.text == "not" else found

        return Node("truth", token.at, value)

    def _literal(self) -> Node:
        token = self._peek()
        found = self._signed()
        if not found.literal:
            raise self._error(token.at, "a list after 'in' holds numbers or texts in quotes")
        return found

    def _sum(self) -> Node:
        return self._computed(("+", "-"), lambda: self._computed(("*", "/"), self._signed))

    def _computed(self, signs: tuple[str, ...], inner: Callable[[], Node]) -> Node:
        left = inner()
        while token := self._take(*signs):
            why = f"'{token.text}' computes with numbers"
            first, second = self._typed(left, "number", why).value, self._typed(inner(), "number", why).value
            compute: dict[str, Callable[[Any, Any], Any]] = {
                "+": operator.add,
                "-": operator.sub,
                "*": operator.mul,
                "/": self._divider(token.at),
            }
            left = Node("number", token.at, _both(compute[token.text], first, second))
        return left

    def _divider(self, at: int) -> Callable[[Any, Any], Any]:
        def divide(above: Any, below: Any) -> Any:
            if zeros := int(np.count_nonzero(np.asarray(below) == 0)):
                records = f"{zeros:,} of the" if np.ndim(below) else "all"
                raise self._error(at, f"this divides by zero, in {records} records")
            return above / below

        return divide

    def _signed(self) -> Node:
        if token := self._take("-"):
            inner = self._typed(self._signed_deeper(token), "number", "'-' stands before a number")
            value = inner.value
            return Node("number", token.at, lambda columns: -value(columns), inner.literal)
        return self._atom()

    def _signed_deeper(self, token: Token) -> Node:
        if self._peek().text == "-":
            raise self._error(token.at, "one minus sign is enough")
        return self._atom()

    def _atom(self) -> Node:
        token = self._peek()
        self._next += 1
        if token.kind == "number":
            number = float(token.text)
            return Node("number", token.at, lambda columns: number, literal=True)
        if token.kind == "text":
            words = token.text[1:-1]
            return Node("text", token.at, lambda columns: words, literal=True)
        if token.kind == "name":
            return self._called(token) if self._take("(") else self._column(token)
        if token.kind == "sign" and token.text == "(":
            inner = self._either()
            self._need(")")
            return inner
        found = f"'{token.text}' is not expected here" if token.text else "something is missing at the end"
        raise self._error(token.at, f"{found}; a column, a number, a 'text' or a function is")

    def _column(self, token: Token) -> Node:
        name = token.text[1:-1] if token.text.startswith("[") else token.text
        if token.text in _TRUTHS:
            known = truth(_TRUTHS[name])
            return Node("truth", token.at, lambda columns: known, literal=True)
        if name in FUNCTIONS and name not in self._columns:
            raise self._error(token.at, f"{name} is a function; write {FUNCTIONS[name].example}")
        if name not in self._columns:
            shown = [known for known in self._columns if not known.startswith(_CAPTION)]
            guess = nearest(name, shown) if len(shown) > 1 else ""
            guess = f"{guess} The" if guess.startswith("did you") else "the"
            raise self._error(token.at, f"there is no column '{name}'; {guess} columns are {', '.join(shown)}")
        kind, column = self._columns[name]
        readers = {"number": Columns.number, "text": Columns.text, "truth": Columns.truth}
        return Node(kind, token.at, lambda columns: readers[kind](columns, column), column=column)

    def _called(self, token: Token) -> Node:
        function = FUNCTIONS.get(token.text)
        if function is None:
            raise self._error(token.at, f"there is no function '{token.text}'; {nearest(token.text, FUNCTIONS)}")
        given = [self._either()]
        while self._take(","):
            given.append(self._either())
        self._need(")")
        if len(given) != len(function.takes):
            raise self._error(
                token.at, f"{token.text} takes {len(function.takes)} values, not {len(given)}: {function.example}"
            )
        for one, wanted in zip(given, function.takes, strict=True):
            if wanted != "any":
                self._typed(one, wanted, f"write {function.example}")
        if function.pattern and not given[-1].literal:
            raise self._error(given[-1].at, f"this must be a text in quotes: {function.example}")

        def value(columns: Columns) -> Any:
            try:
                return function.compute(*(one.value(columns) for one in given))
            except ValueError as error:  # Arrow's, of a pattern
                raise self._error(given[-1].at, f"this is no regular expression: {error}") from None

        return Node(function.gives, token.at, value)

    def _typed(self, node: Node, wanted: Type, why: str) -> Node:
        if node.type != wanted:
            raise self._error(node.at, f"this is {node.a}, and {_A[wanted]} is needed: {why}")
        return node

    def _error(self, at: int, problem: str) -> UserError:
        """With the expression on one line, and a mark below the place."""
        shown = "".join(letter if letter.isprintable() else " " for letter in self._text)
        begin = max(0, at - 60)
        cut = ("…" if begin else "") + shown[begin : at + 60] + ("…" if len(shown) > at + 60 else "")
        mark = " " * (at - begin + bool(begin)) + "^"
        return UserError(f"{self._option}, character {at + 1}: {problem}\n  {cut}\n  {mark}")


def _as_number(text: Node, number: Node) -> str:
    """What to do about an attribute that came in as text, and should not have."""
    if text.type != "text" or number.type != "number" or not text.column.startswith(_ATTRIBUTE):
        return ""
    name = text.column.removeprefix(_ATTRIBUTE)
    return f"; the attribute {name} was imported as text: import it with --attribute {name}=COLUMN:float"


def _both(join: Callable[[Any, Any], Any], first: Callable[..., Any], second: Callable[..., Any]) -> Callable[..., Any]:
    return lambda columns: join(first(columns), second(columns))
