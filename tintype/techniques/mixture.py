"""mixture: add other data sources to the plan's own data, each with a fixed share of every batch.

The run is scored against the plan's own held-out images, so that arms with and without the mixture can be compared.
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
    data: Given = Field(
        default_factory=dict,
        description="Settings of the added source; other settings are those of the plan's own data",
    )


class Options(Share):
    add: dict[str, Added] = Field(min_length=1, description="By name: add.synthetic.data.style=render")
    own: str = Field(
        "own", description="Name of the plan's own data as a source of the mixture; `share` sets its share"
    )


def apply(plan: Plan, options: Options) -> Changes:
    if not isinstance(plan.data, MixtureSettings):
        there, scored = {options.own: _source(options, plan.data)}, options.own
    elif given := options.model_fields_set - {"add"}:
        raise UserError(
            f"technique 'mixture': {', '.join(sorted(given))}: the plan's own data is a mixture, whose sources "
            f"already have names and shares"
        )
    else:
        there, scored = dict(plan.data.sources), plan.data.evaluate
    for name in options.add:
        if name in there:
            raise UserError(
                f"technique 'mixture': add.{name}: the data already has a source with this name", "choose another name"
            )
    own = there[scored].data
    added = {
        name: _source(one, source_like(own, one.data, f"technique 'mixture': add.{name}.data"))
        for name, one in options.add.items()
    }
    return {"data": MixtureSettings(size_px=plan.data.size_px, sources={**there, **added}, evaluate=scored)}


def _source(share: Share, data: DataPart) -> MixedSource:
    return MixedSource(share=share.share, rest=share.rest, schedule=share.schedule, data=data)


TECHNIQUE = Technique(
    seam="data",
    summary="train on other sources too, each with its share of every batch",
    apply=apply,
    options=Options,
)
