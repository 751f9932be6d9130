"""The PRX transformer. The parameters have the same names as in diffusers' `PRXTransformer2DModel`.

B: samples, C: channels, H, W: latent rows and columns, L: image tokens, S: text tokens, D: width, K: kept tokens, E:
width of the text encoder.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule
from torch.func import functional_call
from torch.utils.checkpoint import checkpoint

from tintype.errors import UserError
from tintype.model.attention import Attention, KeyValue, block_linear
from tintype.model.class_token import ClassToken
from tintype.model.fused import why_plain
from tintype.model.islands import compile_rounding_whole, rounded
from tintype.model.layers import (
    FinalLayer,
    LayerNorm,
    Modulation,
    ModulationOffset,
    ResolutionEmbedder,
    VectorMLP,
    add_gated,
    modulate,
    patchify,
    rotation_table,
    sinusoid,
    unpatchify,
)
from tintype.model.packing import FEW_SIZES, MANY_SIZES, PackedKeyValue, PackedText, Places, pack
from tintype.model.rows import put_rows, take_rows
from tintype.runtime.copies import Copy
from tintype.runtime.graphs import Graphs, memory_bytes
from tintype.seams import Output, Route, Tapped, TextTokens
from tintype.settings import ModelSettings, PrecisionSettings
from tintype.wording import setting

if TYPE_CHECKING:
    from tintype.model.fused.block import FusedBlock

_TIME_SIZE = 256
_LONG_FLOPS = 1e12
"""A GPU finishes forward products with fewer operations before the host has started the next products."""
_FP8_FACTOR = 2
"""Factor on `_LONG_FLOPS` with FP8, since FP8 products take half the time."""
_STATE_BYTES = 20
"""Bytes per parameter for weight, gradient, AdamW's two moments, and the gradient that a graph writes."""
_MOST_SHAPES = 64
_REGISTER_DEVIATION = 0.02
_USUAL_PRECISION = PrecisionSettings()


BlockText = Tensor | KeyValue | PackedText | PackedKeyValue
"""The text of a block, packed for the fused kernels: the projected text, or its keys and values."""


@dataclass(frozen=True)
class TextCache:
    """The text's keys and values in each block. If the text is not packed, it also has the padding mask."""

    per_block: tuple[KeyValue | PackedKeyValue, ...]
    mask_BS: Tensor | None

    @property
    def packed(self) -> list[PackedKeyValue]:
        return [one for one in self.per_block if isinstance(one, PackedKeyValue)]

    def join(self, other: TextCache) -> TextCache:
        if self.mask_BS is None or other.mask_BS is None:
            return TextCache(tuple(a.join(b) for a, b in zip(self.packed, other.packed, strict=True)), None)
        padded = [[one for one in cache.per_block if isinstance(one, tuple)] for cache in (self, other)]
        per_block = [(torch.cat([a[0], b[0]]), torch.cat([a[1], b[1]])) for a, b in zip(*padded, strict=True)]
        return TextCache(tuple(per_block), torch.cat([self.mask_BS, other.mask_BS]))

    @property
    def longest(self) -> int:
        """Return an upper bound on the number of tokens per sample of a packed text."""
        return self.packed[0].places.longest

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        places, pairs = self.packed[0].places, [(one.key_ND, one.value_ND) for one in self.packed]
        return places.first_B, places.length_B, *(tensor for pair in pairs for tensor in pair)

    def of(self, first_B: Tensor, length_B: Tensor, *keys_values: Tensor) -> TextCache:
        """Return a packed text with these tensors. The tensors' values may change later."""
        places = Places(first_B, length_B, self.longest, dense=0)
        pairs = zip(keys_values[::2], keys_values[1::2], strict=True)
        return TextCache(tuple(PackedKeyValue(key_ND, value_ND, places) for key_ND, value_ND in pairs), None)


