"""The reconstruction metrics PSNR, SSIM and LPIPS of pairs of images.

B: images of a batch, N: all images, C: channels, H, W: rows and columns.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from tintype.errors import UserError
from tintype.metrics.copies import without_others
from tintype.metrics.metric import NOT_NEGATIVE, Measured, Metric
from tintype.metrics.resample import mean_with_error
from tintype.vision.lpips import lpips

_RANGE = 255.0
_WINDOW = 11
_SIGMA = 1.5
_C1, _C2 = (0.01 * _RANGE) ** 2, (0.03 * _RANGE) ** 2


def psnr(image_BCHW: Tensor, other_BCHW: Tensor) -> Tensor:
    """Return the PSNR of each pair in dB, as float64 [B]."""
    first, second = _checked(image_BCHW, other_BCHW)
    return 10 * torch.log10(_RANGE**2 / (first - second).square().mean((1, 2, 3)))


def ssim(image_BCHW: Tensor, other_BCHW: Tensor) -> Tensor:
    """Return the SSIM of each pair, as float64 [B]."""
    x, y = _checked(image_BCHW, other_BCHW)
    if min(x.shape[2:]) < _WINDOW:
        raise UserError(f"SSIM needs images of {_WINDOW} px or more on each side; these are {tuple(x.shape[2:])}")
    mean_x, mean_y = _windowed(x), _windowed(y)
    var_x, var_y = _windowed(x * x) - mean_x**2, _windowed(y * y) - mean_y**2
    cov = _windowed(x * y) - mean_x * mean_y
    light = (2 * mean_x * mean_y + _C1) / (mean_x**2 + mean_y**2 + _C1)
    structure = (2 * cov + _C2) / (var_x + var_y + _C2)
    return (light * structure).mean((1, 2, 3))


def _windowed(x_BCHW: Tensor) -> Tensor:
    """Return the Gaussian-weighted mean around each pixel whose window is inside the image."""
    offset = torch.arange(_WINDOW, dtype=x_BCHW.dtype, device=x_BCHW.device) - _WINDOW // 2
    weight = torch.exp(-offset.square() / (2 * _SIGMA**2))
    weight = weight / weight.sum()
    rows, columns = x_BCHW.shape[2:]
    x = x_BCHW.reshape(-1, 1, rows, columns)
    x = F.conv2d(F.conv2d(x, weight.view(1, 1, 1, -1)), weight.view(1, 1, -1, 1))
    return x.view(*x_BCHW.shape[:2], *x.shape[2:])


def _checked(image_BCHW: Tensor, other_BCHW: Tensor) -> tuple[Tensor, Tensor]:
    if image_BCHW.shape != other_BCHW.shape or image_BCHW.ndim != 4:
        raise UserError(f"images of shapes {tuple(image_BCHW.shape)} and {tuple(other_BCHW.shape)} cannot be compared")
    if image_BCHW.dtype != torch.uint8 or other_BCHW.dtype != torch.uint8:
        raise UserError(f"images must be uint8, not {image_BCHW.dtype} and {other_BCHW.dtype}")
    return image_BCHW.double(), other_BCHW.double()


@dataclass(frozen=True)
class PairValues:
    """One value for each pair of images. `copy_N` numbers equal pairs by their content; None if all pairs differ."""

    value_N: Tensor
    copy_N: Tensor | None = None


def _mean(values: PairValues) -> Measured:
    return mean_with_error(values.value_N, values.copy_N)


def _mean_psnr(values: PairValues) -> Measured:
    """Average the PSNR, except of equal pairs, whose PSNR is infinite. Warn about the number of equal pairs."""
    finite_N = values.value_N.isfinite()
    exact, count = int((~finite_N).sum()), len(finite_N)
    if exact == count:
        return Measured(math.inf, warnings=("every pair is exact",))
    one = mean_with_error(values.value_N[finite_N], without_others(values.copy_N, finite_N))
    note = f"{exact} of {count} pairs are identical and are left out of the mean"
    return replace(one, warnings=(note,)) if exact else one


@dataclass(frozen=True, kw_only=True)
class PairMetric(Metric[PairValues]):
    """A metric of image pairs. `compare` returns the values of a batch. `measure` summarises all values."""

    compare: Callable[[Tensor, Tensor, torch.device], Tensor]


def pair_name(metric: PairMetric) -> str:
    """Return the metric's name with its unit, for example psnr_db."""
    return f"{metric.name}_{metric.unit.lower()}" if metric.unit else metric.name


PSNR = PairMetric(
    name="psnr",
    label="PSNR",
    direction="higher",
    definition="10 log10(255² / mean squared error) in dB over all pixels and channels of an image of 8 bits, then the "
    "mean over images; infinite for an image that came back exactly",
    compare=lambda image_BCHW, other_BCHW, device: psnr(image_BCHW, other_BCHW),
    measure=_mean_psnr,
    unit="dB",
    decimals=2,
)
SSIM = PairMetric(
    name="ssim",
    label="SSIM",
    direction="higher",
    definition="structural similarity (Wang et al. 2004) of images of 8 bits: Gaussian window of 11 × 11 pixels with "
    "σ = 1.5, K1 = 0.01, K2 = 0.03, range 255, at the places where the window lies inside the image, for each colour "
    "channel alone, then the mean over places, channels and images",
    compare=lambda image_BCHW, other_BCHW, device: ssim(image_BCHW, other_BCHW),
    measure=_mean,
    decimals=4,
)
LPIPS = PairMetric(
    name="lpips",
    label="LPIPS (VGG)",
    direction="lower",
    definition="LPIPS 0.1 with VGG16 at the images' own size, then the mean over images",
    compare=lambda image_BCHW, other_BCHW, device: lpips(image_BCHW, other_BCHW, device).cpu(),
    measure=_mean,
    range=NOT_NEGATIVE,
    decimals=4,
)
