"""`words` is a small text encoder that is trained with the denoiser and needs no download.

Words are hashed into buckets, so no vocabulary file is needed and any text can be encoded. The hash has a salt. The
salt was chosen so that all words in the captions of tintype's scenes fall into different buckets, for 1024, 2048 and
4096 buckets.

Tensor dimensions are B (captions), L (tokens) and C (width of this encoder).
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from functools import cached_property, lru_cache
from typing import Literal

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.func import functional_call

from tintype.model.fused import why_no_kernels
from tintype.runtime.graphs import Graphs
from tintype.runtime.transfer import send
from tintype.seams import TextTokens
from tintype.text.part import TextPart

_PADDING, _START, _FIRST_WORD = 0, 1, 2
_SALT = "tintype-8:"
_WORD = re.compile(r"\w+")


class WordsSettings(TextPart):
    kind: Literal["words"] = "words"
    buckets: int = Field(4096, ge=16, description="Number of rows of the embedding table; words are hashed to rows")
    width: int = Field(128, ge=8, description="Size of a word's embedding")
    depth: int = Field(2, ge=0, description="Number of transformer layers over the words")
    heads: int = Field(4, ge=1, description="Number of attention heads of a layer")
    max_tokens: int = Field(
        96, ge=2, description="Number of words, including the start token, to which captions are padded or truncated"
    )

    def build(self, device: torch.device) -> WordsEncoder:
        return WordsEncoder(self)

    def limits(self) -> list[str]:
        return [
            "It reads words by hashing, with an encoder trained on its captions: words that they do not have mean "
            f"nothing to it, and only the first {self.max_tokens - 1} words of a prompt are read."
        ]


@lru_cache(maxsize=1 << 16)
def bucket(word: str, buckets: int) -> int:
    digest = hashlib.sha256((_SALT + word).encode()).digest()
    return _FIRST_WORD + int.from_bytes(digest[:8], "little") % buckets


def token_ids(caption: str, settings: WordsSettings) -> list[int]:
    """Return the id of the start token, and one id per word. The null caption is the start token alone."""
    words = _WORD.findall(caption.lower())[: settings.max_tokens - 1]
    return [_START] + [bucket(word, settings.buckets) for word in words]


@lru_cache(maxsize=1 << 17)
def _cut(caption: str, max_tokens: int) -> str:
    """Truncate a caption to `max_tokens` tokens, including the start token."""
    ends = [found.end() for found in _WORD.finditer(caption)]
    return caption if len(ends) < max_tokens else caption[: ends[max_tokens - 2]]


@lru_cache(maxsize=1 << 17)
def _padded_ids(caption: str, settings: WordsSettings) -> Tensor:
    """Return the padded token ids, cached since captions repeat in every epoch and every run of a study."""
    ids = token_ids(caption, settings)
    return torch.tensor(ids + [_PADDING] * (settings.max_tokens - len(ids)))


class WordsEncoder(nn.Module):
    """Word and position embeddings, followed by a few pre-norm transformer layers over the words."""

    identity = None
    """None, since the weights are trained in the run and therefore have no fixed identity."""

    def __init__(self, settings: WordsSettings) -> None:
        super().__init__()
        self.settings = settings
        self.dim = settings.width
        self.word = nn.Embedding(_FIRST_WORD + settings.buckets, settings.width)
        self.place = nn.Embedding(settings.max_tokens, settings.width)
        self.layers = nn.ModuleList(_Layer(settings.width, settings.heads) for _ in range(settings.depth))
        self.norm = nn.LayerNorm(settings.width)
        self._graphs = Graphs()

    def identity_at(self, max_tokens: int) -> None:
        return None

    def truncate(self, captions: Sequence[str], max_tokens: int) -> list[str]:
        return [_cut(caption, max_tokens) for caption in captions]

    def transformers_form(self) -> None:
        return None

    def encode(self, captions: Sequence[str]) -> TextTokens:
        id_BL = torch.stack([_padded_ids(caption, self.settings) for caption in captions])
        lengths = tuple((id_BL != _PADDING).sum(1).tolist())
        id_BL = send(id_BL, self.word.weight.device)
        found = None
        if id_BL.is_cuda:
            found = self._graphs("words", self._captured, (id_BL,), self._all_parameters)
        return TextTokens(self(id_BL) if found is None else found[0], id_BL != _PADDING, lengths)

    @cached_property
    def _all_parameters(self) -> dict[str, nn.Parameter]:
        return dict(self.named_parameters())

    def _captured(self, inputs: Sequence[Tensor], parameters: Mapping[str, nn.Parameter]) -> tuple[Tensor, ...]:
        return (functional_call(self, dict(parameters), tuple(inputs)),)

    def forward(self, id_BL: Tensor) -> Tensor:
        """Compute the states of the words from their ids."""
        mask_BL = id_BL != _PADDING
        token_BLC = self.word(id_BL) + self.place.weight
        for layer in self.layers:
            token_BLC = layer(token_BLC, mask_BL)
        read_BLC: Tensor = self.norm(token_BLC)
        return read_BLC


class Norm(nn.LayerNorm):
    """LayerNorm that precedes a matrix product; with the denoiser's kernel, its output has the product's dtype."""

    def forward(self, x_BLC: Tensor) -> Tensor:
        if why_no_kernels(x_BLC.device):
            return super().forward(x_BLC)
        from tintype.model.fused.modulated_norm import modulated_norm

        # In fp32 where they are stored in bf16, which would round the difference, and each sample's gradient.
        two_B2C = torch.cat([self.bias.float(), self.weight.float() - 1]).expand(len(x_BLC), -1)
        kind = torch.get_autocast_dtype("cuda") if torch.is_autocast_enabled("cuda") else x_BLC.dtype
        return modulated_norm(x_BLC, two_B2C, kind, self.eps)


class _Layer(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.attention_norm = Norm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.mlp_norm = Norm(width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, token_BLC: Tensor, mask_BL: Tensor) -> Tensor:
        b, length, _ = token_BLC.shape
        packed = self.qkv(self.attention_norm(token_BLC)).view(b, length, 3, self.heads, -1)
        query, key, value = (part.transpose(1, 2) for part in packed.unbind(2))  # their gradients need one copy
        seen = nn.functional.scaled_dot_product_attention(query, key, value, attn_mask=mask_BL[:, None, None, :])
        token_BLC = token_BLC + self.out(seen.transpose(1, 2).flatten(2))
        refined: Tensor = token_BLC + self.mlp(self.mlp_norm(token_BLC))
        return refined
