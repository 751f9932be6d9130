"""PRX's attention. Image queries attend to text keys and image keys. Text tokens are read and never updated.

B: samples, L: image tokens, S: text tokens, D: width. The head axis comes after B: [B, heads, L, head size].
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from tintype.model.fp8 import Fp8Linear
from tintype.model.islands import attend
from tintype.model.layers import RMSNorm, rms_norm, rotate
from tintype.settings import PrecisionSettings

KeyValue = tuple[Tensor, Tensor]


def block_linear(size_in: int, size_out: int, precision: PrecisionSettings) -> nn.Linear:
    """Return a linear layer for one of a block's large matrices. The precision plan may compute its products in FP8."""
    return Fp8Linear(size_in, size_out) if precision.matmul == "fp8" else nn.Linear(size_in, size_out, bias=False)


class Attention(nn.Module):
    def __init__(
        self, width: int, heads: int, precision: PrecisionSettings, qk_norm: bool = True, mixes_values: bool = False
    ) -> None:
        """Build the layers. With `mixes_values`, the first block's values are mixed into this block's values."""
        super().__init__()
        self.heads, self.qk_norm = heads, qk_norm
        islands, size = precision.islands, width // heads
        self.norms, self.rope, self.softmax = islands.norms, islands.rope, islands.softmax
        self.img_qkv_proj = block_linear(width, 3 * width, precision)
        self.txt_kv_proj = block_linear(width, 2 * width, precision)
        if qk_norm:
            self.norm_q = RMSNorm(size, islands.norms)
            self.norm_k = RMSNorm(size, islands.norms)
            self.norm_added_k = RMSNorm(size, islands.norms)
        self.to_out = nn.ModuleList([block_linear(width, width, precision)])
        self.value_mix = nn.Parameter(torch.full((2,), 0.5)) if mixes_values else None

    def read_text(self, text_BSD: Tensor) -> KeyValue:
        """Return the text's keys and values, which depend on neither image nor t: sampling computes them only once."""
        key, value = self._split_heads(self.txt_kv_proj(text_BSD), 2).unbind(0)
        return self.norm_added_k(key) if self.qk_norm else key, value

    def forward(
        self,
        token_BLD: Tensor,
        text: KeyValue,
        mask: Tensor | None,
        rotation: Tensor,
        first_value: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Return the output, and the values of the image tokens [B, heads, L, head size].

        `mask` is True for visible keys. The mask's shape is [B, 1, 1, S + L], and it is broadcast without being copied.
        `first_value` has the first block's values of the same tokens (value residual, arXiv 2410.17897).
        """
        query, key, value = self._project(token_BLD, rotation)
        if self.value_mix is not None and first_value is not None:
            mix = self.value_mix.to(value.dtype)
            value = mix[0] * first_value + mix[1] * value
        own_value = value
        key, value = torch.cat([text[0], key], dim=2), torch.cat([text[1], value], dim=2)
        seen = attend(query, key, value, mask, self.softmax)
        out: Tensor = self.to_out[0](seen.transpose(1, 2).flatten(2))
        return out, own_value

    def image_logits(self, token_BLD: Tensor, rotation: Tensor) -> Tensor:
        """Return the fp32 attention logits [B, heads, L, L] between image tokens, before the softmax."""
        query, key, _ = self._project(token_BLD, rotation)
        with torch.autocast(token_BLD.device.type, enabled=False):
            logits: Tensor = query.float() @ key.float().mT / query.shape[-1] ** 0.5
        return logits

    def _project(self, token_BLD: Tensor, rotation: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the image's queries, keys and values. Each has the shape [B, heads, L, head size]."""
        query_key, value = self._split_heads(self.img_qkv_proj(token_BLD), 3).split([2, 1])
        if self.qk_norm:
            weight = torch.stack([self.norm_q.weight, self.norm_k.weight])[:, None, None, None, :]
            query_key = rms_norm(query_key, weight, self.norms)
        query, key = rotate(query_key, rotation, self.rope).unbind(0)  # both at once: half the kernels
        return query, key, value[0]

    def _split_heads(self, packed_BLE: Tensor, parts: int) -> Tensor:
        """Reshape [B, L, parts × D] to [parts, B, heads, L, head size]."""
        b, length, size = packed_BLE.shape
        return packed_BLE.view(b, length, parts, self.heads, size // (parts * self.heads)).permute(2, 0, 3, 1, 4)
