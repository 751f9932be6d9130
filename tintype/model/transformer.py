"""The PRX transformer. Its parameters carry the names of diffusers' `PRXTransformer2DModel`, one to one.

B: samples, C: channels, H, W: latent rows and columns, L: image tokens, S: text tokens, D: width, K: kept tokens,
E: width of the text encoder.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from tintype.model.attention import Attention, KeyValue, block_linear
from tintype.model.islands import compile_rounding_whole, rounded
from tintype.model.layers import (
    FinalLayer,
    LayerNorm,
    Modulation,
    ResolutionEmbedder,
    VectorMLP,
    add_gated,
    modulate,
    patchify,
    rotation_table,
    sinusoid,
    unpatchify,
)
from tintype.seams import Output, Route, Tapped, TextTokens
from tintype.settings import ModelSettings, PrecisionSettings

_TIME_SIZE = 256
_MOST_SHAPES = 64
_USUAL_PRECISION = PrecisionSettings()


@dataclass(frozen=True)
class TextCache:
    """Keys and values of the text in each block, and its padding mask."""

    per_block: tuple[KeyValue, ...]
    mask_BS: Tensor


class Block(nn.Module):
    """Modulated attention and gated MLP, each added to the stream through a gate."""

    def __init__(self, settings: ModelSettings, precision: PrecisionSettings) -> None:
        super().__init__()
        width, hidden, islands = settings.width, settings.hidden, precision.islands
        self.position = islands.modulation
        self.modulation = Modulation(width, islands.modulation)
        self.img_pre_norm = LayerNorm(width, islands.norms)
        self.attention = Attention(width, settings.heads, precision)
        self.post_attention_layernorm = LayerNorm(width, islands.norms)
        self.gate_proj = block_linear(width, hidden, precision)
        self.up_proj = block_linear(width, hidden, precision)
        self.down_proj = block_linear(hidden, width, precision)

    def forward(
        self, token_BLD: Tensor, text: Tensor | KeyValue, vector_BD: Tensor, mask: Tensor | None, rotation: Tensor
    ) -> Tensor:
        """`text` is the projected text [B, S, D], or the keys and values already read from it."""
        shift_a, scale_a, gate_a, shift_m, scale_m, gate_m = self.modulation(vector_BD)
        key_value = self.attention.read_text(text) if isinstance(text, Tensor) else text
        seen = modulate(self.img_pre_norm(token_BLD), scale_a, shift_a, self.position)
        token_BLD = add_gated(token_BLD, gate_a, self.attention(seen, key_value, mask, rotation), self.position)
        seen = modulate(self.post_attention_layernorm(token_BLD), scale_m, shift_m, self.position)
        hidden = nn.functional.gelu(self.gate_proj(seen), approximate="tanh") * self.up_proj(seen)
        return add_gated(token_BLD, gate_m, self.down_proj(hidden), self.position)


class Transformer(nn.Module):
    def __init__(
        self,
        settings: ModelSettings,
        channels: int,
        text_dim: int,
        precision: PrecisionSettings = _USUAL_PRECISION,
    ) -> None:
        super().__init__()
        self.settings = settings
        self.islands = islands = precision.islands
        width, patch_size = settings.width, channels * settings.patch**2
        self.img_in = _patch_embedding(patch_size, width, settings.bottleneck)
        self.time_in = VectorMLP(_TIME_SIZE, width, islands.modulation)
        self.txt_in = nn.Linear(text_dim, width)
        self.blocks = nn.ModuleList(Block(settings, precision) for _ in range(settings.depth))
        self.final_layer = FinalLayer(width, patch_size, islands.norms, islands.modulation)
        # The last to draw its weights: the others' are the same with and without it.
        self.resolution_embedder = (
            ResolutionEmbedder(width, settings.time_max_period, islands.modulation)
            if settings.resolution_embeds
            else None
        )
        if settings.compile:
            for block in self.blocks:  # all blocks, of all runs of a process, share one compiled graph
                block.compile(dynamic=False)
            allow_shapes()
            compile_rounding_whole()

    def read_text(self, text: TextTokens) -> TextCache:
        """Project the text and compute its keys and values in every block, once for all steps of sampling."""
        text_BSD = self.txt_in(text.tokens_BLC)
        return TextCache(tuple(block.attention.read_text(text_BSD) for block in self._blocks()), text.mask_BL)

    def forward(
        self,
        x_t_BCHW: Tensor,
        t_B: Tensor,
        text: TextTokens | TextCache,
        *,
        route: Route | None = None,
        taps: Sequence[int] | frozenset[int] = (),
        only_taps: bool = False,
    ) -> Output | Tapped:
        """`taps` are blocks (counted from 0) whose output tokens come back in `Output.features`.

        With `only_taps` no block runs after the last of them, and there is no prediction.
        """
        rows, columns = self._grid(x_t_BCHW)
        vector_BD = self._embed_time(t_B)
        if self.resolution_embedder is not None:
            vector_BD = vector_BD + self.resolution_embedder(*x_t_BCHW.shape[-2:], t_B)
        token_BLD = self.img_in(patchify(x_t_BCHW, self.settings.patch))
        rotation = self._rotation(rows, columns, x_t_BCHW.device)
        if isinstance(text, TextCache):
            text_of_block: Sequence[Tensor | KeyValue] = text.per_block
            mask_BS = text.mask_BS
        else:
            text_of_block = [self.txt_in(text.tokens_BLC)] * len(self.blocks)
            mask_BS = text.mask_BL

        depth = len(self.blocks)
        if route is not None and route.end > depth:
            raise ValueError(f"the route ends at block {route.end}, but there are {depth}")
        stop = 1 + max(taps) if only_taps else depth
        features: dict[int, Tensor] = {}

        def through(blocks: range, token_BLD: Tensor, rotation: Tensor) -> Tensor:
            mask = _key_mask(mask_BS, token_BLD.shape[1])
            for index in blocks[: max(0, stop - blocks.start)] if token_BLD.shape[1] else ():
                token_BLD = self._run(self.blocks[index], token_BLD, text_of_block[index], vector_BD, mask, rotation)
                if index in taps:
                    features[index] = token_BLD
            return token_BLD

        if route is None:
            token_BLD = through(range(depth), token_BLD, rotation)
        else:
            token_BLD = through(range(route.start), token_BLD, rotation)
            kept_BKD, kept_rotation = _keep(token_BLD, rotation, route.kept_BK)
            kept_BKD = through(range(route.start, route.end), kept_BKD, kept_rotation)
            if only_taps and stop <= route.end:
                return Tapped(features, route)
            token_BLD = (route.merge or _put_back)(token_BLD, kept_BKD, route.kept_BK)
            token_BLD = through(range(route.end, depth), token_BLD, rotation)

        if only_taps:
            return Tapped(features, route)
        flat_BLP = self.final_layer(token_BLD, vector_BD)
        return Output(unpatchify(flat_BLP, self.settings.patch, rows, columns), features, route)

    def _blocks(self) -> list[Block]:
        return [block for block in self.blocks if isinstance(block, Block)]

    def _run(self, block: nn.Module, token_BLD: Tensor, *inputs: Tensor | KeyValue | None) -> Tensor:
        if self.settings.activation_checkpointing and torch.is_grad_enabled():
            recomputed: Tensor = checkpoint(block, token_BLD, *inputs, use_reentrant=False)
            return recomputed
        out: Tensor = block(token_BLD, *inputs)
        return out

    def _embed_time(self, t_B: Tensor) -> Tensor:
        if t_B.dtype not in (torch.float32, torch.float64):
            raise TypeError(f"timesteps must be float32 or float64, not {t_B.dtype}: 16 bits cannot tell them apart")
        if self.islands.timestep == "bf16":
            t_B = rounded(t_B).to(t_B.dtype)
        wave = sinusoid(t_B, _TIME_SIZE, self.settings.time_max_period, self.settings.time_factor)
        vector_BD: Tensor = self.time_in(wave)
        return vector_BD

    def _grid(self, x_BCHW: Tensor) -> tuple[int, int]:
        patch, (height, width) = self.settings.patch, x_BCHW.shape[-2:]
        if height % patch or width % patch:
            raise ValueError(f"latents of {height}×{width} cannot be cut into patches of {patch}×{patch}")
        return height // patch, width // patch

    def _rotation(self, rows: int, columns: int, device: torch.device) -> Tensor:
        head_size = self.settings.width // self.settings.heads
        table = _rotation(rows, columns, head_size, self.settings.rope_theta, device)
        return table.bfloat16() if self.islands.rope == "bf16" else table


def allow_shapes() -> None:
    """Raise torch's limit of eight compiled shapes: training, sampling and routes each have their own."""
    torch._dynamo.config.recompile_limit = max(torch._dynamo.config.recompile_limit, _MOST_SHAPES)


