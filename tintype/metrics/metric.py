"""A metric as one value: what it needs, which direction is better, its definition in words, and its function."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Generic, Literal, Never, TypeAlias, TypeVar

from tintype.seams import ANY_VALUE, Direction, Range

NOT_NEGATIVE: Range = (0.0, None)
SHARE: Range = (0.0, 1.0)
MARGIN = "3%"
"""The usual margin of a metric."""
Compared = Literal["raw", "log", "logit", "asinh"]
"""Scale on which runs are compared; `study.stats.cells.Scale` defines each."""


@dataclass(frozen=True)
class Measured:
    """A number with the standard error of sampling: what other noises would have given with the same model."""

    value: float
    error: float | None = None
    method: str = ""
    """How the error was found."""
    warnings: tuple[str, ...] = ()
    parts: Mapping[str, float] = field(default_factory=dict)
    """The metric by attribute, by time, or by the group of a prompt."""
    per_image: tuple[float, ...] = field(default=(), repr=False)
    """A number for each image, whose mean is the value; empty for a distance, which is one of sets."""
    bias: float | None = None
    """By how much finite sets of images make the value too large; None where it is not known, or zero by definition."""
    bounds: tuple[float, float] | None = None
    """The 95% interval where the normal approximation is not its method."""

    @property
    def interval(self) -> tuple[float, float] | None:
        """The 95% interval of sampling, by default by the normal approximation."""
        if self.bounds is not None:
            return self.bounds
        if self.error is None:
            return None
        return self.value - 1.96 * self.error, self.value + 1.96 * self.error


Inputs = TypeVar("Inputs", contravariant=True)


@dataclass(frozen=True, kw_only=True)
class Metric(Generic[Inputs]):
    name: str
    label: str
    direction: Direction
    """Which values are better."""
    definition: str
    """In words; `{captions}` stands for the kind of caption that is read."""
    measure: Callable[[Inputs], Measured]
    range: Range = ANY_VALUE
    """Unbiased estimates of a distance can be a little below zero: they have no bound."""
    scale: Compared | None = None
    """Scale on which runs are compared; None: logit for shares, log for what is not negative, else raw."""
    margin: str = MARGIN
    """Differences up to this size are none worth having: of the baseline's mean (3%), or in the metric's unit (0.01).
    A study may say otherwise."""
    corrected_for_chance: bool = False
    """Whether chance was taken off a share, which can be below zero then."""
    unit: str = ""
    decimals: int | None = None
    """Digits after the point where it is printed; None: as many as the value needs."""
    is_primary: bool = False
    """Whether a study of scenes asks about it by default."""
    shows_parts: bool = True
    """Whether its parts are printed beside it."""
    in_latents: bool = False
    """Measured in the latents of the run's own tokenizer: comparable between runs that share one."""
    fewest: int = 2
    """Images that it needs of each set."""
    revision: int = 1
    """The number of its definition. Values of two definitions are never compared: it is a part of a protocol's hash."""
    revised_above: int = 0
    """References of up to this many images have the same values as under the first definition."""

    @property
    def compared(self) -> Compared:
        by_range: dict[Range, Compared] = {SHARE: "logit", NOT_NEGATIVE: "log"}
        return self.scale or by_range.get(self.range, "raw")

    def define(self, captions: str) -> str:
        """Return the definition for images with one kind of caption."""
        return self.definition.replace("{captions}", captions)


AnyMetric: TypeAlias = Metric[Never]
"""A metric whose inputs are not known here."""
