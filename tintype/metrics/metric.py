"""A metric as a value: its inputs, its better direction, its definition in words, and its function."""

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
"""Scale on which runs are compared; `study.stats.cells.Scale` defines each."""


@dataclass(frozen=True)
class Measured:
    """A number with its sampling error: its standard deviation over other noises with the same model."""

    value: float
    error: float | None = None
    method: str = ""
    """Method by which the error was computed."""
    warnings: tuple[str, ...] = ()
    parts: Mapping[str, float] = field(default_factory=dict)
    """Breakdown of the metric by attribute, by time, or by group of prompts."""
    per_image: tuple[float, ...] = field(default=(), repr=False)
    """A number for each image, whose mean is the value; empty for a distance between sets."""
    bias: float | None = None
    """Bias of the value from finite sets of images, which makes it too large.

    None if unknown, or zero by definition.
    """
    bounds: tuple[float, float] | None = None
    """The 95% interval, if it does not come from the normal approximation."""

    @property
    def interval(self) -> tuple[float, float] | None:
        """Return the 95% interval of sampling, by default from the normal approximation."""
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
    """Definition in words. `{captions}` stands for the caption column."""
    measure: Callable[[Inputs], Measured]
    range: Range = ANY_VALUE
    """Range of possible values. An unbiased estimate of a distance has no lower bound, since it can be below zero."""
    scale: Compared | None = None
    """Scale on which runs are compared. None means logit for values in [0, 1], log for nonnegative values, else raw."""
    margin: str = MARGIN
    """Largest negligible difference: relative to the baseline's mean (3%), or in the metric's unit (0.01).

    A study may choose another margin.
    """
    corrected_for_chance: bool = False
    """Whether the metric, a fraction, is corrected for chance and so can be below zero."""
    unit: str = ""
    decimals: int | None = None
    """Printed digits after the decimal point; None for as many as the value needs."""
    is_primary: bool = False
    """Whether this is a primary metric by default in a study on scenes."""
    shows_parts: bool = True
    """Whether the breakdown is printed next to the value."""
    in_latents: bool = False
    """Whether the metric is measured in the latents of the run's own tokenizer.

    Then only runs with one tokenizer compare.
    """
    fewest: int = 2
    """Fewest images that the metric needs in each set."""
    revision: int = 1
    """Number of the metric's definition.

    This number is part of a protocol's hash, so values of two definitions are never compared.
    """
    revised_above: int = 0
    """With a reference of at most this many images, the present definition gives the same values as the first one."""

    @property
    def compared(self) -> Compared:
        by_range: dict[Range, Compared] = {SHARE: "logit", NOT_NEGATIVE: "log"}
        return self.scale or by_range.get(self.range, "raw")

    def define(self, captions: str) -> str:
        """Return the definition for images with one caption column."""
        return self.definition.replace("{captions}", captions)


AnyMetric: TypeAlias = Metric[Never]
"""A metric with unknown inputs."""
