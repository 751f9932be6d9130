"""A metric as a value, with its inputs, its better direction, its definition in words, and its function."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Generic, Literal, Never, TypeAlias, TypeVar

from tintype.seams import ANY_VALUE, Direction, Range

NOT_NEGATIVE: Range = (0.0, None)
SHARE: Range = (0.0, 1.0)
MARGIN = "3%"
"""The default margin of a metric."""
Compared = Literal["raw", "log", "logit", "asinh"]
"""Scale on which runs are compared. `study.stats.cells.Scale` defines each scale."""


@dataclass(frozen=True)
class Measured:
    """A number with its sampling error, which is its standard deviation over other noises with the same model."""

    value: float
    error: float | None = None
    method: str = ""
    warnings: tuple[str, ...] = ()
    parts: Mapping[str, float] = field(default_factory=dict)
    """Breakdown of the metric by attribute, by time, or by group of prompts."""
    per_image: tuple[float, ...] = field(default=(), repr=False)
    """One number for each image; their mean is the value. Empty for a distance between sets."""
    bias: float | None = None
    """Amount by which the finite number of images makes the value too large. None if unknown, or zero by definition."""
    bounds: tuple[float, float] | None = None
    """The 95% interval, unless it comes from the normal approximation."""

    @property
    def interval(self) -> tuple[float, float] | None:
        """Return the 95% interval due to sampling. By default, it comes from the normal approximation."""
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
    definition: str
    """The metric's definition in words. `{captions}` is a placeholder for the caption column."""
    measure: Callable[[Inputs], Measured]
    range: Range = ANY_VALUE
    """Range of possible values. An unbiased estimate of a distance can be below zero, so it has no lower bound."""
    scale: Compared | None = None
    """Scale on which runs are compared: by default, logit for [0, 1], log for other nonnegative values, else raw."""
    margin: str = MARGIN
    """Largest negligible difference, relative to the baseline's mean (3%) or in the metric's unit (0.01)."""
    corrected_for_chance: bool = False
    """Whether the metric is a fraction corrected for chance, which can be below zero."""
    unit: str = ""
    decimals: int | None = None
    """Number of printed decimals; None to print as many as the value needs."""
    is_primary: bool = False
    """Whether this is a primary metric by default in a study on scenes."""
    shows_parts: bool = True
    in_latents: bool = False
    """Whether the metric is measured in the run's own latents, so that only runs with one tokenizer compare."""
    fewest: int = 2
    """Minimum number of images that the metric needs in each set."""
    revision: int = 1
    """Version of the definition, in a protocol's hash, so that values of two definitions are never compared."""
    revised_above: int = 0
    """Up to this number of reference images, the current definition gives the same values as the first definition."""

    @property
    def compared(self) -> Compared:
        by_range: dict[Range, Compared] = {SHARE: "logit", NOT_NEGATIVE: "log"}
        return self.scale or by_range.get(self.range, "raw")

    def define(self, captions: str) -> str:
        return self.definition.replace("{captions}", captions)


AnyMetric: TypeAlias = Metric[Never]
