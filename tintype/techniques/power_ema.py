"""power-ema: keep power-function averages of the weights, from which any length can be had after the run.

The averages are in `optim/power_ema.py`, their snapshots in `train/snapshots.py`, and what is made of these after
the run in `train/reconstruct.py`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pydantic import Field

from tintype.optim.power_ema import PowerEmaSettings
from tintype.settings import Settings
from tintype.techniques.technique import Technique

if TYPE_CHECKING:
    from tintype.plan import Plan


class Options(Settings):
    lengths: tuple[float, ...] = Field((0.05, 0.10), description="Widths of the averages as shares of the training")
    snapshots: int = Field(16, description="How often over the run the averages are written down")


def apply(plan: Plan, options: Options) -> dict[str, Any]:
    return {"ema": PowerEmaSettings(lengths=options.lengths, snapshots=options.snapshots)}


TECHNIQUE = Technique(
    name="power-ema",
    seam="ema",
    summary="average the weights so that any length of the average can be had after the run",
    apply=apply,
    options=Options,
    paper="arXiv:2312.02696",
    part=PowerEmaSettings,
)
