"""sft: add a training stage that starts from the weights of another run, with separate data, learning rate and steps.

The other run is a folder (`from=runs/base`) or another arm of the same study (`from=arm:NAME`, with the same seed). The
optimizer and the weight average start from their initial state.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from tintype.data.parts import Given, instead
from tintype.errors import UserError
from tintype.model.start import ArmStart, RunStart, StartPart
from tintype.plan import Plan
from tintype.settings import PathText, Settings
from tintype.techniques.technique import Changes, Technique

ARM = "arm:"
_LR_SHARE = 0.1


class Options(Settings):
    from_: PathText = Field(alias="from", min_length=1, description="The folder of a run, or arm:NAME in a study")
    weights: Literal["raw", "average"] = Field("raw", description="The weights of the last step, or their average")
    sha256: str | None = Field(None, description="First digits of the weights' hash; different weights are refused")
    lr: float | None = Field(None, gt=0, description="Learning rate; by default a tenth of the plan's own")
    steps: int | None = Field(None, ge=1, description="Value for this stage; by default the plan's own")
    warmup_steps: int | None = Field(None, ge=0, description="Warm-up; by default the plan's own")
    data: Given = Field(default_factory=dict, description="Its settings; by default as in the plan's own data")
    store: PathText | None = Field(
        None, min_length=1, description="If the plan's data is a store: the folder of another one, in place of data"
    )


def apply(plan: Plan, options: Options) -> Changes:
    given = {"steps": options.steps, "warmup_steps": options.warmup_steps}
    train = plan.train.model_copy(update={key: value for key, value in given.items() if value is not None})
    factor = _LR_SHARE if options.lr is None else options.lr / plan.optimizer.lr
    changes: Changes = {"start": _start(options), "train": train, "optimizer": plan.optimizer.scaled(factor)}
    if options.data or options.store:
        changes["data"] = instead(plan.data, options.data, options.store, "technique 'sft': data")
    return changes


def _start(options: Options) -> StartPart:
    if not options.from_.startswith(ARM):
        return RunStart(folder=options.from_, weights=options.weights, sha256=options.sha256)
    if options.sha256 is not None:
        raise UserError(
            "technique 'sft': sha256 is for a folder; the weights of an arm are those of its plan", "leave it out"
        )
    return ArmStart(name=options.from_.removeprefix(ARM), weights=options.weights)


TECHNIQUE = Technique(
    seam="start",
    also=frozenset({"data", "optimizer", "train"}),
    summary="start from the weights of another run, with a lower learning rate and data of its own",
    apply=apply,
    options=Options,
)