class Block(nn.Module):
    """Modulated attention and gated MLP. Each is added to the token stream through a gate."""

    def __init__(self, settings: ModelSettings, precision: PrecisionSettings, first: bool = False) -> None:
        super().__init__()
        width, hidden, islands = settings.width, settings.hidden, precision.islands
        self.position, self.fp8 = islands.modulation, precision.matmul == "fp8"
        self._on_kernels: FusedBlock | None = None
        adaln = ModulationOffset if settings.shared_adaln else Modulation
        self.modulation = adaln(width, islands.modulation)
        self.gate, self.gives_value = settings.gate, settings.value_residual and first
        self.img_pre_norm = LayerNorm(width, islands.norms)
        mixes = settings.value_residual and not first
        self.attention = Attention(width, settings.heads, precision, settings.qk_norm, mixes)
        self.post_attention_layernorm = LayerNorm(width, islands.norms)
        self.gate_proj = block_linear(width, hidden, precision)
        self.up_proj = block_linear(width, hidden, precision)
        self.down_proj = block_linear(hidden, width, precision)

    def forward(
        self,
        token_BLD: Tensor,
        text: BlockText,
        vector_BD: Tensor,
        mask: Tensor | None,
        rotation: Tensor,
        first_value: Tensor | None = None,
    ) -> Tensor | tuple[Tensor, Tensor]:
        """Return the tokens. The first block also returns its values, if later blocks mix them in.

        Packed text is processed by the fused kernels.
        """
        if isinstance(text, PackedText | PackedKeyValue):
            return self._fused(token_BLD, text, vector_BD, rotation)
        shift_a, scale_a, gate_a, shift_m, scale_m, gate_m = self.modulation(vector_BD)[:, None, :].chunk(6, dim=-1)
        key_value = self.attention.read_text(text) if isinstance(text, Tensor) else text
        seen = modulate(self.img_pre_norm(token_BLD), scale_a, shift_a, self.position)
        attended, value = self.attention(seen, key_value, mask, rotation, first_value)
        token_BLD = add_gated(token_BLD, gate_a, attended, self.position)
        seen = modulate(self.post_attention_layernorm(token_BLD), scale_m, shift_m, self.position)
        gate = self.gate_proj(seen)
        gate = nn.functional.silu(gate) if self.gate == "silu" else nn.functional.gelu(gate, approximate="tanh")
        token_BLD = add_gated(token_BLD, gate_m, self.down_proj(gate * self.up_proj(seen)), self.position)
        return (token_BLD, value.clone()) if self.gives_value else token_BLD  # FSDP2 wants no views

    def image_logits(self, token_BLD: Tensor, vector_BD: Tensor, rotation: Tensor) -> Tensor:
        """Return the attention logits between the image tokens that enter this block, before the softmax.

        Plain operations compute the logits, since attention kernels do not store them.
        """
        shift, scale, *_ = self.modulation(vector_BD)[:, None, :].chunk(6, dim=-1)
        return self.attention.image_logits(
            modulate(self.img_pre_norm(token_BLD), scale, shift, self.position), rotation
        )

    def read_text(self, text: Tensor | PackedText) -> KeyValue | PackedKeyValue:
        """Return the text's keys and values, which depend on neither image nor t: sampling computes them only once."""
        if isinstance(text, Tensor):
            return self.attention.read_text(text)
        return self._kernels().read_text(text)

    def _fused(
        self, token_BLD: Tensor, text: PackedText | PackedKeyValue, vector_BD: Tensor, rotation: Tensor
    ) -> Tensor:
        with torch.autocast(token_BLD.device.type, enabled=False):
            return self._kernels().run(token_BLD.bfloat16(), text, vector_BD, rotation.squeeze(1))

    def refresh(self) -> None:
        """Cast the weights that have changed. The cast must happen before a graph reads the copies."""
        self._kernels().weights.refresh()

    def copies(self) -> list[Copy]:
        """Return the cast copies of weights that this block reads; empty before the block's first fused pass."""
        return [] if self._on_kernels is None else self._on_kernels.weights.copies()

    def _kernels(self) -> FusedBlock:
        """Return the fused kernels with bf16 or FP8 copies of this block's weights.

        Under FSDP2, copies cannot be cached, since it gathers the weights for each pass.
        """
        if self._on_kernels is None or isinstance(self, FSDPModule):
            from tintype.model.fused.block import FusedBlock

            with torch.inference_mode(False):  # its copies may serve training after they were made while sampling
                assert isinstance(self.modulation, Modulation)
                layers = (self.modulation, self.attention, self.gate_proj, self.up_proj, self.down_proj)
                self._on_kernels = FusedBlock(*layers, self.fp8)
        return self._on_kernels


