"""How close images are to those that they were made from: PSNR and SSIM, one value for each image.

B: images, C: channels, H, W: rows and columns.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from tintype.errors import UserError

PSNR_DEFINITION = (
    "10 log10(255² / mean squared error) in dB over all pixels and channels of an image of 8 bits, then the mean over "
    "images; infinite for an image that came back exactly"
)
SSIM_DEFINITION = (
    "structural similarity (Wang et al. 2004) of images of 8 bits: Gaussian window of 11 × 11 pixels with σ = 1.5, "
    "K1 = 0.01, K2 = 0.03, range 255, at the places where the window lies inside the image, for each colour channel "
    "alone, then the mean over places, channels and images"
)
_RANGE = 255.0
_WINDOW = 11
_SIGMA = 1.5
_C1, _C2 = (0.01 * _RANGE) ** 2, (0.03 * _RANGE) ** 2


def psnr(image_BCHW: Tensor, other_BCHW: Tensor) -> Tensor:
    """float64 [B], in dB."""
    first, second = _checked(image_BCHW, other_BCHW)
    return 10 * torch.log10(_RANGE**2 / (first - second).square().mean((1, 2, 3)))


def ssim(image_BCHW: Tensor, other_BCHW: Tensor) -> Tensor:
    """float64 [B]."""
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
    """Gaussian mean about each pixel whose window lies inside; along rows, then along columns."""
    place = torch.arange(_WINDOW, dtype=x_BCHW.dtype, device=x_BCHW.device) - _WINDOW // 2
    weight = torch.exp(-place.square() / (2 * _SIGMA**2))
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
