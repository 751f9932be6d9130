"""`clip` and `siglip` are encoders that map images and texts to the same space.

Tensor dimensions are B (images or texts), C (channels), H (rows), W (columns), L (tokens), D (width of a token) and F
(size of the feature vector).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from tintype.errors import UserError
from tintype.pretrained.frozen import frozen_arithmetic
from tintype.pretrained.hub import Checkpoint
from tintype.pretrained.packages import Untyped
from tintype.pretrained.preprocess import Preprocess, Resampling
from tintype.pretrained.published import Outline, outline_of
from tintype.pretrained.settings import Source
from tintype.seams import Encoder, TextImageEncoder
from tintype.vision.part import HubEncoderPart, TransformersEncoder

_TEXT_BATCH = 64
_CLIP_PX, _SIGLIP_PX = 336, 384
"""Input sizes of the published networks."""
_PROBES = ("A RED ball, 3.5 m off — naïve\tcafé's", "a ball on grass " * 50)
"""Test texts that reveal the handling of case, accents, padding and truncation."""
_OUTPUT = "{} image embedding, not normalised,"


class ClipSettings(HubEncoderPart):
    """Settings of CLIP's projected embeddings of images and texts. The default network is the network of the metric
    CMMD.

    The forms of preprocessing differ on images that are not square. `cmmd` is the preprocessing of the CMMD paper and
    of its PyTorch port (arXiv 2401.09603, cmmd/io_util.py). `processor` is the checkpoint's own preprocessing, with
    which PRX measures CMMD.
    """

    reads_text: ClassVar[bool] = True

    kind: Literal["clip"] = "clip"
    source: Source = "openai/clip-vit-large-patch14-336"
    form: Literal["processor", "cmmd"] = Field(
        "processor",
        description="Preprocessing (processor resizes the short side, then crops; cmmd crops the centre, then resizes)",
    )

    @property
    def published(self) -> dict[str, str]:
        if Path(self.source).name != "clip-vit-large-patch14-336":
            return {}
        return {"mmd_published": {"cmmd": "CMMD", "processor": "CMMD (processor's crop)"}[self.form]}

    def _make(self, device: torch.device) -> Encoder:
        checkpoint = self._checkpoint(self.source)
        model = checkpoint.model({"clip": "CLIPModel"})
        how = _stated_preprocess(checkpoint, model.config.vision_config.image_size, "short-side")
        if self.form == "cmmd":
            how = replace(how, fit="crop-first", resampling=Resampling("bicubic", quantise=True), scale=1.0 / 255.0)
        return _ClipEncoder(self.title, checkpoint, model, how, _OUTPUT.format("projected"), device)

    def outline(self) -> Outline | None:
        return outline_of(self.source, (_CLIP_PX, _CLIP_PX), self.number_bytes, features=768)


class SiglipSettings(HubEncoderPart):
    """Settings of SigLIP's embeddings of images and texts."""

    reads_text: ClassVar[bool] = True

    kind: Literal["siglip"] = "siglip"
    source: Source = "google/siglip-so400m-patch14-384"

    def _make(self, device: torch.device) -> Encoder:
        checkpoint = self._checkpoint(self.source)
        model = checkpoint.model({"siglip": "SiglipModel"})
        how = _stated_preprocess(checkpoint, model.config.vision_config.image_size, "squash")
        return _TextImageEncoder(self.title, checkpoint, model, how, _OUTPUT.format("pooled"), device)

    def outline(self) -> Outline | None:
        return outline_of(self.source, (_SIGLIP_PX, _SIGLIP_PX), self.number_bytes, features=1152)


class _TextImageEncoder(TransformersEncoder):
    """Encoder with SigLIP's pooled outputs. As in its training, texts are padded, without an attention mask."""

    def encode_text(self, prompts: Sequence[str]) -> Tensor:
        """Return one embedding per text. Texts are truncated to the text length of the model's training."""
        rows = [self._texts(list(prompts[i : i + _TEXT_BATCH])) for i in range(0, len(prompts), _TEXT_BATCH)]
        return torch.cat(rows)

    @cached_property
    def text_identity(self) -> str:
        """Return the SHA-256 over the tokenizer's vocabulary, the truncation length, and the tokens of a few texts.

        The vocabulary alone does not tell whether capitals are kept, or on which side texts are truncated.
        """
        vocabulary = sorted(self._tokenizer.get_vocab().items())
        content = json.dumps([vocabulary, self._max_tokens, self._encoded(list(_PROBES))["input_ids"].tolist()])
        return hashlib.sha256(content.encode()).hexdigest()

    @property
    def _max_tokens(self) -> int:
        return int(self._network.config.text_config.max_position_embeddings)

    def _encoded(self, prompts: list[str]) -> Untyped:
        return self._tokenizer(
            prompts, padding="max_length", truncation=True, max_length=self._max_tokens, return_tensors="pt"
        )

    def _texts(self, prompts: list[str]) -> Tensor:
        encoded = self._encoded(prompts).to(self._device)
        with frozen_arithmetic(self._device, self.arithmetic):
            return self._text_features(encoded["input_ids"], encoded.get("attention_mask")).to(torch.float32)

    def _image_network(self) -> nn.Module:
        module: nn.Module = self._network.vision_model
        return module

    def _text_features(self, ids_BL: Tensor, mask_BL: Tensor | None) -> Tensor:
        feature_BF: Tensor = self._network.text_model(input_ids=ids_BL).pooler_output
        return feature_BF

    def _features(self, input_BCHW: Tensor) -> Tensor:
        feature_BF: Tensor = self._network.vision_model(pixel_values=input_BCHW).pooler_output
        return feature_BF

    @cached_property
    def _tokenizer(self) -> Untyped:
        return self._checkpoint.tokenizer(self._network.config.text_config.vocab_size)


_IS_ENCODER: type[TextImageEncoder] = _TextImageEncoder  # checked by mypy


class _ClipEncoder(_TextImageEncoder):
    """Encoder with the projected outputs of CLIP's image and text towers. Texts have an attention mask.

    Embeddings are not normalised. A metric that needs vectors of unit length normalises them itself.
    """

    def _features(self, input_BCHW: Tensor) -> Tensor:
        feature_BF: Tensor = self._network.visual_projection(super()._features(input_BCHW))
        return feature_BF

    def _text_features(self, ids_BL: Tensor, mask_BL: Tensor | None) -> Tensor:
        pooled_BD = self._network.text_model(input_ids=ids_BL, attention_mask=mask_BL).pooler_output
        feature_BF: Tensor = self._network.text_projection(pooled_BD)
        return feature_BF


def _stated_preprocess(checkpoint: Checkpoint, size_px: int, fit: Literal["short-side", "squash"]) -> Preprocess:
    """Return the preprocessing of the checkpoint's own processor, which resizes uint8 images with Pillow."""
    said = checkpoint.image_processor()
    if other := said.other_sides(size_px):
        raise UserError(
            f"{checkpoint.words}: the preprocessor gives images of {other} px, but the network needs {size_px} px"
        )
    resampling = Resampling(said.resize_filter(checkpoint.words), quantise=True)
    return Preprocess(size_px, resampling, fit, *said.normalisation)
