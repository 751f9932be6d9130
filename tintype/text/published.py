"""Define the kinds of frozen text encoders, and how the text tower is extracted from each checkpoint."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Literal

from pydantic import Field

from tintype.errors import UserError
from tintype.pretrained.frozen import Compute
from tintype.pretrained.packages import Untyped
from tintype.pretrained.settings import Revision, Source
from tintype.text.cleaning import Cleaning
from tintype.text.frozen import POOLERS, FrozenTextPart

_T5GEMMA = "t5gemma"
_T5GEMMA_TOWER = "t5_gemma_module"


class T5GemmaSettings(FrozenTextPart):
    """Settings of the encoder of T5Gemma, which PRX uses for captions. T5Gemma's decoder is not loaded."""

    model_types: ClassVar[Mapping[str, str]] = {
        _T5GEMMA: "T5GemmaEncoderModel",
        _T5GEMMA_TOWER: "models.t5gemma.modeling_t5gemma.T5GemmaEncoder",
    }

    kind: Literal["t5gemma"] = "t5gemma"
    weights: Source = "google/t5gemma-2b-2b-ul2"
    compute: Compute = Field("bf16", description="Compute type of the network")

    def network(self) -> Untyped:
        """Load the encoder.

        A config has configs of encoder and decoder, or only the encoder's values if the encoder was saved alone. Only
        the `eager` implementation computes the soft cap by which the attention limits its scores.
        """
        config = self.checkpoint.config()
        if config.model_type == _T5GEMMA and "T5GemmaEncoder" in (config.architectures or ()):
            config = config.encoder
        if config.model_type == _T5GEMMA:
            config.is_encoder_decoder = False
        how = {"dtype": self.dtype, "attn_implementation": "eager", "config": config}
        model = self.checkpoint.model(self.model_types, **how)
        return model.encoder if config.model_type == _T5GEMMA else model


class T5Settings(FrozenTextPart):
    """Settings of the encoder of T5, mT5 or UMT5."""

    model_types: ClassVar[Mapping[str, str]] = {
        "t5": "T5EncoderModel",
        "mt5": "MT5EncoderModel",
        "umt5": "UMT5EncoderModel",
    }

    kind: Literal["t5"] = "t5"
    weights: Source = "google/flan-t5-large"
    revision: Revision = "0613663d0d48ea86ba8cb3d7a44f0f65dc596a2a"
    compute: Compute = Field("bf16", description="Compute type of the network")


class Qwen3VlSettings(FrozenTextPart):
    """Settings of the language tower of Qwen3-VL, without its head. The image tower is not used."""

    model_types: ClassVar[Mapping[str, str]] = {"qwen3_vl": "Qwen3VLModel", "qwen3_vl_text": "Qwen3VLTextModel"}
    towers: ClassVar[Mapping[str, str]] = {"qwen3_vl": "language_model"}

    kind: Literal["qwen3-vl"] = "qwen3-vl"
    weights: Source = "Qwen/Qwen3-VL-2B-Instruct"
    revision: Revision = "89644892e4d85e24eaac8bacfd4f463576704203"
    compute: Compute = Field("bf16", description="Compute type of the network")


class Qwen3VlEmbeddingSettings(Qwen3VlSettings):
    """Settings of Qwen3-VL trained for embeddings, used as in PRX, with all token states and without an instruction
    around a caption.

    PRX's config calls the model's attention bidirectional. But PRX loads the class of transformers, whose attention is
    causal, and so does this encoder.
    """

    kind: Literal["qwen3-vl-embedding"] = "qwen3-vl-embedding"  # type: ignore[assignment]
    weights: Source = "Qwen/Qwen3-VL-Embedding-2B"
    revision: Revision = None
    clean: Cleaning = Field("prx-pixel", description="How captions are cleaned; PRX uses prx-pixel for this encoder")


class ClipSettings(FrozenTextPart):
    """Settings of the text tower of CLIP, which returns the states of all tokens instead of the pooled state.

    Stable Diffusion 2 and XL use `skip_layers` 1.
    """

    model_types: ClassVar[Mapping[str, str]] = {"clip": "CLIPModel", "clip_text_model": "CLIPTextModel"}
    towers: ClassVar[Mapping[str, str]] = {"clip": "text_model"}

    kind: Literal["clip"] = "clip"
    weights: Source = "openai/clip-vit-large-patch14"
    revision: Revision = "32bd64288804d66eefd0ccbe215aa642df71cc41"
    max_tokens: int = Field(
        77, ge=2, description="Largest number of tokens of a caption; CLIP has positions for 77 tokens"
    )


class MiniLmSettings(FrozenTextPart):
    """Settings of MiniLM, a small BERT that was trained to compare sentences."""

    kind: Literal["minilm"] = "minilm"
    weights: Source = "sentence-transformers/all-MiniLM-L6-v2"
    revision: Revision = "c9745ed1d9f207416be6d2e6f8de32d1f16199bf"

    def network(self) -> Untyped:
        return self.checkpoint.model({"bert": "BertModel"}, unused=POOLERS, dtype=self.dtype)


class TransformersSettings(FrozenTextPart):
    """Settings of any text model of transformers. For an encoder-decoder model, only the encoder is used."""

    kind: Literal["transformers"] = "transformers"

    def network(self) -> Untyped:
        model = self.checkpoint.model(unused=POOLERS, dtype=self.dtype)
        tower = model.get_encoder() if model.config.is_encoder_decoder else model
        if tower is None or not callable(getattr(tower, "get_input_embeddings", None)):
            raise UserError(
                f"{self.checkpoint.words}: the library transformers finds no text encoder in this model",
                "name another model",
            )
        return tower