class Transformer(nn.Module):
    def __init__(
        self,
        settings: ModelSettings,
        channels: int,
        text_dim: int,
        precision: PrecisionSettings = _USUAL_PRECISION,
    ) -> None:
        super().__init__()
        self.settings, self.channels, self.text_dim = settings, channels, text_dim
        self.islands = islands = precision.islands
        width, patch_size = settings.width, channels * settings.patch**2
        self.img_in = _patch_embedding(patch_size, width, settings.bottleneck)
        self.time_in = VectorMLP(_TIME_SIZE, width, islands.modulation)
        self.txt_in = nn.Linear(text_dim, width)
        self.blocks = nn.ModuleList(Block(settings, precision, index == 0) for index in range(settings.depth))
        self.final_layer = FinalLayer(width, patch_size, islands.norms, islands.modulation)
        # The last to draw its weights: the others' are the same with and without it.
        self.resolution_embedder = (
            ResolutionEmbedder(width, settings.time_max_period, islands.modulation)
            if settings.resolution_embeds
            else None
        )
        self.shared_modulation = Modulation(width, islands.modulation) if settings.shared_adaln else None
        # Flat, since FSDP2 shards by rows, of which there may be fewer than ranks.
        count = settings.registers * width
        self.registers = nn.Parameter(torch.randn(count) * _REGISTER_DEVIATION) if count else None
        self.class_token = ClassToken(settings.class_token, width) if settings.class_token else None
        self._precision, self._fused = precision, dict[torch.device, bool]()
        self._graphs = Graphs()

    def fused_on(self, device: torch.device) -> bool:
        """Return whether the blocks use the fused kernels on this device. If not, compile them at the first call."""
        if device not in self._fused:
            reason = why_plain(self.settings, self._precision, device)
            if self.settings.kernels == "fused" and reason:
                raise UserError(f"model.kernels is fused, but {reason}", f"use {setting('model.kernels', 'auto')}")
            self._fused[device] = self.settings.kernels != "plain" and not reason
            if self.settings.compile and not self._fused[device]:
                for block in self.blocks:  # all blocks, of all runs of a process, share one compiled graph
                    block.compile(dynamic=False)
                allow_shapes()
                compile_rounding_whole()
        return self._fused[device]

    def read_text(self, text: TextTokens) -> TextCache:
        """Project the text and compute its keys and values in every block, once for all steps of sampling."""
        projected = self._project_text(self._pack(text))
        mask_BS = text.mask_BL if isinstance(projected, Tensor) else None
        return TextCache(tuple(block.read_text(projected) for block in self._blocks()), mask_BS)

    def copies(self) -> list[Copy]:
        """Return the blocks' cast copies of weights, which an optimizer can update. Under FSDP2 there are none."""
        if isinstance(self.blocks[0], FSDPModule):
            return []
        return [copy for block in self._blocks() for copy in block.copies()]

    def _pack(self, text: TextTokens, sizes: int = FEW_SIZES) -> TextTokens | PackedText:
        return pack(text, sizes) if self.fused_on(text.tokens_BLC.device) else text

    def _project_text(self, text: TextTokens | PackedText) -> Tensor | PackedText:
        if isinstance(text, PackedText):
            return PackedText(self.txt_in(text.rows_NC).bfloat16(), text.places)
        text_BSD: Tensor = self.txt_in(text.tokens_BLC)
        return text_BSD

    def forward(
        self,
        x_t_BCHW: Tensor,
        t_B: Tensor,
        text: TextTokens | PackedText | TextCache,
        *,
        route: Route | None = None,
        taps: Sequence[int] | frozenset[int] = (),
        only_taps: bool = False,
        attention_taps: frozenset[int] = frozenset(),
        class_BT: Tensor | None = None,
    ) -> Output | Tapped:
        """Return the prediction. `Output.features` has the output tokens of the blocks `taps`.

        Blocks are counted from 0. With `only_taps`, no block after the last tapped block runs, and there is no
        prediction. `Output.attention` has the attention between image tokens in the blocks `attention_taps`. `class_BT`
        are noised class tokens, for a denoiser with a class token.
        """
        if (class_BT is None) != (self.class_token is None):
            raise TypeError("class_BT is needed if model.class_token is set, and not allowed otherwise")
        short = not only_taps and not attention_taps and self._waits_for_host(x_t_BCHW, route)
        sizes = FEW_SIZES if short else MANY_SIZES
        given = self._pack(text, sizes) if isinstance(text, TextTokens) else text
        if not isinstance(given, TextTokens) and short:
            found = self._in_graph(x_t_BCHW, t_B, given, route, sorted(taps))
            if found is not None:
                return found
        return self._pass(x_t_BCHW, t_B, given, route, taps, only_taps, attention_taps, class_BT)

    def _waits_for_host(self, x_t_BCHW: Tensor, route: Route | None) -> bool:
        """Return whether a pass is so short that the host limits its speed. A short pass can be captured as a graph."""
        if route is not None and route.merge is not None:  # which has weights of its own
            return False
        if self.settings.activation_checkpointing or isinstance(self.blocks[0], FSDPModule):
            return False
        if not self.fused_on(x_t_BCHW.device):
            return False
        tokens = x_t_BCHW.shape[0] * math.prod(self._grid(x_t_BCHW))
        return is_short(self.settings, self._precision, tokens) and (
            not torch.is_grad_enabled() or self._fits_twice(tokens, x_t_BCHW.device)
        )

    def _fits_twice(self, tokens: int, device: torch.device) -> bool:
        """Return whether memory suffices for the training state and the activations of two passes.

        A graph keeps its memory, and passes with other shapes need memory in addition.
        """
        settings = self.settings
        activations = 2 * tokens * settings.depth * (11 * settings.width + 3 * settings.hidden)  # bf16, in `Trace`
        return 2 * activations + self._state_bytes <= memory_bytes(device)

    @cached_property
    def _state_bytes(self) -> int:
        return _STATE_BYTES * sum(parameter.numel() for parameter in self.parameters())

    def _in_graph(
        self, x_t_BCHW: Tensor, t_B: Tensor, text: PackedText | TextCache, route: Route | None, taps: list[int]
    ) -> Output | None:
        kept = () if route is None or route.kept_BK is None else (route.kept_BK,)
        for block in self._blocks():
            block.refresh()

        def run(inputs: Sequence[Tensor], parameters: Mapping[str, nn.Parameter]) -> tuple[Tensor, ...]:
            x_t_BCHW, t_B, *rest = inputs
            own = replace(route, kept_BK=rest.pop()) if route is not None and kept else route
            given = (x_t_BCHW, t_B, text.of(*rest))
            output: Output = functional_call(self, dict(parameters), given, {"route": own, "taps": taps})
            return output.prediction_BCHW, *(output.features[index] for index in taps)

        key = (type(text), text.longest, *taps, None if route is None else (route.start, route.end, bool(kept)))
        inputs = (x_t_BCHW, t_B, *text.tensors, *kept)
        if (found := self._graphs(key, run, inputs, self._all_parameters)) is None:
            return None
        return Output(found[0], dict(zip(taps, found[1:], strict=True)), route)

    def _pass(
        self,
        x_t_BCHW: Tensor,
        t_B: Tensor,
        text: TextTokens | PackedText | TextCache,
        route: Route | None,
        taps: Sequence[int] | frozenset[int],
        only_taps: bool,
        attention_taps: frozenset[int],
        class_BT: Tensor | None,
    ) -> Output | Tapped:
        rows, columns = self._grid(x_t_BCHW)
        vector_BD = self._embed_time(t_B)
        if self.resolution_embedder is not None:
            vector_BD = vector_BD + self.resolution_embedder(*x_t_BCHW.shape[-2:], t_B)
        token_BLD = self.img_in(patchify(x_t_BCHW, self.settings.patch))
        rotation = self._rotation(rows, columns, x_t_BCHW.device)
        if self.registers is not None:
            own_RD = self.registers.view(-1, token_BLD.shape[2]).to(token_BLD.dtype)
            token_BLD, rotation = _append(token_BLD, rotation, own_RD.expand(len(token_BLD), -1, -1))
        if self.class_token is not None and class_BT is not None:
            own_B1D = self.class_token.token(class_BT).to(token_BLD.dtype)
            token_BLD, rotation = _append(token_BLD, rotation, own_B1D)
        modulation_B = vector_BD if self.shared_modulation is None else self.shared_modulation(vector_BD)
        if isinstance(text, TextCache):
            text_of_block: Sequence[BlockText] = text.per_block
            mask_BS = text.mask_BS
        else:
            text_of_block = [self._project_text(text)] * len(self.blocks)
            mask_BS = text.mask_BL if isinstance(text, TextTokens) else None

        depth = len(self.blocks)
        if route is not None and route.end > depth:
            raise ValueError(f"the route ends at block {route.end}, but the model has {depth} blocks")
        stop = 1 + max(taps) if only_taps else depth
        features: dict[int, Tensor] = {}
        attention: dict[int, Tensor] = {}
        first_value: Tensor | None = None
        appended = self.settings.registers + (self.class_token is not None)

        def through(blocks: range, token_BLD: Tensor, rotation: Tensor, kept_BK: Tensor | None = None) -> Tensor:
            nonlocal first_value
            mask, value = _key_mask(mask_BS, token_BLD.shape[1]), _kept_value(first_value, kept_BK)
            for index in blocks[: max(0, stop - blocks.start)] if token_BLD.shape[1] else ():
                if index in attention_taps:
                    logits = self._blocks()[index].image_logits(token_BLD, modulation_B, rotation)
                    attention[index] = logits[..., : logits.shape[-1] - appended, : logits.shape[-1] - appended]
                given = (text_of_block[index], modulation_B, mask, rotation)
                out = self._run(self.blocks[index], token_BLD, *given, *(() if value is None else (value,)))
                if isinstance(out, tuple):
                    token_BLD, first_value = out
                    value = first_value
                else:
                    token_BLD = out
                if index in taps:
                    features[index] = _without_appended(token_BLD, appended)
            return token_BLD

        if route is None:
            token_BLD = through(range(depth), token_BLD, rotation)
        else:
            token_BLD = through(range(route.start), token_BLD, rotation)
            kept_BK = _keep_appended(route.kept_BK, token_BLD.shape[1], appended)
            kept_BKD, kept_rotation = _keep(token_BLD, rotation, kept_BK)
            kept_BKD = through(range(route.start, route.end), kept_BKD, kept_rotation, kept_BK)
            if only_taps and stop <= route.end:
                return Tapped(features, route)
            token_BLD = (route.merge or _put_back)(token_BLD, kept_BKD, kept_BK)
            token_BLD = through(range(route.end, depth), token_BLD, rotation)

        if only_taps:
            return Tapped(features, route)
        fused = self.fused_on(token_BLD.device)
        flat_BLP = self.final_layer(_without_appended(token_BLD, appended), vector_BD, fused)
        prediction_BCHW = unpatchify(flat_BLP, self.settings.patch, rows, columns)
        class_velocity_BT = None
        if self.class_token is not None:
            class_velocity_BT = self.class_token.velocity(self.final_layer.modulated(token_BLD[:, -1:], vector_BD))
        return Output(prediction_BCHW, features, route, attention, class_velocity_BT)

    @cached_property
    def _all_parameters(self) -> dict[str, nn.Parameter]:
        return dict(self.named_parameters())

    def _blocks(self) -> list[Block]:
        return [block for block in self.blocks if isinstance(block, Block)]

    def _run(self, block: nn.Module, token_BLD: Tensor, *inputs: BlockText | None) -> Tensor | tuple[Tensor, Tensor]:
        if self.settings.activation_checkpointing and torch.is_grad_enabled():
            recomputed: Tensor | tuple[Tensor, Tensor] = checkpoint(block, token_BLD, *inputs, use_reentrant=False)
            return recomputed
        out: Tensor | tuple[Tensor, Tensor] = block(token_BLD, *inputs)
        return out

    def _embed_time(self, t_B: Tensor) -> Tensor:
        if t_B.dtype not in (torch.float32, torch.float64):
            raise TypeError(f"timesteps must be float32 or float64, not {t_B.dtype}: 16 bits cannot distinguish them")
        if self.islands.timestep == "bf16":
            t_B = rounded(t_B).to(t_B.dtype)
        wave = sinusoid(t_B, _TIME_SIZE, self.settings.time_max_period, self.settings.time_factor)
        vector_BD: Tensor = self.time_in(wave)
        return vector_BD

    def _grid(self, x_BCHW: Tensor) -> tuple[int, int]:
        patch, (height, width) = self.settings.patch, x_BCHW.shape[-2:]
        if height % patch or width % patch:
            raise ValueError(f"latents of {height}×{width} cannot be divided into patches of {patch}×{patch}")
        return height // patch, width // patch

    def _rotation(self, rows: int, columns: int, device: torch.device) -> Tensor:
        head_size = self.settings.width // self.settings.heads
        table = _rotation(rows, columns, head_size, self.settings.rope_theta, device)
        return table.bfloat16() if self.islands.rope == "bf16" else table


