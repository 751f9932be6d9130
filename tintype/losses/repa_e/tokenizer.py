"""A tokenizer whose autoencoder is trained with the denoiser, followed by a batch norm of its latents.

As in REPA-E (arXiv 2504.10483), the norm has no affine parameters and uses the batches of all ranks. The norm's running
statistics are part of the model. Differs: the inverse of the norm divides by 1 / √(variance + eps). The authors' code
omits eps in the inverse.

B: images. C: channels. H, W: rows, columns. R: ranks.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

import torch
from torch import Tensor, nn

from tintype.pretrained.frozen import frozen_arithmetic
from tintype.pretrained.weights import digest
from tintype.runtime.dist import World
from tintype.seams import DiffusersForm, Draws
from tintype.tokenizers.latent import checked_size, images_at_a_time
from tintype.tokenizers.part import Autoencoder, Compression, Posterior, Statistics, to_bytes, to_floats

_LEAST_STD = 1e-3
"""Smallest standard deviation of a latent before the norm. A channel that varies less carries no information."""


class LatentNorm(nn.Module):
    """torch's batch norm without affine parameters.

    The norm divides by the root of the biased variance, but its running variance is unbiased. Statistics are summed in
    float64 over the batches of all ranks, and have no gradient.
    """

    running_mean: Tensor
    running_var: Tensor

    def __init__(self, channels: int, momentum: float, eps: float) -> None:
        super().__init__()
        self.momentum, self.eps = momentum, eps
        self.register_buffer("running_mean", torch.zeros(channels))
        self.register_buffer("running_var", torch.ones(channels))

    @property
    def statistics(self) -> Statistics:
        mean_C, std_C = self.running_mean.double(), (self.running_var.double() + self.eps).sqrt()
        return Statistics(tuple(mean_C.tolist()), tuple(std_C.tolist()))

    def by_running(self, raw_BCHW: Tensor) -> Tensor:
        """Normalise by the running statistics, without updating them."""
        return self._normalised(raw_BCHW, self.running_mean, self.running_var)

    @torch.no_grad()
    def by_batch(self, raw_BCHW: Tensor, world: World) -> Tensor:
        """Normalise by the batch's statistics, and update the running statistics."""
        mean_C, var_C = self.batch_statistics(raw_BCHW, world)
        count = world.size * raw_BCHW.numel() // raw_BCHW.shape[1]
        self.running_mean.lerp_(mean_C.float(), self.momentum)
        self.running_var.lerp_((var_C * (count / max(1, count - 1))).float(), self.momentum)
        return self._normalised(raw_BCHW, mean_C.float(), var_C.float())

    @torch.no_grad()
    def batch_statistics(self, raw_BCHW: Tensor, world: World) -> tuple[Tensor, Tensor]:
        """Return each channel's mean and biased variance over the equal batches of all ranks, in float64."""
        wide_BCHW = raw_BCHW.double()
        var_C, mean_C = torch.var_mean(wide_BCHW, dim=(0, 2, 3), correction=0)
        mean_RC, var_RC = world.all_gather_tensor(torch.stack([mean_C, var_C])[None]).unbind(1)
        mean_C = mean_RC.mean(0)
        return mean_C, (var_RC + (mean_RC - mean_C).square()).mean(0)

    def undo(self, z_BCHW: Tensor) -> Tensor:
        return z_BCHW * (self.running_var + self.eps).sqrt()[:, None, None] + self.running_mean[:, None, None]

    @torch.no_grad()
    def restore(self, before: tuple[Tensor, Tensor], where: Tensor) -> None:
        """Restore the statistics `before` if the scalar `where` is 1, without making the host wait for the device."""
        for now, then in zip((self.running_mean, self.running_var), before, strict=True):
            now.copy_(torch.where(where > 0, then, now))

    def statistics_copy(self) -> tuple[Tensor, Tensor]:
        return self.running_mean.clone(), self.running_var.clone()

    def _normalised(self, raw_BCHW: Tensor, mean_C: Tensor, var_C: Tensor) -> Tensor:
        return (raw_BCHW - mean_C[:, None, None]) * (var_C + self.eps).rsqrt()[:, None, None]


