"""muon: Muon optimizes the 2-D weights of the blocks, and the plan's own AdamW optimizes all other weights (arXiv
2502.16982).

With `scaling=matched`, a step has the size of AdamW's step, so the default learning rate is the plan's own.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from tintype.optim.adamw import AdamWSettings
from tintype.optim.muon import MuonSettings
from tintype.plan import Plan
from tintype.settings import Settings
from tintype.techniques.technique import Changes, Technique


class Options(Settings):
    lr: float | None = Field(None, gt=0, description="Learning rate of Muon; by default that of the plan")
    momentum: float = Field(0.95, ge=0, lt=1, description="Decay of the running mean of the gradients")
    nesterov: bool = Field(True, description="Use Nesterov momentum")
    weight_decay: float = Field(0.0, ge=0, description="Decoupled")
    scaling: Literal["matched", "original"] = Field(
        "matched",
        description="Step size: matched to that of AdamW, or the orthogonal matrix times sqrt(max(1, rows / "
        "columns)) (original)",
    )
    iteration: Literal["newton-schulz", "polar-express"] = Field(
        "newton-schulz",
        description="Polynomial of the orthogonalisation: the same in all iterations "
        "(newton-schulz), or another one in each (polar-express)",
    )
    cautious: bool = Field(False, description="Apply weight decay only to weights that the update moves towards zero")
    fused: Literal["whole", "parts"] = Field(
        "whole",
        description="Orthogonalise fused projections (QKV, KV, modulation) as one matrix (whole), or "
        "each projection separately (parts)",
    )
    modulation: bool = Field(True, description="Update the modulation matrices with Muon; otherwise AdamW updates them")


def apply(plan: Plan, options: Options, name: str = "muon") -> Changes:
    adamw = plan.optimizer
    if not isinstance(adamw, AdamWSettings):
        raise ValueError(f"{name}: the plan's optimizer is '{adamw.kind}', not adamw")
    own = options.model_dump(exclude={"lr"})
    return {"optimizer": MuonSettings(**own, lr=options.lr or adamw.lr, adamw=adamw)}


TECHNIQUE = Technique(
    seam="optimizer",
    summary="orthogonalised momentum for the matrices of the blocks, AdamW as it was for the rest",
    apply=apply,
    options=Options,
    paper="arXiv:2502.16982",
)
