"""What all frozen image encoders share: how an identity is made, and arithmetic that nothing around it changes.

B: images. C: channels. H, W: rows, columns. L: tokens. D: their width. F: size of the feature vector.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Literal

import torch
from torch import Tensor, nn

from tintype.pretrained.preprocess import Preparation

Arithmetic = Literal["fp32", "tf32"]


@contextmanager
def frozen_arithmetic(device: torch.device, arithmetic: Arithmetic = "fp32") -> Iterator[None]:
    """No gradient, no autocast, TF32 only where asked: a feature must not depend on how training computes."""
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
    """Encodes any number of inputs, one at least, in batches of exactly that size."""
    return torch.cat([encode_filled(encode, some_BCHW, size) for some_BCHW in input_BCHW.split(size)])


def encode_filled(encode: Callable[[Tensor], Tensor], input_BCHW: Tensor, size: int) -> Tensor:
    """Encodes up to `size` inputs as a batch of exactly that size: kernels round by the batch's size."""
    filling_BCHW = input_BCHW[-1:].expand(size - len(input_BCHW), -1, -1, -1)
    return encode(torch.cat([input_BCHW, filling_BCHW]))[: len(input_BCHW)]


class FrozenEncoder:
    """A network with its preprocessing. Subclasses say how a feature is taken from it.

    `words` names the network for people. `output` says which of its outputs is the feature; with the digest of the
    weights and the preprocessing it makes the identity, so that a copy of the weights elsewhere has the same.
    """

    def __init__(
        self,
        name: str,
        network: nn.Module,
        preprocess: Preparation,
        device: torch.device,
        *,
        words: str,
        output: str,
        weights_digest: str,
        arithmetic: Arithmetic = "fp32",
    ) -> None:
        self.name = name
        self.preprocess = preprocess
        self.arithmetic = arithmetic
        self.definition = f"{output} of {words}; input {preprocess.definition}; {arithmetic}"
        content = json.dumps([weights_digest, preprocess.hash_input, output, arithmetic])
        self.identity = hashlib.sha256(content.encode()).hexdigest()
        self._device = device
        self._network: Any = network.eval().requires_grad_(False).to(device)

    def prepare(self, image_BCHW: Tensor) -> Tensor:
        return self.preprocess(image_BCHW.to(self._device))

    def encode(self, input_BCHW: Tensor) -> Tensor:
        with frozen_arithmetic(self._device, self.arithmetic):
            return self._features(input_BCHW.to(self._device)).to(torch.float32)

    def _features(self, input_BCHW: Tensor) -> Tensor:
        raise NotImplementedError
