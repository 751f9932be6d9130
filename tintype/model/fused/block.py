"""A denoiser block as one autograd function. The block's plain form is `model.transformer.Block.forward`.

B: samples, L: image tokens, R = B L: rows, D: width, F: inner width of the MLP, N: text tokens of all samples.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from tintype.model.attention import Attention
from tintype.model.fused.attention import Gradients, Inputs, attend, attend_back
from tintype.model.fused.gelu_gate import gelu_gate, gelu_gate_back
from tintype.model.fused.heads import norm_heads, norm_heads_back
from tintype.model.fused.norms import Stats, add_gated, add_gated_back, norm, norm_back
from tintype.model.fused.products import (
    E4M3,
    E5M2,
    Operand,
    Weight,
    input_gradient,
    product,
    project,
    quantised,
    weight_gradient,
)
from tintype.model.layers import Modulation
from tintype.model.packing import PackedKeyValue, PackedText, Places
from tintype.runtime.copies import Copy


class Parameters(NamedTuple):
    """A block's parameters that have gradients, in the order of the returned gradients."""

    norm_q: Tensor
    norm_k: Tensor
    norm_text: Tensor
    qkv: Tensor
    text_kv: Tensor
    out: Tensor
    gate: Tensor
    up: Tensor
    down: Tensor


class Matrices:
    """A block's matrices in the form that products read; also the modulation's matrix if it is multiplied in bf16."""

    def __init__(self, parameters: Parameters, modulation: Tensor | None, fp8: bool) -> None:
        self.modulation = None if modulation is None else Weight([modulation], fp8=False)
        self.qkv = Weight([parameters.qkv], fp8)
        self.text_kv = Weight([parameters.text_kv], fp8)
        self.out = Weight([parameters.out], fp8)
        self.gate_up = Weight([parameters.gate, parameters.up], fp8)
        self.down = Weight([parameters.down], fp8)

    def refresh(self) -> None:
        for weight in self._all():
            weight.refresh()

    def copies(self) -> list[Copy]:
        return [copy for weight in self._all() for copy in weight.copies]

    def _all(self) -> tuple[Weight, ...]:
        of_block = (self.qkv, self.text_kv, self.out, self.gate_up, self.down)
        return of_block if self.modulation is None else (self.modulation, *of_block)


@dataclass(frozen=True)
class Setting:
    """All inputs of a block except the tensors that have gradients."""

    weights: Matrices
    fp8: bool
    heads: int
    tokens: int
    table: Tensor | None
    """Rotation factors [1 or B, L, 2, head size]."""
    places: Places

    def forward_type(self, stream: torch.dtype) -> torch.dtype:
        return E4M3 if self.fp8 else stream

    def backward_type(self, stream: torch.dtype) -> torch.dtype:
        """Return the dtype of gradients in products. With FP8, it is e5m2, which has the wider range."""
        return E5M2 if self.fp8 else stream


class FusedBlock:
    """Runs the fused kernels with the weights of a block."""

    def __init__(
        self, modulation: Modulation, attention: Attention, gate: nn.Linear, up: nn.Linear, down: nn.Linear, fp8: bool
    ) -> None:
        self._modulation, self._attention, self._gate, self._up, self._down = modulation, attention, gate, up, down
        self.fp8 = fp8
        rounded = None if modulation.position == "fp32" else modulation.lin.weight
        self.weights = Matrices(self.parameters, rounded, fp8)

    @property
    def parameters(self) -> Parameters:
        """Return the layers' current parameters. While a graph is captured, they differ from the usual parameters."""
        attention, out = self._attention, self._attention.to_out[0]
        assert isinstance(out, nn.Linear)
        norms = (attention.norm_q.weight, attention.norm_k.weight, attention.norm_added_k.weight)
        layers = (attention.img_qkv_proj, attention.txt_kv_proj, out, self._gate, self._up, self._down)
        return Parameters(*norms, *(layer.weight for layer in layers))

    def read_text(self, text: PackedText) -> PackedKeyValue:
        self.weights.refresh()
        _, kv_N2D, key_ND = _read_text(text.rows_NC, self.parameters, self._setting(text.places))
        return PackedKeyValue(key_ND, kv_N2D[:, key_ND.shape[1] :], text.places)

    def run(self, token_BLD: Tensor, text: PackedText | PackedKeyValue, vector_BD: Tensor, table: Tensor) -> Tensor:
        self.weights.refresh()
        setting = self._setting(text.places, token_BLD.shape[1], table)
        token_BLD, six_B6D = token_BLD.contiguous(), self._modulate(vector_BD).contiguous()
        if isinstance(text, PackedText) and torch.is_grad_enabled():
            inputs = (token_BLD, text.rows_NC, six_B6D, *self.parameters, setting)
            out_BLD: Tensor = _Block.apply(*inputs)
            return out_BLD
        key_value = self.read_text(text) if isinstance(text, PackedText) else text
        return _forward(token_BLD, key_value.key_ND, key_value.value_ND, six_B6D, self.parameters, setting)[0]

    def _modulate(self, vector_BD: Tensor) -> Tensor:
        """Return shifts, scales and gates as [B, 6 D]."""
        if self.weights.modulation is None:
            six_B6D: Tensor = self._modulation(vector_BD)
            return six_B6D
        layer, activated_BD = self._modulation.lin, nn.functional.silu(vector_BD).bfloat16()
        return project(activated_BD, self.weights.modulation, layer.weight, layer.bias)

    def _setting(self, places: Places, tokens: int = 0, table: Tensor | None = None) -> Setting:
        return Setting(self.weights, self.fp8, self._attention.heads, tokens, table, places)


