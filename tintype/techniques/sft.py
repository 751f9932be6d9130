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
    from_: PathText = Field(
        alias="from", min_length=1, description="Run to start from, as a folder or, in a study, as arm:NAME"
    )
    weights: Literal["raw", "average"] = Field(
        "raw", description="Weights to start from, either those of the last step (raw) or their average"
    )
    sha256: str | None = Field(
        None, description="First digits of the weights' SHA-256; weights with another hash are refused"
    )
    lr: float | None = Field(
        None, gt=0, description="Learning rate of this stage; by default a tenth of that of the plan"
    )
    steps: int | None = Field(None, ge=1, description="Number of steps of this stage; by default that of the plan")
    warmup_steps: int | None = Field(
        None, ge=0, description="Number of warm-up steps of this stage; by default that of the plan"
    )
    data: Given = Field(
        default_factory=dict,
        description="Settings of this stage's data; settings left out are those of the plan's own data",
    )
    store: PathText | None = Field(
        None,
        min_length=1,
        description="Folder of another store, as a short form of data, if the plan's data is a store",
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
            "technique 'sft': sha256 applies only to a run's folder, since the plan of an arm already fixes its "
            "weights",
            "leave it out",
        )
    return ArmStart(name=options.from_.removeprefix(ARM), weights=options.weights)


TECHNIQUE = Technique(
    seam="start",
    also=frozenset({"data", "optimizer", "train"}),
    summary="start from the weights of another run, with a lower learning rate and data of its own",
    apply=apply,
    options=Options,
)
