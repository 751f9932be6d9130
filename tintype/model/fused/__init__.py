"""A denoiser block that needs few passes over memory. Triton kernels compute everything except matrix products.

Each file has the forward and backward kernels of one operation, and names the operation's plain torch form. `block`
combines the kernels to one autograd function. Numbers are read and written in the dtype of the tensors, which is bf16
in training, and are computed in fp32. Every sum is computed by one program in a fixed order, so the same inputs give
the same bits.

Other packages import only `block` and `modulated_norm`, and only if `why_plain` or `why_no_kernels` returns ''. These
checks are necessary, since not every system has Triton.
"""

from __future__ import annotations

from functools import cache

import torch
from torch.utils._triton import has_triton

from tintype.settings import IslandSettings, ModelSettings, PrecisionSettings

_HEAD_SIZES = (16, 32, 64, 128)
_CAPABILITY = (8, 0)


def why_plain(settings: ModelSettings, precision: PrecisionSettings, device: torch.device) -> str:
    """Return a text that says why the fused kernels cannot run this model on this device; '' if they can."""
    return why_other_blocks(settings, precision) or why_no_kernels(device)


def why_other_blocks(settings: ModelSettings, precision: PrecisionSettings) -> str:
    """Return a text that says why no device can run these blocks with the fused kernels; '' if some can."""
    head_size, usual = settings.width // settings.heads, IslandSettings(timestep=precision.islands.timestep)
    if settings.variants:
        named = ", ".join(f"model.{name}" for name in settings.variants)
        return f"{named} is not as in PRX's block, for which they are written"
    if precision.compute != "bf16":
        return f"precision.compute is {precision.compute}, and they compute in bf16"
    if precision.islands not in (usual, usual.model_copy(update={"modulation": "fp32"})):
        return "precision.islands moves an operation of the blocks out of its usual precision"
    if head_size not in _HEAD_SIZES:
        return f"heads have {head_size} numbers (model.width / model.heads), and they take {_HEAD_SIZES}"
    return ""


@cache
def why_no_kernels(device: torch.device) -> str:
    """Return a text that says why Triton kernels cannot run on this device; '' if they can."""
    if device.type != "cuda" or torch.version.cuda is None:
        return f"the device is {device.type}, and they run on NVIDIA GPUs"
    if torch.cuda.get_device_capability(device) < _CAPABILITY:
        return f"the GPU has compute capability {torch.cuda.get_device_capability(device)}, and they need {_CAPABILITY}"
    return "" if has_triton() else "Triton is not installed"