def is_short(settings: ModelSettings, precision: PrecisionSettings, tokens: int) -> bool:
    """Return whether the GPU finishes a block's products before the host has started the next products."""
    flops = 2 * tokens * settings.width * (4 * settings.width + 3 * settings.hidden)
    return flops < _LONG_FLOPS * (_FP8_FACTOR if precision.matmul == "fp8" else 1)


def allow_shapes() -> None:
    """Raise torch's limit of eight compiled shapes, since training, sampling and routes each have different shapes."""
    torch._dynamo.config.recompile_limit = max(torch._dynamo.config.recompile_limit, _MOST_SHAPES)


@cache
def _rotation(rows: int, columns: int, head_size: int, theta: int, device: torch.device) -> Tensor:
    """Return the factors for `rotate` at a fixed memory address, so that a captured graph can read them."""
    with torch.inference_mode(False):  # a cached table may serve training after it was made while sampling
        return rotation_table(rows, columns, head_size, theta, device)[None, None]


def _patch_embedding(patch_size: int, width: int, bottleneck: int | None) -> nn.Module:
    if bottleneck is None:
        return nn.Linear(patch_size, width)
    return nn.Sequential(nn.Linear(patch_size, bottleneck), nn.Linear(bottleneck, width))


def _key_mask(mask_BS: Tensor | None, image_tokens: int) -> Tensor | None:
    """Return the mask of visible keys, [B, 1, 1, S + L]."""
    if mask_BS is None:
        return None
    image = mask_BS.new_ones(mask_BS.shape[0], image_tokens)
    return torch.cat([mask_BS, image], dim=1)[:, None, None, :]


