"""The result of `tintype data inspect`, as `--json` prints it."""

from __future__ import annotations

from typing import Literal, TypedDict

from tintype.data.store.attributes import Kind, Value

Counts = list[dict[str, str | int]]
"""Names or sizes, each with its number of `records`."""


class Numbers(TypedDict):
    min: float
    median: float
    max: float


class Spread(Numbers):
    mean: float


class Histogram(TypedDict):
    """Counts between edges. `open`: the last bin also holds all larger values."""

    edges: list[int] | list[float]
    counts: list[int]
    open: bool


class SpreadAndHistogram(Spread):
    histogram: Histogram


class Sizes(TypedDict):
    width: Spread
    height: Spread
    short: SpreadAndHistogram
    long: SpreadAndHistogram
    tiny: int
    at_least: Counts
    most_common: Counts
    bytes: int


class LogHistogram(TypedDict):
    log2_middles: list[float]
    counts: list[int]


class Aspects(Spread):
    histogram: LogHistogram
    above_3: int
    example: str


class Text(TypedDict):
    text: str
    records: int


class Captions(TypedDict):
    words: SpreadAndHistogram
    empty: int
    distinct: int
    long: int
    shared: int
    most_common: list[Text]
    strange: dict[str, int]
    strange_example: str | None


class AttributeValues(TypedDict):
    kind: Kind
    missing: int
    distinct: int
    spread: Numbers | None
    histogram: Histogram | None
    most_common: Counts


class Duplicates(TypedDict):
    """Counts of duplicates.

    `exact` and `near` count the records of a group without its first record. `leaking` counts training records that
    look like an evaluation record.
    """

    most_bits: int
    groups: int
    exact: int
    near: int
    leaking_groups: int
    leaking: int
    first: list[list[dict[str, str]]]


class Sample(TypedDict):
    split: str
    sha256: str
    source: str
    row: int
    width: int
    height: int
    captions: dict[str, str]
    attributes: dict[str, Value]


class SetAside(TypedDict):
    records: int
    reasons: Counts


class LeftOut(TypedDict):
    where: int
    skip: int
    note: str | None


Severity = Literal["alarm", "notice"]


class Problem(TypedDict):
    severity: Severity
    rank: float
    title: str
    why: str
    do: str
    records: int


class Result(TypedDict):
    store: str
    identity: str
    tintype: str
    records: int
    of: int
    left_out: LeftOut
    splits: dict[str, int]
    origins: Counts
    set_aside: SetAside
    sizes: Sizes
    aspects: Aspects
    pixels: dict[str, int]
    formats: dict[str, int]
    captions: dict[str, Captions]
    attributes: dict[str, AttributeValues]
    duplicates: Duplicates
    samples: list[Sample]
    problems: list[Problem]
