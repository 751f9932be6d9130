"""mixture: other sources beside the plan's own data, each with a share of every batch.

The run is scored against the plan's own held-out images, so that arms with and without can be compared.
"""

from __future__ import annotations

from pydantic import Field

from tintype.data.mixture.settings import MixedSource, MixtureSettings, Share
from tintype.data.parts import Given, source_like
from tintype.errors import UserError
from tintype.plan import Plan
from tintype.settings import DataPart
from tintype.techniques.technique import Changes, Technique


class Added(Share):
    data: Given = Field(default_factory=dict, description="Its settings; what is not said is as in the plan's own data")


class Options(Share):
    add: dict[str, Added] = Field(min_length=1, description="By name: add.synthetic.data.style=render")
    own: str = Field("own", description="What the plan's own data is called; its share is `share`")


def apply(plan: Plan, options: Options) -> Changes:
    there = _there(plan, options)
    for name in options.add:
        if name in there:
            raise UserError(f"technique 'mixture': add.{name}: the data has a source of this name; take another")
    own = there[_scored(plan, options)].data
    added = {
        name: _source(one, source_like(own, one.data, f"technique 'mixture': add.{name}.data"))
        for name, one in options.add.items()
    }
    sources = {**there, **added}
    return {"data": MixtureSettings(size_px=plan.data.size_px, sources=sources, evaluate=_scored(plan, options))}


def _there(plan: Plan, options: Options) -> dict[str, MixedSource]:
    if not isinstance(plan.data, MixtureSettings):
        return {options.own: _source(options, plan.data)}
    if given := options.model_fields_set - {"add"}:
        raise UserError(
            f"technique 'mixture': {', '.join(sorted(given))}: the plan's own data is a mixture, whose sources have "
            "their names and shares"
        )
    return dict(plan.data.sources)


def _source(share: Share, data: DataPart) -> MixedSource:
    return MixedSource(share=share.share, rest=share.rest, schedule=share.schedule, data=data)


def _scored(plan: Plan, options: Options) -> str:
    return plan.data.evaluate if isinstance(plan.data, MixtureSettings) else options.own


TECHNIQUE = Technique(
    seam="data",
    summary="train on other sources too, each with its share of every batch",
    apply=apply,
    options=Options,
)
