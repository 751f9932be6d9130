"""The weights among a checkpoint's tensors, and whether they are those that a model has."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from tintype.optim.part import AverageSettings
from tintype.plan import Plan
from tintype.runtime.forms import Form, forms_of, misfits, under
from tintype.train.parts import JOINT, JOINT_ONLY, LOSSES, storage_dtype

OWN = (LOSSES, JOINT_ONLY)
"""Stands before the names of what a run has for its own training."""
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}


def weights_in(tensors: Mapping[str, Tensor], average: AverageSettings | None) -> dict[str, Tensor]:
    """By their names in the modules, without what the run has for its own training: the average, or the weights."""
    weights = under("modules/", tensors)
    if average is not None:
        weights |= average.sampled(under("ema/", tensors))
    return {name: tensor for name, tensor in weights.items() if not name.startswith(OWN)}


def weight_misfits(
    tensors: Mapping[str, Tensor],
    modules: nn.Module,
    stored_by: Plan,
    average: AverageSettings | None = None,
    about: Mapping[str, Any] | None = None,
) -> str:
    """List what of a checkpoint's weights, and of its average, does not fit the modules; '' where all fits.

    Their types are those that the run of the plan `stored_by` stores, or that an export says about itself.
    """
    if about and about.get("dtype") not in DTYPES:
        return f"its record says the type {about.get('dtype')!r}, and exports have {' or '.join(DTYPES)}"
    exported = DTYPES[about["dtype"]] if about else None
    parameters = dict(modules.named_parameters())
    wanted = {
        name: Form(tensor.shape, _dtype(name, tensor, stored_by, exported, name in parameters))
        for name, tensor in modules.state_dict().items()
        if not name.startswith(OWN)
    }
    found = {name: tensor for name, tensor in under("modules/", tensors).items() if not name.startswith(OWN)}
    reasons = [misfits(forms_of(found), wanted)]
    if average is not None:
        followed = {
            name: torch.empty(one.shape, device="meta")
            for name, one in parameters.items()
            if not name.startswith((*OWN, *JOINT))
        }
        kept = {name: one for name, one in under("ema/", tensors).items() if not _of_loss(name)}
        reasons.append(misfits(forms_of(kept), forms_of(average.build(followed).tensors())))
    return "; ".join(filter(None, reasons))


def _dtype(name: str, tensor: Tensor, plan: Plan, exported: torch.dtype | None, is_parameter: bool) -> torch.dtype:
    if exported is not None and tensor.is_floating_point():
        return exported
    return storage_dtype(plan, name) if is_parameter else tensor.dtype


def _of_loss(name: str) -> bool:
    """Return whether a tensor of an average, with or without its length before the name, belongs to a loss term."""
    return name.startswith(LOSSES) or name.partition("/")[2].startswith(LOSSES)