class Trace(NamedTuple):
    """Tensors of the forward pass that the backward pass needs."""

    normed: Tensor
    normed_scale: Tensor
    mean: Tensor
    root: Tensor
    qkv: Tensor
    text: Tensor
    text_scale: Tensor
    text_kv: Tensor
    q_k: Tensor
    text_k: Tensor
    seen: Tensor
    seen_operand: Tensor
    seen_scale: Tensor
    log_sum: Tensor
    attended: Tensor
    stream: Tensor
    normed_2: Tensor
    normed_2_scale: Tensor
    mean_2: Tensor
    root_2: Tensor
    gate_up: Tensor
    hidden: Tensor
    hidden_scale: Tensor
    projected: Tensor


def _read_text(text_ND: Tensor, parameters: Parameters, setting: Setting) -> tuple[Operand, Tensor, Tensor]:
    """Return the text as an operand, its packed keys and values [N, 2 D], and the keys after their norm."""
    text = _operand(text_ND, setting.forward_type(text_ND.dtype))
    kv_N2D = product(text, setting.weights.text_kv)
    return text, kv_N2D, norm_heads(kv_N2D, (parameters.norm_text,), setting.heads, 1, None)[0]


def _forward(
    token_BLD: Tensor, text_k_ND: Tensor, text_v_ND: Tensor, six: Tensor, parameters: Parameters, setting: Setting
) -> tuple[Tensor, dict[str, Tensor]]:
    """Return the token stream after the block, and the tensors of the trace except those of the text."""
    weights, width, kind = setting.weights, token_BLD.shape[-1], setting.forward_type(token_BLD.dtype)
    _, normed, stats = norm(token_BLD, six, 0, kind)
    qkv_R3D = product(normed, weights.qkv)
    q_k = norm_heads(qkv_R3D, (parameters.norm_q, parameters.norm_k), setting.heads, setting.tokens, setting.table)
    seen_RD, log_sum = attend(_inputs(q_k, qkv_R3D, text_k_ND, text_v_ND, parameters, setting))
    seen = _operand(seen_RD, kind)
    attended_RD = product(seen, weights.out)
    stream_BLD, normed_2, stats_2 = norm(token_BLD, six, 3 * width, kind, attended_RD, 2 * width)
    gate_up_R2F = product(normed_2, weights.gate_up)
    hidden = gelu_gate(gate_up_R2F, kind)
    projected_RD = product(hidden, weights.down)
    trace = {
        "normed": normed.values_RC, "normed_scale": normed.scale_R, "mean": stats.mean_R, "root": stats.root_R,
        "qkv": qkv_R3D, "q_k": q_k, "text_k": text_k_ND, "seen": seen_RD, "seen_operand": seen.values_RC,
        "seen_scale": seen.scale_R, "log_sum": log_sum, "attended": attended_RD, "stream": stream_BLD,
        "normed_2": normed_2.values_RC, "normed_2_scale": normed_2.scale_R, "mean_2": stats_2.mean_R,
        "root_2": stats_2.root_R, "gate_up": gate_up_R2F, "hidden": hidden.values_RC, "hidden_scale": hidden.scale_R,
        "projected": projected_RD,
    }  # fmt: skip
    return add_gated(stream_BLD, projected_RD, six, 5 * width), trace


def _inputs(
    q_k: Tensor, qkv_R3D: Tensor, text_k_ND: Tensor, text_v_ND: Tensor, parameters: Parameters, setting: Setting
) -> Inputs:
    places, v_RD = setting.places, qkv_R3D[:, 2 * q_k.shape[2] :]
    return Inputs(
        q_k[0],
        q_k[1],
        v_RD,
        text_k_ND,
        text_v_ND,
        places.first_B,
        places.length_B,
        places.longest,
        setting.tokens,
        setting.heads,
        parameters[:3],
    )


def _operand(x_RC: Tensor, kind: torch.dtype) -> Operand:
    return Operand(x_RC, x_RC.new_empty(0)) if kind == x_RC.dtype else quantised(x_RC, kind)


