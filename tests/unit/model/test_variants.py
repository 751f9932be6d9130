"""Blocks that are not PRX's: each variant against its formula written out, and where the kernels and exports stop."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import gelu, layer_norm, linear, scaled_dot_product_attention, silu

from tests.bounds import distance
from tests.tiny import tiny_plan
from tests.tiny_export import latent_plan, write_run
from tintype.errors import UserError
from tintype.export.pipeline_folder import export_pipeline
from tintype.export.trained import export_file
from tintype.model import Transformer
from tintype.model.fused import why_plain
from tintype.model.layers import patchify, rotate, rotation_table, sinusoid, unpatchify
from tintype.plan import Plan
from tintype.seams import Route, TextTokens
from tintype.settings import ModelSettings, PrecisionSettings
from tintype.techniques.shared_adaln import matched_ratio
from tintype.train.session import build_session

SETTINGS = ModelSettings(depth=3, width=32, heads=2, mlp_ratio=2.0, patch=2)
CHANNELS, TEXT = 4, 12
VARIANTS: dict[str, dict[str, Any]] = {
    "gate": {"gate": "silu"},
    "qk_norm": {"qk_norm": False},
    "shared_adaln": {"shared_adaln": True},
    "registers": {"registers": 3},
    "value_residual": {"value_residual": True},
}
ALL = {key: value for one in VARIANTS.values() for key, value in one.items()}


def random_model(**changes: Any) -> Transformer:
    torch.manual_seed(0)
    model = Transformer(SETTINGS.model_copy(update=changes), CHANNELS, TEXT).double()
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.2)
    return model


def inputs(side: int = 8) -> tuple[Tensor, Tensor, TextTokens]:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(2, CHANNELS, side, side, generator=generator).double()
    tokens = torch.randn(2, 5, TEXT, generator=generator).double()
    return x, torch.tensor([0.2, 0.7]).double(), TextTokens(tokens, torch.ones(2, 5, dtype=torch.bool))


def rms(x: Tensor, weight: Tensor) -> Tensor:
    return torch.nn.functional.rms_norm(x, weight.shape, weight, 1e-6)


def heads(x: Tensor, parts: int) -> Tensor:
    b, length, _ = x.shape
    return x.view(b, length, parts, 2, 16).permute(2, 0, 3, 1, 4)


def oracle(model: Transformer, x: Tensor, t: Tensor, text: TextTokens) -> Tensor:
    """The whole network with every variant, from the weights by name."""
    settings, w = model.settings, dict(model.named_parameters())
    wave = sinusoid(t, 256, 10000, 1000.0).double()
    vector = linear(wave, w["time_in.in_layer.weight"], w["time_in.in_layer.bias"])
    vector = linear(silu(vector), w["time_in.out_layer.weight"], w["time_in.out_layer.bias"])
    token = linear(patchify(x, 2), w["img_in.weight"], w["img_in.bias"])
    count = token.shape[1]
    rows = x.shape[-1] // 2
    table = rotation_table(x.shape[-2] // 2, rows, 16, 10000, x.device).double()[None, None]
    if settings.registers:
        own = w["registers"].view(settings.registers, 32)
        token = torch.cat([token, own.expand(len(x), -1, -1)], 1)
    words = linear(text.tokens_BLC, w["txt_in.weight"], w["txt_in.bias"])
    first = torch.zeros(())
    for index in range(3):
        at = f"blocks.{index}."
        if settings.shared_adaln:
            shared = linear(silu(vector), w["shared_modulation.lin.weight"], w["shared_modulation.lin.bias"])
            six = shared + w[at + "modulation.offset"]
        else:
            six = linear(silu(vector), w[at + "modulation.lin.weight"], w[at + "modulation.lin.bias"])
        shift_a, scale_a, gate_a, shift_m, scale_m, gate_m = six[:, None].chunk(6, -1)
        seen = layer_norm(token, (32,), eps=1e-6) * (1 + scale_a) + shift_a
        query, key, value = heads(linear(seen, w[at + "attention.img_qkv_proj.weight"]), 3)
        if settings.value_residual:
            first = value if index == 0 else first
            if index:
                mix = w[at + "attention.value_mix"]
                value = mix[0] * first + mix[1] * value
        text_key, text_value = heads(linear(words, w[at + "attention.txt_kv_proj.weight"]), 2)
        if settings.qk_norm:
            query, key = rms(query, w[at + "attention.norm_q.weight"]), rms(key, w[at + "attention.norm_k.weight"])
            text_key = rms(text_key, w[at + "attention.norm_added_k.weight"])
        query, key = (torch.cat([rotate(one[:, :, :count], table), one[:, :, count:]], 2) for one in (query, key))
        out = scaled_dot_product_attention(query, torch.cat([text_key, key], 2), torch.cat([text_value, value], 2))
        out = linear(out.transpose(1, 2).flatten(2), w[at + "attention.to_out.0.weight"])
        token = token + gate_a * out
        seen = layer_norm(token, (32,), eps=1e-6) * (1 + scale_m) + shift_m
        gate = linear(seen, w[at + "gate_proj.weight"])
        gate = silu(gate) if settings.gate == "silu" else gelu(gate, approximate="tanh")
        hidden = gate * linear(seen, w[at + "up_proj.weight"])
        token = token + gate_m * linear(hidden, w[at + "down_proj.weight"])
    two = linear(silu(vector), w["final_layer.adaLN_modulation.1.weight"], w["final_layer.adaLN_modulation.1.bias"])
    shift, scale = two[:, None].chunk(2, -1)
    last = layer_norm(token[:, :count], (32,), eps=1e-6) * (1 + scale) + shift
    flat = linear(last, w["final_layer.linear.weight"], w["final_layer.linear.bias"])
    return unpatchify(flat, 2, x.shape[-2] // 2, rows)


@pytest.mark.parametrize("name", ["none", *VARIANTS, "all"])
def test_each_variant_is_its_formula(name: str) -> None:
    model = random_model(**(ALL if name == "all" else VARIANTS.get(name, {})))
    x, t, text = inputs()
    x = x[:, :, :6]  # height and width differ
    with torch.no_grad():
        found, expected = model(x, t, text).prediction_BCHW, oracle(model, x, t, text)
    assert distance(found, expected) < 1e-5, "the tables of rotation and time are fp32"
    assert float(expected.abs().max()) > 0.1


@pytest.mark.parametrize("name", VARIANTS)
def test_checkpointed_cached_and_routed_blocks_give_the_same(name: str) -> None:
    """A route that keeps all tokens in order is none; features are those of the image tokens."""
    model, (x, t, text) = random_model(**VARIANTS[name]), inputs()
    plain = model(x, t, text, taps=[1])
    kept = torch.arange(16).expand(2, -1)
    routed = model(x, t, text, route=Route(1, 2, kept), taps=[1])
    assert distance(routed.prediction_BCHW, plain.prediction_BCHW) < 1e-9
    assert plain.features[1].shape == routed.features[1].shape == (2, 16, 32)
    assert distance(routed.features[1], plain.features[1]) < 1e-9
    again = random_model(**VARIANTS[name], activation_checkpointing=True)
    recomputed = again(x, t, text).prediction_BCHW
    assert torch.equal(recomputed, plain.prediction_BCHW)
    recomputed.square().mean().backward()
    assert all(one.grad is not None and bool(one.grad.any()) for one in again.parameters())
    with torch.no_grad():
        cached = model(x, t, model.read_text(text)).prediction_BCHW
    assert distance(cached, plain.prediction_BCHW) < 1e-9


@pytest.mark.parametrize("name", ["registers", "value_residual"])
def test_a_route_takes_the_kept_tokens_own_values_and_all_registers(name: str) -> None:
    """In another order they are the same tokens, so the same features."""
    model, (x, t, text) = random_model(**VARIANTS[name]), inputs()
    order = torch.tensor([3, 0, 7, 12])
    with torch.no_grad():
        one = model(x, t, text, route=Route(1, 2, order.expand(2, -1)), taps=[1])
        other = model(x, t, text, route=Route(1, 2, order.flip(0).expand(2, -1)), taps=[1])
        none = model(x, t, text, route=Route(1, 2, order[:0].expand(2, -1)))
    assert distance(one.features[1], other.features[1].flip(1)) < 1e-9
    assert distance(one.prediction_BCHW, other.prediction_BCHW) < 1e-9
    assert bool(none.prediction_BCHW.isfinite().all())


def count(settings: ModelSettings) -> int:
    with torch.device("meta"):
        return sum(parameter.numel() for parameter in Transformer(settings, 16, 2304).parameters())


@pytest.mark.parametrize("name", VARIANTS)
def test_arms_have_as_many_weights_as_prx(name: str) -> None:
    usual = ModelSettings()
    changed = usual.model_copy(update=VARIANTS[name])
    if name == "shared_adaln":
        assert count(changed) < 0.8 * count(usual), "the control: without wider MLPs"
        changed = changed.model_copy(update={"mlp_ratio": matched_ratio(usual)})
        assert changed.hidden % 16 == 0
    assert count(changed) == pytest.approx(count(usual), rel=1e-3)


@pytest.mark.parametrize("name", VARIANTS)
def test_the_kernels_leave_it_to_plain_operations_or_refuse_it_by_name(name: str) -> None:
    settings = ModelSettings().model_copy(update=VARIANTS[name])
    assert f"model.{name}" in why_plain(settings, PrecisionSettings(), torch.device("cuda"))
    model = Transformer(SETTINGS.model_copy(update={**VARIANTS[name], "kernels": "fused"}), CHANNELS, TEXT)
    x, t, text = inputs()
    with pytest.raises(UserError, match=rf"model\.kernels is fused, but model\.{name} .*--set model\.kernels=auto"):
        model(x.float(), t.float(), TextTokens(text.tokens_BLC.float(), text.mask_BL))


def test_no_form_of_export_takes_a_variant(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", latent_plan("t5", "flux1", "model.gate=silu", "model.registers=2"))
    words = r"(?s)model\.gate.*model\.registers.*--set model\.gate=gelu"
    with pytest.raises(UserError, match=words):
        export_pipeline(run, tmp_path / "out")
    with pytest.raises(UserError, match=words):
        export_file(run, tmp_path / "one.safetensors")


def test_values_of_a_first_block_that_tokens_skip_are_refused() -> None:
    with pytest.raises(UserError, match=r"value_residual needs the first block's values"):
        tiny_plan("model.value_residual=true", techniques=["tread:first=1,last=2"])
    assert isinstance(tiny_plan("model.value_residual=true", techniques=["tread:first=2,last=2"]), Plan)


def test_variants_at_their_defaults_add_no_weights() -> None:
    given = [f"model.{key}={value}" for key, value in (("gate", "gelu"), ("qk_norm", "true"), ("registers", 0))]
    assert tiny_plan(*given).hash == tiny_plan().hash
    names = {name for name, _ in build_session(tiny_plan()).denoiser.named_parameters()}
    assert not any("offset" in name or "registers" in name or "value_mix" in name for name in names)
