"""Frozen image encoders: how an identity is made, and arithmetic that nothing around it changes.

B: images. C: channels. H, W: rows, columns. L: tokens. D: their width. F: size of the feature vector.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from tintype.pretrained.packages import Untyped
from tintype.pretrained.preprocess import Preparation

Arithmetic = Literal["fp32", "tf32"]
Compute = Literal[Arithmetic, "bf16"]


@contextmanager
def frozen_arithmetic(device: torch.device, arithmetic: Compute = "fp32") -> Iterator[None]:
    """Switch gradients and autocast off, TF32 too unless asked for: features do not depend on how training computes."""
    before = torch.get_float32_matmul_precision()
    fast = arithmetic == "tf32"
    torch.set_float32_matmul_precision("high" if fast else "highest")
    cudnn = torch.backends.cudnn.flags(enabled=True, benchmark=False, deterministic=True, allow_tf32=fast)
    try:
        with torch.no_grad(), cudnn, torch.autocast(device.type, enabled=False):
            yield
    finally:
        torch.set_float32_matmul_precision(before)


def encode_evenly(encode: Callable[[Tensor], Tensor], input_BCHW: Tensor, size: int) -> Tensor:
    """Encode any number of inputs, one at least, in batches of exactly that size."""
    return torch.cat([encode_filled(encode, some_BCHW, size) for some_BCHW in input_BCHW.split(size)])


def encode_filled(encode: Callable[[Tensor], Tensor], input_BCHW: Tensor, size: int) -> Tensor:
    """Encode up to `size` inputs as a batch of exactly that size: kernels round by the batch's size."""
    filling_BCHW = input_BCHW[-1:].expand(size - len(input_BCHW), -1, -1, -1)
    return encode(torch.cat([input_BCHW, filling_BCHW]))[: len(input_BCHW)]


@dataclass(frozen=True)
class FrozenNetwork:
    """A network, how images are brought to its input, and which of its outputs is the feature.

    `words` names it for people. All else makes the identity, so that a copy of the weights elsewhere has the same.
    """

    module: nn.Module
    preprocess: Preparation
    words: str
    output: str
    weights_digest: str
    arithmetic: Arithmetic = "fp32"


class FrozenEncoder:
    """A frozen network as a source of features. Subclasses say how a feature is taken from one that returns others."""

    def __init__(self, name: str, network: FrozenNetwork, device: torch.device) -> None:
        self.name = name
        self.preprocess, self.arithmetic = network.preprocess, network.arithmetic
        self.definition = f"{network.output} of {network.words}; input {self.preprocess.definition}; {self.arithmetic}"
        content = [network.weights_digest, self.preprocess.hash_input, network.output, self.arithmetic]
        self.identity = hashlib.sha256(json.dumps(content).encode()).hexdigest()
        self._device = device
        self._network: Untyped = network.module.eval().requires_grad_(False).to(device)

    def prepare(self, image_BCHW: Tensor) -> Tensor:
        return self.preprocess(image_BCHW.to(self._device))

    def encode(self, input_BCHW: Tensor) -> Tensor:
        with frozen_arithmetic(self._device, self.arithmetic):
            return self._features(input_BCHW.to(self._device)).to(torch.float32)

    def _features(self, input_BCHW: Tensor) -> Tensor:
        feature_BF: Tensor = self._network(input_BCHW)
        return feature_BF
