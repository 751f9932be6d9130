"""shared-adaln: use one modulation layer for all blocks, with an offset per block (adaLN-single, arXiv 2310.00426).

PRX has one modulation layer per block; together they have a quarter of its weights. By default, the MLPs become larger
by the saved weights, so that both arms have the same number of weights.
"""

from __future__ import annotations

import math

from pydantic import Field

from tintype.plan import Plan
from tintype.settings import FP8_MULTIPLE, ModelSettings, Settings
from tintype.techniques.technique import Changes, Technique


class Options(Settings):
    matched: bool = Field(True, description="Widen the MLPs so that the number of parameters stays the same")


def apply(plan: Plan, options: Options) -> Changes:
    model = plan.model
    update: dict[str, object] = {"shared_adaln": True}
    if options.matched:
        update["mlp_ratio"] = matched_ratio(model)
    return {"model": model.model_copy(update=update)}


def matched_ratio(model: ModelSettings) -> float:
    """Return the MLP ratio that keeps the model's number of weights constant, rounded to the nearest inner width."""
    layer = 6 * model.width * (model.width + 1)
    freed = (model.depth - 1) * layer - model.depth * 6 * model.width
    multiple = FP8_MULTIPLE if model.hidden % FP8_MULTIPLE == 0 else 1
    more = round(freed / (3 * model.width * model.depth) / multiple) * multiple
    ratio = (model.hidden + max(0, more)) / model.width
    return ratio if int(model.width * ratio) == model.hidden + max(0, more) else math.nextafter(ratio, math.inf)


TECHNIQUE = Technique(
    seam="model",
    summary="share one modulation layer among all blocks, and use the saved parameters for wider MLPs",
    apply=apply,
    options=Options,
    paper="arXiv:2310.00426",
    trains=frozenset({"denoiser.shared_modulation.", "denoiser.blocks."}),
)
