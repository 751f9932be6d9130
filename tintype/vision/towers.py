"""Encoders of others, through transformers: CLIP, SigLIP, DINOv2 and DINOv3.

The preprocessing is ours (`preprocess.py`), with the numbers of the checkpoint's own `preprocessor_config.json` where
the definition leaves them to it.

B: images or texts. C: channels. H, W: rows, columns. L: tokens. D: their width. F: size of the feature vector.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any, Literal

import torch
from torch import Tensor

from tintype.errors import UserError
from tintype.pretrained.frozen import FrozenEncoder, frozen_arithmetic
from tintype.pretrained.hub import DINOV2, DINOV3, Checkpoint
from tintype.pretrained.image_processor import IMAGENET_MEAN, IMAGENET_STD
from tintype.pretrained.preprocess import Preprocess, Resampling
from tintype.pretrained.weights import digest

DinoForm = Literal["fd", "prx"]
ClipForm = Literal["processor", "cmmd"]

_TEXT_BATCH = 64
_PROBES = ("A RED ball, 3.5 m off — naïve\tcafé's", "a ball on grass " * 50)
"""Texts that show case, marks, padding and the cut."""


class _TransformersEncoder(FrozenEncoder):
    def __init__(
        self, name: str, checkpoint: Checkpoint, model: Any, preprocess: Preprocess, device: torch.device, output: str
    ) -> None:
        vision = getattr(model.config, "vision_config", model.config)
        if preprocess.size_px % vision.patch_size:
            raise UserError(
                f"{checkpoint.words} has patches of {vision.patch_size} px; size_px ({preprocess.size_px}) must be a "
                "multiple of that"
            )
        self._checkpoint = checkpoint
        weights = digest(model.parameters())
        super().__init__(
            name,
            model,
            preprocess,
            device,
            words=checkpoint.words,
            output=output,
            weights_digest=weights,
            arithmetic=checkpoint.arithmetic,
        )

    def _vision(self, input_BCHW: Tensor) -> Any:
        """The output of the image tower."""
        return self._network(pixel_values=input_BCHW)


class _TextImageEncoder(_TransformersEncoder):
    def encode_text(self, prompts: Sequence[str]) -> Tensor:
        """One row for each text, cut off at the length that the model was trained for."""
        rows = [self._texts(list(prompts[i : i + _TEXT_BATCH])) for i in range(0, len(prompts), _TEXT_BATCH)]
        return torch.cat(rows)

    @cached_property
    def text_identity(self) -> str:
        """SHA-256 over the vocabulary, the length at which texts are cut off, and what becomes of a few texts.

        A vocabulary alone does not say whether capitals are kept or on which side a text is cut.
        """
        vocabulary = sorted(self._tokenizer.get_vocab().items())
        content = json.dumps([vocabulary, self._most_tokens, self._encoded(list(_PROBES))["input_ids"].tolist()])
        return hashlib.sha256(content.encode()).hexdigest()

    @property
    def _most_tokens(self) -> int:
        return int(self._network.config.text_config.max_position_embeddings)

    def _encoded(self, prompts: list[str]) -> Any:
        return self._tokenizer(
            prompts, padding="max_length", truncation=True, max_length=self._most_tokens, return_tensors="pt"
        )

    def _texts(self, prompts: list[str]) -> Tensor:
        encoded = self._encoded(prompts).to(self._device)
        with frozen_arithmetic(self._device, self.arithmetic):
            return self._text_features(encoded["input_ids"], encoded.get("attention_mask")).to(torch.float32)

    def _text_features(self, ids_BL: Tensor, mask_BL: Tensor | None) -> Tensor:
        raise NotImplementedError

    def _vision(self, input_BCHW: Tensor) -> Any:
        return self._network.vision_model(pixel_values=input_BCHW)

    @cached_property
    def _tokenizer(self) -> Any:
        return self._checkpoint.tokenizer(self._network.config.text_config.vocab_size)


class ClipEncoder(_TextImageEncoder):
    """CLIP's projected embeddings, not normalised: a metric that needs unit vectors makes them.

    `cmmd` brings images to the input as the code of CMMD does (arXiv 2401.09603, cmmd/io_util.py).
    """

    def __init__(self, name: str, checkpoint: Checkpoint, form: ClipForm, device: torch.device) -> None:
        model = checkpoint.model({"clip": "CLIPModel"})
        how = _published(checkpoint, model.config.vision_config.image_size, "short-side")
        if form == "cmmd":
            how = replace(how, fit="crop-first", resampling=Resampling("bicubic", quantise=True), scale=1.0 / 255.0)
        super().__init__(name, checkpoint, model, how, device, "projected image embedding, not normalised,")

    def _features(self, input_BCHW: Tensor) -> Tensor:
        feature_BF: Tensor = self._network.visual_projection(self._vision(input_BCHW).pooler_output)
        return feature_BF

    def _text_features(self, ids_BL: Tensor, mask_BL: Tensor | None) -> Tensor:
        pooled_BD = self._network.text_model(input_ids=ids_BL, attention_mask=mask_BL).pooler_output
        feature_BF: Tensor = self._network.text_projection(pooled_BD)
        return feature_BF


class SiglipEncoder(_TextImageEncoder):
    """SigLIP's pooled embeddings. Its text tower was trained on padded texts without a mask."""

    def __init__(self, name: str, checkpoint: Checkpoint, device: torch.device) -> None:
        model = checkpoint.model({"siglip": "SiglipModel"})
        how = _published(checkpoint, model.config.vision_config.image_size, "squash")
        super().__init__(name, checkpoint, model, how, device, "pooled image embedding, not normalised,")

    def _features(self, input_BCHW: Tensor) -> Tensor:
        feature_BF: Tensor = self._vision(input_BCHW).pooler_output
        return feature_BF

    def _text_features(self, ids_BL: Tensor, mask_BL: Tensor | None) -> Tensor:
        feature_BF: Tensor = self._network.text_model(input_ids=ids_BL).pooler_output
        return feature_BF