def _keep(token_BLD: Tensor, rotation: Tensor, kept_BK: Tensor | None) -> tuple[Tensor, Tensor]:
    if kept_BK is None:
        return token_BLD, rotation
    return take_rows(token_BLD, kept_BK), rotation[0, 0][kept_BK][:, None]


def _append(token_BLD: Tensor, rotation: Tensor, own_BRD: Tensor) -> tuple[Tensor, Tensor]:
    """Append registers (arXiv 2309.16588) and a class token. They have no position and are not rotated."""
    still = rotation.new_zeros(*rotation.shape[:2], own_BRD.shape[1], *rotation.shape[3:])
    still[..., 0, :] = 1  # cosines
    return torch.cat([token_BLD, own_BRD], dim=1), torch.cat([rotation, still], dim=2)


def _without_appended(token_BLD: Tensor, appended: int) -> Tensor:
    return token_BLD[:, :-appended] if appended else token_BLD


def _keep_appended(kept_BK: Tensor | None, tokens: int, appended: int) -> Tensor | None:
    """Add the appended tokens to the kept tokens. If no token is kept, also keep no appended token."""
    if kept_BK is None or not appended or not kept_BK.shape[1]:
        return kept_BK
    own_R = torch.arange(tokens - appended, tokens, device=kept_BK.device)
    return torch.cat([kept_BK, own_R.expand(len(kept_BK), -1)], dim=1)


def _kept_value(value: Tensor | None, kept_BK: Tensor | None) -> Tensor | None:
    """Return the first block's values [B, heads, L, head size] for the kept tokens."""
    if value is None or kept_BK is None:
        return value
    batch, heads, _, size = value.shape
    return value.gather(2, kept_BK[:, None, :, None].expand(batch, heads, -1, size))


def _put_back(whole_BLD: Tensor, kept_BKD: Tensor, kept_BK: Tensor | None) -> Tensor:
    if kept_BK is None:
        return kept_BKD
    return put_rows(whole_BLD, kept_BK, kept_BKD.to(whole_BLD.dtype))
