"""reg: denoise a frozen teacher's class token along with the image, and align the image's tokens with the teacher's
patches.

The losses are in `losses/class_token.py` and `losses/repa.py`.
"""

from __future__ import annotations

from pydantic import Field

from tintype.losses.class_token import ClassTokenSettings
from tintype.losses.repa import RepaOptions, RepaSettings
from tintype.plan import Plan
from tintype.pretrained.published import PUBLISHED
from tintype.techniques.technique import Changes, Technique


class Options(RepaOptions):
    """The options of REPA without a schedule, since the class token is needed at every step."""

    class_weight: float = Field(
        0.03, gt=0, description="Loss weight of the class token; `weight` is that of the alignment"
    )
    class_width: int | None = Field(None, ge=1, description="Width of the class token; by default that of the teacher")


def apply(plan: Plan, options: Options) -> Changes:
    own = options.resolved(plan)
    aligned = RepaSettings(**{key: own[key] for key in RepaOptions.model_fields})
    denoised = ClassTokenSettings(weight=options.class_weight, teacher=options.teacher)
    known = PUBLISHED.get(getattr(options.teacher, "source", ""))
    width = options.class_width or (known.width if known is not None else options.teacher.width())
    return {
        "losses": (*plan.losses, aligned, denoised),
        "model": plan.model.model_copy(update={"class_token": width}),
    }


TECHNIQUE = Technique(
    seam="losses",
    summary="denoise a frozen teacher's class token together with the image, and align tokens with the "
    "teacher's patches",
    apply=apply,
    options=Options,
    paper="arXiv:2507.01467",
    part=RepaSettings,
    also=frozenset({"model"}),
    trains=frozenset({"losses_repa", "denoiser.class_token"}),
)
