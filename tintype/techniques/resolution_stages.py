"""resolution-stages: the first steps train on smaller images, the last steps on images of `data.size_px`.

A smaller image of a record equals the image that a run with that size would use; the shapes of `data.buckets` are
scaled down. By default, all stages have the same number of images per step, so early steps are cheaper because they
have fewer tokens. `batches` sets other numbers of images. The order of records does not depend on the stage. Times are
sampled as before, with the `time.shift` of the last stage.
"""

from __future__ import annotations

from pydantic import Field

from tintype.errors import UserError
from tintype.plan import Plan
from tintype.schedule import Moment, step_of
from tintype.settings import Settings, StageSettings
from tintype.techniques.technique import Changes, Technique


class Options(Settings):
    sizes: tuple[int, ...] | None = Field(
        None,
        min_length=1,
        description="Image sizes, in pixels, of all stages before the last; by default one "
        "stage at half of data.size_px",
    )
    until: tuple[Moment, ...] | None = Field(
        None,
        description="When each of these stages ends: a step, or a share of the training; by default all "
        "stages are equally long",
    )
    batches: tuple[int, ...] | None = Field(
        None,
        description="Number of images per update in each of these stages; by default train.batch, as in the last stage",
    )


def apply(plan: Plan, options: Options) -> Changes:
    sizes = options.sizes or (plan.data.size_px // 2,)
    ends = options.until or tuple((index + 1) / (len(sizes) + 1) for index in range(len(sizes)))
    if len(ends) != len(sizes):
        raise UserError(
            f"technique 'resolution-stages': sizes has {len(sizes)} values, but until has {len(ends)}",
            "give one end for each size; the last stage, at data.size_px, needs none",
        )
    if options.batches is not None and len(options.batches) != len(sizes):
        raise UserError(
            f"technique 'resolution-stages': sizes has {len(sizes)} values, but batches has {len(options.batches)}",
            "give one batch for each size; the last stage, at data.size_px, uses train.batch",
        )
    steps = [step_of(end, plan.train.steps) for end in ends]
    stages = tuple(
        StageSettings(size_px=size, until=step, batch=batch)
        for size, step, batch in zip(sizes, steps, options.batches or [None] * len(sizes), strict=True)
    )
    return {"train": plan.train.model_copy(update={"stages": stages})}


TECHNIQUE = Technique(
    seam="train",
    setting="stages",
    summary="train on smaller images first, and at the full size in the end",
    apply=apply,
    options=Options,
)
