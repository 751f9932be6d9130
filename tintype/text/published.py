"""The kinds of frozen text encoders, and how the tower that reads texts is taken out of each one's checkpoint."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from tintype.errors import UserError
from tintype.pretrained.frozen import Compute
from tintype.pretrained.packages import Untyped
from tintype.pretrained.settings import Revision, Source
from tintype.text.frozen import POOLERS, FrozenTextPart

_T5GEMMA = {"t5gemma": "T5GemmaEncoderModel"}
_T5GEMMA_TOWER = {"t5_gemma_module": "models.t5gemma.modeling_t5gemma.T5GemmaEncoder"}
_T5 = {"t5": "T5EncoderModel", "mt5": "MT5EncoderModel", "umt5": "UMT5EncoderModel"}
_QWEN3_VL = {"qwen3_vl": "Qwen3VLModel", "qwen3_vl_text": "Qwen3VLTextModel"}
_CLIP = {"clip": "CLIPModel", "clip_text_model": "CLIPTextModel"}
_MINILM = {"bert": "BertModel"}


class T5GemmaSettings(FrozenTextPart):
    """The encoder of T5Gemma, which PRX reads captions with. Its decoder is not loaded."""

    model_types: ClassVar[frozenset[str]] = frozenset(_T5GEMMA.keys() | _T5GEMMA_TOWER.keys())

    kind: Literal["t5gemma"] = "t5gemma"
    weights: Source = "google/t5gemma-2b-2b-ul2"
    compute: Compute = "bf16"

    def network(self) -> Untyped:
        """Load the encoder. A config holds one for the encoder and one for the decoder; an encoder saved by itself may
        have either.

        Its attention caps scores softly, which only the plain implementation does in all versions of transformers.
        """
        config = self.checkpoint.config()
        how: dict[str, Untyped] = {"dtype": self.dtype, "attn_implementation": "eager"}
        if config.model_type in _T5GEMMA and "T5GemmaEncoder" in (config.architectures or ()):
            config = config.encoder
        if config.model_type in _T5GEMMA_TOWER:
            return self.checkpoint.model(_T5GEMMA_TOWER, config=config, **how)
        config.is_encoder_decoder = False
        return self.checkpoint.model(_T5GEMMA, config=config, **how).encoder


class T5Settings(FrozenTextPart):
    """The encoder of T5, mT5 or UMT5."""

    model_types: ClassVar[frozenset[str]] = frozenset(_T5)

    kind: Literal["t5"] = "t5"
    weights: Source = "google/flan-t5-large"
    revision: Revision = "0613663d0d48ea86ba8cb3d7a44f0f65dc596a2a"
    compute: Compute = "bf16"

    def network(self) -> Untyped:
        return self.checkpoint.model(_T5, dtype=self.dtype)


class Qwen3VlSettings(FrozenTextPart):
    """The language tower of Qwen3-VL, without its head; the tower that reads images is released."""

    model_types: ClassVar[frozenset[str]] = frozenset(_QWEN3_VL)

    kind: Literal["qwen3-vl"] = "qwen3-vl"
    weights: Source = "Qwen/Qwen3-VL-2B-Instruct"
    revision: Revision = "89644892e4d85e24eaac8bacfd4f463576704203"
    compute: Compute = "bf16"

    def network(self) -> Untyped:
        model = self.checkpoint.model(_QWEN3_VL, dtype=self.dtype)
        return model if model.config.model_type == "qwen3_vl_text" else model.language_model


class ClipSettings(FrozenTextPart):
    """The text tower of CLIP: all its tokens, not the pooled one. Stable Diffusion 2 and XL take skip_layers 1."""

    model_types: ClassVar[frozenset[str]] = frozenset(_CLIP)

    kind: Literal["clip"] = "clip"
    weights: Source = "openai/clip-vit-large-patch14"
    revision: Revision = "32bd64288804d66eefd0ccbe215aa642df71cc41"
    max_tokens: int = Field(77, ge=2, description="CLIP has positions for 77")

    def network(self) -> Untyped:
        model = self.checkpoint.model(_CLIP, dtype=self.dtype)
        return model if model.config.model_type == "clip_text_model" else model.text_model


class MiniLmSettings(FrozenTextPart):
    """A small BERT that was trained to compare sentences."""

    kind: Literal["minilm"] = "minilm"
    weights: Source = "sentence-transformers/all-MiniLM-L6-v2"
    revision: Revision = "c9745ed1d9f207416be6d2e6f8de32d1f16199bf"

    def network(self) -> Untyped:
        return self.checkpoint.model(_MINILM, unused=POOLERS, dtype=self.dtype)


class TransformersSettings(FrozenTextPart):
    """Any model of transformers that reads texts; of an encoder-decoder the encoder."""

    kind: Literal["transformers"] = "transformers"

    def network(self) -> Untyped:
        model = self.checkpoint.model(unused=POOLERS, dtype=self.dtype)
        tower = model.get_encoder() if model.config.is_encoder_decoder else model
        if tower is None or not callable(getattr(tower, "get_input_embeddings", None)):
            raise UserError(
                f"{self.checkpoint.words}: transformers finds no encoder of texts in it; name another model"
            )
        return tower
