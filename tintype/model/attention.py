"""PRX's attention: image queries look at text and image keys. Text tokens are read and never updated.

B: samples, L: image tokens, S: text tokens, D: width. Heads stand after B: [B, heads, L, head size].
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from tintype.model.layers import RMSNorm, rms_norm, rotate

KeyValue = tuple[Tensor, Tensor]


class Attention(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        size = width // heads
        self.img_qkv_proj = nn.Linear(width, 3 * width, bias=False)
        self.txt_kv_proj = nn.Linear(width, 2 * width, bias=False)
        self.norm_q = RMSNorm(size)
        self.norm_k = RMSNorm(size)
        self.norm_added_k = RMSNorm(size)
        self.to_out = nn.ModuleList([nn.Linear(width, width, bias=False)])

    def read_text(self, text_BSD: Tensor) -> KeyValue:
        """Keys and values of the text. They do not depend on the image or on t, so sampling computes them once."""
        key, value = self._split_heads(self.txt_kv_proj(text_BSD), 2).unbind(0)
        return self.norm_added_k(key), value

    def forward(self, token_BLD: Tensor, text: KeyValue, mask: Tensor | None, rotation: Tensor) -> Tensor:
        """`mask` is True where a key may be seen, [B, 1, 1, S + L]: it is broadcast and never expanded."""
        query_key, value = self._split_heads(self.img_qkv_proj(token_BLD), 3).split([2, 1])
        weight = torch.stack([self.norm_q.weight, self.norm_k.weight])[:, None, None, None, :]
        query, key = rotate(rms_norm(query_key, weight), rotation).unbind(0)  # both at once: half the kernels
        key, value = torch.cat([text[0], key], dim=2), torch.cat([text[1], value[0]], dim=2)
        seen = nn.functional.scaled_dot_product_attention(query, key, value, attn_mask=mask)
        out: Tensor = self.to_out[0](seen.transpose(1, 2).flatten(2))
        return out

    def _split_heads(self, packed_BLE: Tensor, parts: int) -> Tensor:
        """[B, L, parts × D] -> [parts, B, heads, L, head size]."""
        b, length, size = packed_BLE.shape
        return packed_BLE.view(b, length, parts, self.heads, size // (parts * self.heads)).permute(2, 0, 3, 1, 4)