class _Block(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, token_BLD: Tensor, text_ND: Tensor, six: Tensor, *rest: Any) -> Tensor:
        parameters, setting = Parameters(*rest[:-1]), rest[-1]
        width = token_BLD.shape[-1]
        text, kv_N2D, text_k_ND = _read_text(text_ND, parameters, setting)
        out_BLD, trace = _forward(token_BLD, text_k_ND, kv_N2D[:, width:], six, parameters, setting)
        whole = Trace(text=text.values_RC, text_scale=text.scale_R, text_kv=kv_N2D, **trace)
        ctx.save_for_backward(token_BLD, six, *parameters, *whole)
        ctx.setting = setting
        return out_BLD

    @staticmethod
    def backward(ctx: Any, d_out_BLD: Tensor) -> tuple[Tensor | None, ...]:
        saved = ctx.saved_tensors
        token_BLD, six, parameters = saved[0], saved[1], Parameters(*saved[2 : 2 + len(Parameters._fields)])
        return _backward(d_out_BLD.contiguous(), token_BLD, six, parameters, Trace(*saved[-len(Trace._fields) :]), ctx)


def _backward(
    d_out_BLD: Tensor, token_BLD: Tensor, six: Tensor, parameters: Parameters, trace: Trace, ctx: Any
) -> tuple[Tensor | None, ...]:
    setting: Setting = ctx.setting
    weights, width, kind = setting.weights, token_BLD.shape[-1], setting.backward_type(token_BLD.dtype)
    d_six = six.new_empty(six.shape, dtype=torch.float32)

    d_projected = add_gated_back(d_out_BLD, trace.projected, six, 5 * width, d_six, kind)
    d_hidden_RF = input_gradient(d_projected, weights.down)
    d_down = weight_gradient(d_projected, Operand(trace.hidden, trace.hidden_scale), parameters.down.dtype)
    d_both = gelu_gate_back(d_hidden_RF, trace.gate_up, kind)
    d_normed_2 = input_gradient(d_both, weights.gate_up)
    d_gate_up = weight_gradient(d_both, Operand(trace.normed_2, trace.normed_2_scale), parameters.gate.dtype)
    d_stream_BLD, d_attended = norm_back(
        d_normed_2, d_out_BLD, trace.stream, six, 3 * width, Stats(trace.mean_2, trace.root_2), d_six, kind,
        trace.attended, 2 * width,
    )  # fmt: skip

    d_seen_RD = input_gradient(d_attended, weights.out)
    d_out = weight_gradient(d_attended, Operand(trace.seen_operand, trace.seen_scale), parameters.out.dtype)
    d_q_k, d_text_k = torch.empty_like(trace.q_k), torch.empty_like(trace.text_k)
    d_qkv, d_text_kv = torch.empty_like(trace.qkv), torch.empty_like(trace.text_kv)
    d_text_k[setting.places.dense :].zero_()
    d_text_kv[setting.places.dense :].zero_()
    d_inputs = Gradients(d_q_k[0], d_q_k[1], d_qkv[:, 2 * width :], d_text_k, d_text_kv[:, width:])
    inputs = _inputs(trace.q_k, trace.qkv, trace.text_k, trace.text_kv[:, width:], parameters, setting)
    attend_back(inputs, d_seen_RD, trace.seen, trace.log_sum, d_inputs)
    heads, of_image = setting.heads, (parameters.norm_q, parameters.norm_k)
    d_norms = norm_heads_back(d_q_k, trace.qkv, of_image, heads, setting.tokens, setting.table, d_qkv)
    d_norm_text = norm_heads_back(d_text_k[None], trace.text_kv, (parameters.norm_text,), heads, 1, None, d_text_kv)

    d_qkv_operand, d_text_operand = _operand(d_qkv, kind), _operand(d_text_kv, kind)
    d_text_ND = input_gradient(d_text_operand, weights.text_kv) if ctx.needs_input_grad[1] else None
    text = Operand(trace.text, trace.text_scale)
    d_text_weight = weight_gradient(d_text_operand, text, parameters.text_kv.dtype)
    d_normed = input_gradient(d_qkv_operand, weights.qkv)
    d_qkv_weight = weight_gradient(d_qkv_operand, Operand(trace.normed, trace.normed_scale), parameters.qkv.dtype)
    stats = Stats(trace.mean, trace.root)
    d_token_BLD, _ = norm_back(d_normed, d_stream_BLD, token_BLD, six, 0, stats, d_six, d_normed.dtype)
    d_gate, d_up = d_gate_up.split([len(parameters.gate), len(parameters.up)])
    of_norms = [one.to(parameters.norm_q.dtype) for one in (*d_norms, *d_norm_text)]
    of_matrices = (d_qkv_weight, d_text_weight, d_out, d_gate, d_up, d_down)
    return d_token_BLD, d_text_ND, d_six.to(six.dtype), *of_norms, *of_matrices, None
