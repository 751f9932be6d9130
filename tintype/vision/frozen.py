"""What all frozen image encoders share: how an identity is made, and arithmetic in full fp32.

B: pictures. C: channels. H, W: rows, columns. L: tokens. D: their width. F: size of the feature vector.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from tintype.seams import Encoder
from tintype.vision.preprocess import Preprocess


@contextmanager
def full_fp32(device: torch.device) -> Iterator[None]:
    """No gradient, no autocast, no TF32: a feature must not depend on how the training around it computes."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    cudnn = torch.backends.cudnn.flags(enabled=True, benchmark=False, deterministic=True, allow_tf32=False)
    try:
        with torch.no_grad(), cudnn, torch.autocast(device.type, enabled=False):
            yield
    finally:
        torch.set_float32_matmul_precision(before)


class TokenEncoder(Encoder, Protocol):
    """An encoder whose patches can be had too, for alignment."""

    def patch_tokens(self, input_BCHW: Tensor) -> tuple[Tensor, tuple[int, int]]:
        """Prepared pictures to one token per patch, row by row, as [B, L, D], and the rows and columns of patches."""


class FrozenEncoder:
    """A network with its preprocessing. Subclasses say how a feature is taken from it.

    `words` names the network for people. `output` says which of its outputs is the feature; with the digest of the
    weights and the preprocessing it makes the identity, so that a copy of the weights elsewhere has the same.
    """

    def __init__(
        self,
        name: str,
        network: nn.Module,
        preprocess: Preprocess,
        device: torch.device,
        *,
        words: str,
        output: str,
        weights_digest: str,
    ) -> None:
        self.name = name
        self.preprocess = preprocess
        self.definition = f"{output} of {words}; input {preprocess.definition}; fp32"
        content = json.dumps([weights_digest, preprocess.hash_input, output])
        self.identity = hashlib.sha256(content.encode()).hexdigest()
        self._device = device
        self._network: Any = network.eval().requires_grad_(False).to(device)

    def prepare(self, image_BCHW: Tensor) -> Tensor:
        return self.preprocess(image_BCHW.to(self._device))

    def encode(self, input_BCHW: Tensor) -> Tensor:
        with full_fp32(self._device):
            return self._features(input_BCHW.to(self._device)).to(torch.float32)

    def _features(self, input_BCHW: Tensor) -> Tensor:
        raise NotImplementedError