class DinoEncoder(_TransformersEncoder):
    """The class token after the last norm."""

    def __init__(
        self, name: str, checkpoint: Checkpoint, model: Any, preprocess: Preprocess, device: torch.device
    ) -> None:
        super().__init__(name, checkpoint, model, preprocess, device, "class token after the last norm")

    def _features(self, input_BCHW: Tensor) -> Tensor:
        feature_BF: Tensor = self._vision(input_BCHW).last_hidden_state[:, 0]
        return feature_BF


def dinov2(name: str, checkpoint: Checkpoint, form: DinoForm, size_px: int, device: torch.device) -> DinoEncoder:
    """`fd`: dgm-eval's FD-DINOv2 (arXiv 2306.04675). `prx`: PRX's DINO-MMD, resized without antialiasing."""
    model = checkpoint.model(DINOV2)
    forms: dict[DinoForm, Resampling] = {
        "fd": Resampling("bicubic", quantise=True),
        "prx": Resampling("bicubic-0.75", antialias=False, clip=False),
    }
    how = Preprocess(size_px, forms[form], mean=IMAGENET_MEAN, std=IMAGENET_STD)
    return DinoEncoder(name, checkpoint, model, how, device)


def dinov3(name: str, checkpoint: Checkpoint, size_px: int, device: torch.device) -> DinoEncoder:
    """Squashed in floats, as the checkpoint's own processor does; its satellite models have other means."""
    model = checkpoint.model(DINOV3)
    said = checkpoint.image_processor()
    how = Preprocess(size_px, Resampling(said.resize_filter(checkpoint.words)), "squash", *said.normalisation)
    return DinoEncoder(name, checkpoint, model, how, device)


def _published(checkpoint: Checkpoint, size_px: int, fit: Literal["short-side", "squash"]) -> Preprocess:
    """The processor of transformers, which resizes images of bytes with Pillow."""
    said = checkpoint.image_processor()
    if other := said.other_sides(size_px):
        raise UserError(f"{checkpoint.words}: its preprocessor asks for {other} px, its network for {size_px} px")
    resampling = Resampling(said.resize_filter(checkpoint.words), quantise=True)
    return Preprocess(size_px, resampling, fit, *said.normalisation)
