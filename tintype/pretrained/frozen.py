"""The identity of frozen image encoders, and arithmetic that does not depend on the settings of the training.

B: images. C: channels. H, W: rows, columns. L: tokens. D: token width. F: size of the feature vector.
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
    """Disable gradients, autocast and, unless requested, TF32: features must not depend on training's settings."""
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
    """Encode one or more inputs, in batches of exactly `size` inputs."""
    return torch.cat([encode_filled(encode, some_BCHW, size) for some_BCHW in input_BCHW.split(size)])


def encode_filled(encode: Callable[[Tensor], Tensor], input_BCHW: Tensor, size: int) -> Tensor:
    """Encode at most `size` inputs as a batch of exactly `size` inputs, since rounding depends on the batch size."""
    filling_BCHW = input_BCHW[-1:].expand(size - len(input_BCHW), -1, -1, -1)
    return encode(torch.cat([input_BCHW, filling_BCHW]))[: len(input_BCHW)]


@dataclass(frozen=True)
class FrozenNetwork:
    """A network, the preprocessing of its input, and the choice of the output that is the feature.

    All fields but the readable name `words` are the identity, so copies of weights have the same identity.
    """

    module: nn.Module
    preprocess: Preparation
    words: str
    output: str
    weights_digest: str
    arithmetic: Compute = "fp32"
    compile: bool = False
    """Whether torch.compile compiles the network. Each input shape then gets its own graph."""


_MOST_SHAPES = 64
"""Maximum number of compiled shapes of a network, of the data, of stages and of an incomplete last batch."""


def compile_network(module: nn.Module) -> None:
    """Compile a network in place, once. Each input shape gets its own graph."""
    torch._dynamo.config.recompile_limit = max(torch._dynamo.config.recompile_limit, _MOST_SHAPES)
    if module._compiled_call_impl is None:
        module.compile(dynamic=False)


class FrozenEncoder:
    """A frozen network as a source of features. A subclass extracts the feature if the network returns something else.

    With bf16, weights and activations are bf16, as in PRX's teachers. Features are always float32.
    """

    def __init__(self, name: str, network: FrozenNetwork, device: torch.device) -> None:
        self.name = name
        self.preprocess, self.arithmetic = network.preprocess, network.arithmetic
        how = [self.arithmetic, *(["compiled"] if network.compile else [])]
        self.definition = f"{network.output} of {network.words}; input {self.preprocess.definition}; {', '.join(how)}"
        content = [network.weights_digest, self.preprocess.hash_input, network.output, *how]
        self.identity = hashlib.sha256(json.dumps(content).encode()).hexdigest()
        self._device = device
        self._dtype = torch.bfloat16 if self.arithmetic == "bf16" else torch.float32
        self._network: Untyped = network.module.eval().requires_grad_(False).to(device, self._dtype)
        if network.compile:
            compile_network(self._image_network())

    def _image_network(self) -> nn.Module:
        """Return the network that processes images. A subclass may have several networks."""
        module: nn.Module = self._network
        return module

    def prepare(self, image_BCHW: Tensor) -> Tensor:
        return self.preprocess(image_BCHW.to(self._device))

    def encode(self, input_BCHW: Tensor) -> Tensor:
        with frozen_arithmetic(self._device, self.arithmetic):
            return self._features(input_BCHW.to(self._device, self._dtype)).to(torch.float32)

    def _features(self, input_BCHW: Tensor) -> Tensor:
        feature_BF: Tensor = self._network(input_BCHW)
        return feature_BF
