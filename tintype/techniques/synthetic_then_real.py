"""synthetic-then-real: train first on one data source and then on another, with a sudden or gradual change.

One of the two sources is the plan's own data.

The technique makes a single run, so the optimizer's state and the learning rate's schedule continue through the change.
"""

from __future__ import annotations

from pydantic import Field, model_validator

from tintype.data.mixture.settings import MixedSource, MixtureSettings
from tintype.data.parts import Given, instead, source_like
from tintype.data.scenes.source import ScenesSettings
from tintype.data.store.settings import StoreSettings
from tintype.errors import UserError
from tintype.plan import Plan
from tintype.schedule import Schedule
from tintype.settings import PathText, Settings
from tintype.techniques.technique import Changes, Technique

FIRST, SECOND = "synthetic", "real"


class Options(Settings):
    first: Given = Field(
        default_factory=lambda: {"style": "render"},
        description="Settings of the first source; settings left out are those of the plan's own data",
    )
    second: Given = Field(
        default_factory=dict,
        description="Settings of the second source; by default the plan's own data",
    )
    store: PathText | None = Field(
        None,
        min_length=1,
        description="Folder of the second source, if the plan's data is a store; the first source is then the "
        "plan's own data",
    )
    at: float = Field(
        0.5, gt=0, lt=1, description="Share of the steps after which the change to the second source begins"
    )
    over: float = Field(
        0.0, ge=0, lt=1, description="Share of the steps over which the data changes linearly; 0: a sudden change"
    )
    rest: float = Field(0.0, ge=0, lt=1, description="Share of the first source in the data at the end")

    @model_validator(mode="after")
    def _ends_in_time(self) -> Options:
        if self.at + self.over > 1:
            raise ValueError(
                f"the change begins at {self.at} of the steps and takes {self.over} of them, so it would end "
                f"after the training"
            )
        return self


def apply(plan: Plan, options: Options) -> Changes:
    own = first = second = plan.data
    where = "technique 'synthetic-then-real'"
    if isinstance(own, MixtureSettings):
        raise UserError(
            f"{where}: the plan's data is already a mixture", "give schedules to the mixture's sources instead"
        )
    if options.store is not None and isinstance(own, StoreSettings):
        second = instead(own, {}, options.store, f"{where}: store")
    elif not isinstance(own, ScenesSettings) and "first" not in options.model_fields_set:
        raise UserError(f"{where}: the first source is not set", "set the first source, for example first.kind=scenes")
    else:
        first = source_like(own, options.first, f"{where}: first")
        second = source_like(own, options.second, f"{where}: second")
    if first == second:
        raise UserError(
            f"{where}: both sources are the plan's own data",
            "give one of them other settings, for example first.style=render if the plan has data.style=photo",
        )
    start = max(1, round(options.at * plan.train.steps))
    end = max(start + 1, round((options.at + options.over) * plan.train.steps))
    falls, rises = (Schedule(kind=kind, start=start, end=end) for kind in ("fall", "ramp"))
    sources = {
        FIRST: MixedSource(share=1.0, rest=options.rest, schedule=falls, data=first),
        SECOND: MixedSource(share=1.0 - options.rest, schedule=rises, data=second),
    }
    return {"data": MixtureSettings(size_px=own.size_px, sources=sources, evaluate=SECOND)}


TECHNIQUE = Technique(
    seam="data",
    summary="train on synthetic images first, then on real ones",
    apply=apply,
    options=Options,
)
