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
    """Method by which the error was computed."""
    warnings: tuple[str, ...] = ()
    parts: Mapping[str, float] = field(default_factory=dict)
    """Breakdown of the metric by attribute, by time, or by group of prompts."""
    per_image: tuple[float, ...] = field(default=(), repr=False)
    """One number for each image; their mean is the value. Empty for a distance between sets."""
    bias: float | None = None
    """Bias of the value because the number of images is finite. The bias makes the value too large.

    None if the bias is unknown, or zero by definition.
    """
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
    """Whether lower or higher values are better."""
    definition: str
    """The metric's definition in words. `{captions}` is a placeholder for the caption column."""
    measure: Callable[[Inputs], Measured]
    range: Range = ANY_VALUE
    """Range of possible values. An unbiased estimate of a distance can be below zero, so it has no lower bound."""
    scale: Compared | None = None
    """Scale on which runs are compared.

    By default, it is logit for values in [0, 1], log for other nonnegative values, else raw.
    """
    margin: str = MARGIN
    """Largest negligible difference, relative to the baseline's mean (such as 3%) or in the metric's unit (such as
    0.01).

    A study may set another margin.
    """
    corrected_for_chance: bool = False
    """Whether the metric is a fraction that is corrected for chance.

    A fraction that is corrected for chance can be below zero.
    """
    unit: str = ""
    decimals: int | None = None
    """Number of printed decimals; None to print as many as the value needs."""
    is_primary: bool = False
    """Whether this is a primary metric by default in a study on scenes."""
    shows_parts: bool = True
    """Whether the breakdown is printed next to the value."""
    in_latents: bool = False
    """Whether the metric is measured in the latents of the run's own tokenizer.

    Only runs with the same tokenizer can then be compared.
    """
    fewest: int = 2
    """Minimum number of images that the metric needs in each set."""
    revision: int = 1
    """Version number of the metric's definition.

    The version number is part of a protocol's hash, so values of two definitions are never compared.
    """
    revised_above: int = 0
    """Up to this number of reference images, the current definition gives the same values as the first definition."""

    @property
    def compared(self) -> Compared:
        by_range: dict[Range, Compared] = {SHARE: "logit", NOT_NEGATIVE: "log"}
        return self.scale or by_range.get(self.range, "raw")

    def define(self, captions: str) -> str:
        """Return the definition for images with captions of one column."""
        return self.definition.replace("{captions}", captions)


AnyMetric: TypeAlias = Metric[Never]
"""A metric with unknown inputs."""
