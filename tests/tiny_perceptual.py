"""LPIPS with random weights, and what a perceptual loss gets to see.

B: samples. C: channels. H, W: rows, columns.
"""

from __future__ import annotations

import os
from functools import lru_cache
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from tintype.flow.path import interpolate
from tintype.seams import Draws, LossInputs, Output, Sample
from tintype.tokenizers.pixels import Pixels
from tintype.vision.lpips import Lpips

_FILE = Path(os.environ["TINTYPE_CACHE"]) / "tiny-lpips.safetensors"


@lru_cache(maxsize=1)
def write_alexnet() -> Path:
    """A file of LPIPS's smaller network, one for all tests of a process."""
    _FILE.parent.mkdir(parents=True, exist_ok=True)
    generator = torch.Generator().manual_seed(0)
    state = Lpips("alexnet").state_dict()
    for tensor in state.values():
        if tensor.ndim == 4:
            nn.init.kaiming_normal_(tensor, generator=generator)
        else:
            nn.init.uniform_(tensor, generator=generator)  # the linear layers must not be negative
    save_file(state, _FILE)
    return _FILE


def sample_images(seed: int, count: int = 4, size_px: int = 32) -> Tensor:
    """Smooth pictures of bytes: a coarse noise, enlarged."""
    coarse = torch.rand(count, 3, 8, 8, generator=torch.Generator().manual_seed(seed))
    smooth = nn.functional.interpolate(coarse, (size_px, size_px), mode="bilinear")
    return (smooth * 255).to(torch.uint8)


def view_of(predicted_BCHW: Tensor, image_BCHW: Tensor, t_B: Tensor | None = None) -> LossInputs:
    """A view in which the denoiser has predicted this clean picture."""
    count = len(image_BCHW)
    t_B = torch.linspace(0.1, 0.9, count) if t_B is None else t_B
    x_BCHW = Pixels().encode(image_BCHW)
    noise_BCHW = torch.randn(x_BCHW.shape, generator=torch.Generator().manual_seed(9))
    return LossInputs(
        output=Output(predicted_BCHW, {}, None),
        sample=Sample(x_BCHW, noise_BCHW, t_B, interpolate(x_BCHW, noise_BCHW, t_B)),
        velocity_BCHW=noise_BCHW - predicted_BCHW,
        target_BCHW=noise_BCHW - x_BCHW,
        weight_B=None,
        image_BCHW=image_BCHW,
        captions=[""] * count,
        draws=Draws(0, torch.arange(count)),
        step=0,
    )