class TunedTokenizer(nn.Module):
    """A trained tokenizer outside of training.

    The tokenizer encodes to the posterior's mean, normalised by the running statistics. `identity` is the identity of
    the weights with which the tuning began.
    """

    arithmetic = "fp32, mean of the posterior"

    def __init__(
        self,
        network: Autoencoder,
        compression: Compression,
        *,
        momentum: float,
        eps: float,
        compute: Literal["fp32", "bf16"] = "fp32",
    ) -> None:
        super().__init__()
        self.channels, self.stride_px = compression.channels, compression.stride_px
        self.moment_channels = self.channels
        self.network = network
        self.norm = LatentNorm(compression.channels, momentum, eps)
        self.compute = compute
        self.identity = digest(list(self.state_dict().values()))
        self.eval().requires_grad_(True)

    @property
    def device(self) -> torch.device:
        return self.norm.running_mean.device

    @contextmanager
    def computing(self) -> Iterator[None]:
        """Compute as in training, in the plan's fp32 or bf16 and with deterministic backward passes.

        With bf16, convolutions that stay in fp32 (such as those of LPIPS) may be rounded to TF32, which has more bits
        than bf16.
        """
        narrow = self.compute == "bf16"
        flags = torch.backends.cudnn.flags(enabled=True, benchmark=False, deterministic=True, allow_tf32=narrow)
        with flags, torch.autocast(self.device.type, torch.bfloat16, enabled=narrow):
            yield

    def sampled(self, posterior: Posterior, draws: Draws) -> Tensor:
        return posterior.sample(draws.normal("posterior", tuple(posterior.mean_BCHW.shape[1:])))

    def encode(self, image_BCHW: Tensor, draws: Draws | None = None) -> Tensor:
        """Encode to the posterior's mean, without random draws."""
        return self.moments(image_BCHW)

    def moments(self, image_BCHW: Tensor) -> Tensor:
        at_a_time = images_at_a_time(*checked_size(image_BCHW, self.stride_px))
        with frozen_arithmetic(self.device):
            chunks = image_BCHW.to(self.device).split(at_a_time)
            means = [self.network.posterior(to_floats(some)).mean_BCHW for some in chunks]
            return self.norm.by_running(torch.cat(means)).contiguous()

    def drawn(self, moment_BCHW: Tensor, draws: Draws | None = None) -> Tensor:
        return moment_BCHW

    def decode(self, z_BCHW: Tensor) -> Tensor:
        return to_bytes(self.decode_float(z_BCHW)).contiguous()

    def decode_float(self, z_BCHW: Tensor) -> Tensor:
        """Return the decoded image before it is rounded to bytes. The image's values are approximately in [-1, 1]."""
        height, width = (side * self.stride_px for side in z_BCHW.shape[2:])
        with frozen_arithmetic(self.device):
            raw_BCHW = self.norm.undo(z_BCHW.float())
            return torch.cat(
                [self.network.decode_raw(some) for some in raw_BCHW.split(images_at_a_time(height, width))]
            )

    def diffusers_form(self) -> DiffusersForm | None:
        network, norm = self.network.diffusers_network, self.norm
        if network is None:
            return None
        return DiffusersForm(network, norm.running_mean, (norm.running_var + norm.eps).rsqrt())

    def check_latents(self, mean_C: Tensor, std_C: Tensor) -> str | None:
        """Return an error message if the latents hardly vary, otherwise None.

        No other check is needed, since the norm gives all other latents mean 0 and standard deviation 1.
        """
        if bool(mean_C.isfinite().all()) and float(std_C.max()) >= _LEAST_STD:
            return None
        return "the latents are not finite, or do not differ from image to image; tune another autoencoder"
