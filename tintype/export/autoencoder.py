"""A tokenizer as an autoencoder of diffusers whose latents, by its own scale and shift, are the run's.

`PRXPipeline` decodes latents / scaling_factor + shift_factor: one number each. Numbers for each channel are folded into
the 1 × 1 convolutions between the latents and the networks of an `AutoencoderKL`, made where it has none. That
is exact: the space of the flow, with noise of deviation 1, stays the one in which the run was trained. Folded into the
denoiser's first and last layer instead, noise would need another deviation in each channel, and the shift a part of it
that changes with t.

C: channels.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from tintype.errors import UserError
from tintype.seams import Tokenizer


def for_pipeline(tokenizer: Tokenizer) -> Any:
    """Return the network in fp32. It is changed: a tokenizer that is used afterwards must be loaded again."""
    form = tokenizer.diffusers_form()
    if form is None:
        raise TypeError(f"{type(tokenizer).__name__} has no network that PRXPipeline takes")
    network, shift_C, scale_C = form.network.float(), form.shift_C, form.scale_C
    scale, shift = _one(scale_C), _one(shift_C)
    if type(network).__name__ == "AutoencoderDC":
        if scale is None or shift != 0:
            raise UserError(
                "AutoencoderDC has one scaling_factor and no shift; this run's latents have a shift, or a scale for "
                "each channel (tokenizer.shift, tokenizer.scale), and its networks begin with wide convolutions, into "
                "which a shift cannot be folded. Train with one tokenizer.scale and no tokenizer.shift"
            )
        network.register_to_config(scaling_factor=scale)
        return network
    if scale is None or shift is None:
        network = _folded(network, shift_C, scale_C)
        scale, shift = 1.0, 0.0
    network.register_to_config(scaling_factor=scale, shift_factor=shift, latents_mean=None, latents_std=None)
    return network


def _one(number_C: Tensor) -> float | None:
    """Return the number that all channels have in common; None where they differ."""
    return float(number_C[0]) if bool((number_C == number_C[0]).all()) else None


@torch.no_grad()
def _folded(network: Any, shift_C: Tensor, scale_C: Tensor) -> Any:
    """Fold the normalisation into the network: its latents become (latent - shift) · scale, in and out.

    The posterior's deviation is scaled with its mean.
    """
    mean_C, log_variance_C = scale_C, torch.ones_like(scale_C)
    out_C = torch.cat([mean_C, log_variance_C])
    added_C = torch.cat([-shift_C * scale_C, 2 * scale_C.abs().log()])
    before, after = network.quant_conv, network.post_quant_conv
    network.quant_conv = _affine_after(before, out_C.double(), added_C.double())
    network.post_quant_conv = _affine_before(after, scale_C.double().reciprocal(), shift_C.double())
    network.register_to_config(use_quant_conv=True, use_post_quant_conv=True)
    return network


def _affine_after(layer: nn.Conv2d | None, scale_C: Tensor, shift_C: Tensor) -> nn.Conv2d:
    """x -> scale · layer(x) + shift."""
    weight_CC, bias_C = _matrix(layer, len(scale_C))
    return _convolution(scale_C[:, None] * weight_CC, scale_C * bias_C + shift_C)


def _affine_before(layer: nn.Conv2d | None, scale_C: Tensor, shift_C: Tensor) -> nn.Conv2d:
    """x -> layer(scale · x + shift)."""
    weight_CC, bias_C = _matrix(layer, len(scale_C))
    return _convolution(weight_CC * scale_C[None, :], weight_CC @ shift_C + bias_C)


def _matrix(layer: nn.Conv2d | None, channels: int) -> tuple[Tensor, Tensor]:
    if layer is None:
        return torch.eye(channels, dtype=torch.float64), torch.zeros(channels, dtype=torch.float64)
    assert layer.bias is not None
    return layer.weight[:, :, 0, 0].double(), layer.bias.double()


def _convolution(weight_CC: Tensor, bias_C: Tensor) -> nn.Conv2d:
    layer = nn.Conv2d(weight_CC.shape[1], weight_CC.shape[0], 1)
    layer.weight.copy_(weight_CC[:, :, None, None])
    assert layer.bias is not None
    layer.bias.copy_(bias_C)
    return layer
