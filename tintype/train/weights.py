"""The weights among a checkpoint's tensors, and whether they are those that a model has."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from tintype.settings import AverageSettings
from tintype.train.parts import ADVERSARY, LOSSES

OWN = (LOSSES, ADVERSARY)
"""Stands before the names of what a run has for its own training."""


def weights_in(tensors: Mapping[str, Tensor], average: AverageSettings | None) -> dict[str, Tensor]:
    """By their names in the modules, without what the run has for its own training: the average, or the weights."""
    weights = _under("modules/", tensors)
    if average is not None:
        weights |= average.sampled(_under("ema/", tensors))
    return {name: tensor for name, tensor in weights.items() if not name.startswith(OWN)}


def _under(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}


def misfits(found: Mapping[str, Tensor], wanted: Mapping[str, Tensor]) -> str:
    """What of the tensors is missing, too many or of another shape, the first three of each; '' where all fit."""
    shapes = [
        f"{name} has {list(found[name].shape)} and not {list(wanted[name].shape)}"
        for name in wanted
        if name in found and found[name].shape != wanted[name].shape
    ]
    kinds = {
        "missing": [name for name in wanted if name not in found],
        "too many": [name for name in found if name not in wanted],
        "of another shape": shapes,
    }
    return "; ".join(
        f"{len(names)} {kind}: {', '.join(names[:3])}{', …' if len(names) > 3 else ''}"
        for kind, names in kinds.items()
        if names
    )
