"""Stores of images in Python. Heavy modules are imported when they are needed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from annotated_types import Ge, Le

from tintype.errors import UserError
from tintype.library.kinds import Count
from tintype.wording import option

if TYPE_CHECKING:
    from tintype.data.presets import DataPreset


def data_presets(preset: str | None = None) -> list[DataPreset]:
    """List public sets that `tintype data import --preset` knows: licence, records, and where to get them.

    Args:
        preset: show all about this one.

    Raises:
        UserError: there is no such preset.
    """
    from tintype.data.presets import named_presets

    return named_presets(preset)


@dataclass(frozen=True)
class Shapes:
    """Shapes of about equal area."""

    buckets: list[tuple[int, int]]
    """Height and width of each in pixels."""
    setting: str
    """The setting of a plan that trains on them."""


def choose_shapes(
    *,
    size: Annotated[int, Ge(16), Le(4096)] = 256,
    unit: Count = 16,
    ratio: Annotated[float, Ge(1)] = 2.0,
) -> Shapes:
    """Choose shapes of about equal area, as the setting data.buckets, to train on images that are not square.

    Args:
        size: data.size_px of the plan.
        unit: tokenizer stride × model.patch of the plan.
        ratio: largest ratio of the longer to the shorter side.

    Raises:
        UserError: the size is no multiple of the unit.
    """
    from tintype.data.buckets import shapes

    if size % unit:
        raise UserError(f"{option('size', size)} is no multiple of {option('unit', unit)}")
    made = shapes(size, unit, ratio)
    found = ",".join(f"[{height},{width}]" for height, width in made)
    return Shapes(made, f"data.buckets=[{found}]")