@lru_cache(maxsize=32)
def _rotation(rows: int, columns: int, head_size: int, theta: int, device: torch.device) -> Tensor:
    with torch.inference_mode(False):  # a cached table may serve training after it was made while sampling
        return rotation_table(rows, columns, head_size, theta, device)[None, None]


def _patch_embedding(patch_size: int, width: int, bottleneck: int | None) -> nn.Module:
    if bottleneck is None:
        return nn.Linear(patch_size, width)
    return nn.Sequential(nn.Linear(patch_size, bottleneck), nn.Linear(bottleneck, width))


def _key_mask(mask_BS: Tensor, image_tokens: int) -> Tensor:
    """Return the mask of the keys that may be seen, [B, 1, 1, S + L]."""
    image = mask_BS.new_ones(mask_BS.shape[0], image_tokens)
    return torch.cat([mask_BS, image], dim=1)[:, None, None, :]


def _keep(token_BLD: Tensor, rotation: Tensor, kept_BK: Tensor | None) -> tuple[Tensor, Tensor]:
    """Return the kept tokens, each with its own rotation."""
    if kept_BK is None:
        return token_BLD, rotation
    kept_BKD = token_BLD.gather(1, kept_BK[:, :, None].expand(-1, -1, token_BLD.shape[-1]))
    return kept_BKD, rotation[0, 0][kept_BK][:, None]


def _put_back(whole_BLD: Tensor, kept_BKD: Tensor, kept_BK: Tensor | None) -> Tensor:
    if kept_BK is None:
        return kept_BKD
    index = kept_BK[:, :, None].expand(-1, -1, whole_BLD.shape[-1])
    return whole_BLD.scatter(1, index, kept_BKD.to(whole_BLD.dtype))
