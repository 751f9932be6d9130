"""caption-curriculum: training starts with one caption and gradually mixes in others (`data/captions.py`)."""

from __future__ import annotations

from pydantic import Field

from tintype.data.captions import CurriculumSettings, Weights
from tintype.plan import Plan
from tintype.schedule import Moment, Schedule, step_of
from tintype.settings import Settings
from tintype.techniques.technique import Changes, Technique


class Options(Settings):
    first: str = Field("long", description="Caption column that training reads before the mix begins")
    weights: Weights = Field(
        {"long": 0.5, "short": 0.5},
        description="Weight with which the mix draws each caption column, relative to the others",
    )
    start: Moment = Field(0.5, description="When the mix begins: a step, or a share of the training")
    end: Moment = Field(0.75, description="When the mix is complete: a step, or a share of the training")


def apply(plan: Plan, options: Options) -> Changes:
    steps = plan.train.steps
    start, end = step_of(options.start, steps), step_of(options.end, steps)
    if isinstance(options.start, float) and isinstance(options.end, float) and options.start < options.end:
        start = min(start, steps - 1)  # a short run may round both to one step, or to its end
        end = max(end, start + 1)
    schedule, own = Schedule(kind="ramp", start=start, end=end), options.model_dump(include={"first", "weights"})
    return {"captions": CurriculumSettings(**plan.captions.common, **own, schedule=schedule)}


TECHNIQUE = Technique(
    seam="captions",
    summary="long captions first, then more and more of a mix",
    apply=apply,
    options=Options,
)
