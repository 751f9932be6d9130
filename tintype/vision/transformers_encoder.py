"""Image encoders of transformers.

The preprocessing is ours (`preprocess.py`), with the numbers of the checkpoint's own `preprocessor_config.json` where
the definition leaves them to it.

B: images. C: channels. H, W: rows, columns.
"""

from __future__ import annotations

import torch

from tintype.errors import UserError
from tintype.pretrained.frozen import FrozenEncoder, FrozenNetwork
from tintype.pretrained.hub import Checkpoint
from tintype.pretrained.packages import Untyped
from tintype.pretrained.preprocess import Preprocess
from tintype.pretrained.weights import digest


class TransformersEncoder(FrozenEncoder):
    def __init__(
        self,
        name: str,
        checkpoint: Checkpoint,
        model: Untyped,
        preprocess: Preprocess,
        output: str,
        device: torch.device,
    ) -> None:
        patch_px = vision_config(model.config).patch_size
        size_px = preprocess.sides[0]
        if size_px % patch_px:
            raise UserError(f"{checkpoint.words} has patches of {patch_px} px; size_px ({size_px}) must be a multiple")
        self._checkpoint = checkpoint
        weights = digest(model.parameters())
        network = FrozenNetwork(model, preprocess, checkpoint.words, output, weights, checkpoint.arithmetic)
        super().__init__(name, network, device)


def vision_config(config: Untyped) -> Untyped:
    """Return the config of the image tower, of a network that has several."""
    return getattr(config, "vision_config", config)
