"""Islands against torch's own operations on bf16 tensors, taken one by one."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import silu

from tests.bounds import distance, network_bound
from tests.tiny import tiny_plan
from tintype.errors import UserError
from tintype.model import Transformer
from tintype.model.islands import attend, held, project, rounded
from tintype.model.layers import LayerNorm, RMSNorm, VectorMLP, add_gated, modulate, rotate, rotation_table, sinusoid
from tintype.plan import diff
from tintype.runtime.clock import Clock
from tintype.seams import TextTokens
from tintype.settings import IslandSettings, ModelSettings, PrecisionSettings
from tintype.train.parts import build_model
from tintype.train.session import build_session
from tintype.train.state import new_state
from tintype.train.update import update

SETTINGS = ModelSettings(depth=2, width=32, heads=2, mlp_ratio=2.0, patch=2)
CHANGED = {"norms": "bf16", "softmax": "bf16", "rope": "bf16", "timestep": "bf16", "modulation": "bf16"}
ALL_CHANGES = [*CHANGED.items(), ("softmax", "fp32"), ("modulation", "fp32")]


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def on_grid(x: Tensor) -> bool:
    return torch.equal(x, x.bfloat16().to(x.dtype))


def test_rounding_is_that_of_a_cast_for_every_kind_of_number() -> None:
    special = torch.tensor([0.0, -0.0, math.inf, -math.inf, 1 + 2**-8, 1 + 3 * 2**-8, 3.4e38, 1e-40, -1e-45, 65504.0])
    x = torch.cat([special, normal(1000) * torch.logspace(-40, 38, 1000)])
    assert torch.equal(rounded(x), x.bfloat16().float())
    every_nan = torch.tensor([0x7FFFFFFF, 0x7FC00000, 0x7F800001, -1], dtype=torch.int32).view(torch.float32)
    assert rounded(every_nan).isnan().all()


def test_the_gradient_is_rounded_as_that_of_a_bf16_tensor() -> None:
    x = normal(50).requires_grad_()
    (rounded(x) * normal(50, seed=1)).sum().backward()
    assert x.grad is not None and torch.equal(x.grad, normal(50, seed=1).bfloat16().float())


def same_but_for_the_order_of_sums(found: Tensor, expected: Tensor) -> bool:
    """bf16's numbers, nearly all of them the same ones; a sum that falls to the other side moves its row a little."""
    close = torch.allclose(found, expected.float(), rtol=2**-6)
    return on_grid(found) and close and float((found == expected).float().mean()) > 0.8


def mean_in_bf16(x: Tensor) -> Tensor:
    """One operation is one rounding, as on a GPU; torch's kernels for CPUs round within it, each in its way."""
    return x.float().mean(-1, keepdim=True).bfloat16()


def inverse_root_in_bf16(x: Tensor) -> Tensor:
    return torch.rsqrt((x + 1e-6).float()).bfloat16()


def test_norms_in_bf16_are_torchs_bf16_operations() -> None:
    x = 3 * normal(40, 96) + 1
    b = x.bfloat16()
    centred = b - mean_in_bf16(b)
    expected = centred * inverse_root_in_bf16(mean_in_bf16(centred.square()))
    assert same_but_for_the_order_of_sums(LayerNorm(96, "bf16")(x), expected)
    norm = RMSNorm(96, "bf16")
    nn.init.normal_(norm.weight)
    scale = inverse_root_in_bf16(mean_in_bf16(b.square()))
    assert same_but_for_the_order_of_sums(norm(x), b * scale * norm.weight.bfloat16())
    assert norm(b).dtype == torch.bfloat16
    exact = torch.nn.functional.layer_norm(x.double(), (96,), eps=1e-6)
    error = (LayerNorm(96, "bf16")(x) - exact).abs().max()
    assert 1e-3 < error < 0.1, "bf16, and still a norm"


@pytest.mark.parametrize("position", ["fp32", "bf16"])
def test_norms_of_next_to_nothing_are_bounded_by_their_eps(position: str) -> None:
    """The mean square of numbers of 1e-3 is 1e-6, as is eps."""
    small = 1e-3 * torch.tensor([1.0, -1.0]).repeat(8)
    for norm in (RMSNorm(16, position), LayerNorm(16, position)):
        assert torch.allclose(norm(small), small.sign() * 0.5**0.5, rtol=1e-2)
        assert not norm(torch.zeros(16)).any()


def test_rope_in_bf16_has_its_table_and_its_rotation_rounded() -> None:
    x, table = normal(2, 3, 16, 8), rotation_table(4, 4, 8, 100, torch.device("cpu"))[None, None]
    b, cosine, sine = x.bfloat16(), *table.bfloat16().unbind(-2)
    swapped = b.unflatten(-1, (-1, 2)).flip(-1).flatten(-2)
    assert torch.equal(rotate(x, table.bfloat16(), "bf16"), (b * cosine + swapped * sine).float())
    model = Transformer(SETTINGS, 4, 12, precision("rope", "bf16"))
    assert model._rotation(4, 4, torch.device("cpu")).dtype == torch.bfloat16


@pytest.mark.usefixtures("other_rounding")
def test_the_rounded_timestep_is_told_apart_on_128_levels_only() -> None:
    torch.manual_seed(0)
    model = Transformer(SETTINGS, 4, 12, precision("timestep", "bf16"))
    t = torch.linspace(0.5, 1, 1001)[:-1]
    wave = sinusoid(t.bfloat16().float(), 256, 10000, 1000.0)
    assert len(wave.unique(dim=0)) == 129  # 128 from 0.5 on, and what is rounded up to 1
    assert torch.equal(model._embed_time(t), model.time_in(wave))
    with pytest.raises(TypeError, match="float32"):
        model._embed_time(t.bfloat16())


def test_modulation_in_bf16_is_torchs_bf16_operations_and_in_fp32_none_is_rounded() -> None:
    x, scale, shift, gate = normal(2, 9, 16), *(normal(2, 1, 16, seed=seed) for seed in (1, 2, 3))
    b, c, h, g = (value.bfloat16() for value in (x, scale, shift, gate))
    assert torch.equal(modulate(x, scale, shift, "bf16"), ((1 + c) * b + h).float())
    assert torch.equal(add_gated(x, gate, x, "bf16"), (b + g * b).float())
    assert torch.equal(modulate(b, c, h, "fp32"), (1 + c.float()) * b.float() + h.float())
    assert torch.equal(add_gated(b, g, b, "fp32"), (b.float() + g.float() * b.float()).bfloat16()), (
        "the stream stays bf16"
    )
    mlp = VectorMLP(16, 32, "bf16")
    with torch.no_grad():
        found = mlp(x)
        assert torch.equal(found, mlp.bfloat16().out_layer(silu(mlp.in_layer(b))))


def test_a_linear_layer_of_an_island_does_not_listen_to_autocast() -> None:
    layer, x = nn.Linear(16, 8), normal(3, 16)
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        found = project(x, layer, "fp32")
    assert found.dtype == torch.float32 and torch.equal(found, layer(x))
    assert project(x, layer, "bf16").dtype == torch.bfloat16


def attention_inputs() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    mask = torch.ones(2, 1, 1, 12, dtype=torch.bool)
    mask[0, :, :, :4] = False
    return 3 * normal(2, 3, 9, 8), 3 * normal(2, 3, 12, 8, seed=1), normal(2, 3, 12, 8, seed=2), mask


def exact_attention(query: Tensor, key: Tensor, value: Tensor, mask: Tensor) -> Tensor:
    score = (query.double() @ key.double().mT / math.sqrt(8)).masked_fill(~mask, -math.inf)
    return torch.softmax(score, -1) @ value.double()


def test_softmax_in_bf16_is_torchs_bf16_operations() -> None:
    query, key, value, mask = attention_inputs()
    q, k, v = (part.bfloat16() for part in (query, key, value))
    score = ((q @ k.mT) * torch.tensor(8**-0.5)).masked_fill(~mask, -math.inf)
    power = torch.exp(score - score.amax(-1, keepdim=True))
    expected = (power / power.sum(-1, keepdim=True)) @ v
    found = attend(query, key, value, mask, "bf16")
    assert torch.allclose(found, expected.float(), atol=2**-7, rtol=2**-6)
    assert float((found == expected).float().mean()) > 0.95, "each operation is rounded"
    assert 1e-3 < (found - exact_attention(query, key, value, mask)).abs().max() < 0.1
    assert on_grid(found)


def test_softmax_in_fp32_does_not_listen_to_autocast() -> None:
    query, key, value, mask = attention_inputs()
    with torch.autocast("cpu", torch.bfloat16):
        found = attend(query, key, value, mask, "fp32")
        fused = attend(query, key, value, mask, "fused")
    exact = exact_attention(query, key, value, mask)
    assert (found - exact).abs().max() < 1e-5 < 1e-3 < (fused - exact).abs().max()
    assert attend(query.bfloat16(), key.bfloat16(), value.bfloat16(), mask, "fp32").dtype == torch.bfloat16


def precision(island: str, position: str, compute: str = "bf16") -> PrecisionSettings:
    return PrecisionSettings.model_validate({"compute": compute, "islands": {island: position}})


def run(model: Transformer, autocast: bool) -> Tensor:
    text = TextTokens(normal(3, 5, 12, seed=2), torch.arange(5)[None, :] < torch.tensor([5, 2, 1])[:, None])
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        prediction: Tensor = model(normal(3, 4, 8, 8), torch.tensor([0.1, 0.5003, 0.9001]), text).prediction_BCHW
    return prediction.float()


def model_with(precision: PrecisionSettings, **settings: bool) -> Transformer:
    torch.manual_seed(0)
    model = Transformer(SETTINGS.model_copy(update=settings), 4, 12, precision)
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.2)
    return model


@pytest.mark.parametrize(("island", "position"), ALL_CHANGES)
def test_each_island_changes_the_model_by_itself_and_a_little(island: str, position: str) -> None:
    usual, changed = model_with(PrecisionSettings()), model_with(precision(island, position))
    assert set(usual.state_dict()) == set(changed.state_dict())
    before, after = run(usual, True), run(changed, True)
    as_on_a_cpu = (island, position) == ("modulation", "bf16")  # there autocast leaves nothing of it in fp32
    assert torch.equal(before, after) == as_on_a_cpu
    most = math.inf if island == "timestep" else 0.1
    assert (before - after).norm() < most * before.norm()
    if position == "bf16":  # in fp32 throughout it is the only thing that is rounded
        exact = run(usual, False)
        assert 0 < (run(model_with(precision(island, position, "fp32")), False) - exact).norm() < most * exact.norm()


@pytest.mark.parametrize("autocast", [False, True])
def test_islands_in_fp32_come_nearer_to_fp32_throughout(autocast: bool) -> None:
    exact = run(model_with(PrecisionSettings()), False)
    both = PrecisionSettings(islands=IslandSettings(softmax="fp32", modulation="fp32"))
    if autocast:
        assert (run(model_with(both), True) - exact).norm() < 0.9 * (
            run(model_with(PrecisionSettings()), True) - exact
        ).norm()
    else:
        model = model_with(both)
        assert distance(run(model, False), exact) < network_bound(model, exact)


@pytest.mark.filterwarnings("ignore:.torch.jit:DeprecationWarning")  # torch's own, when dynamo is imported
@pytest.mark.filterwarnings("ignore:The .grad attribute:UserWarning")
@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")  # dynamo's, for any Function
@pytest.mark.parametrize("position", ["bf16", "fp32"])
def test_islands_compile_without_a_break_and_recompute_to_the_same_numbers(
    position: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the compiler's own passes, which take minutes here; `tests/unit/model/test_on_gpu.py` has them."""
    from torch._dynamo.utils import counters

    changes = CHANGED if position == "bf16" else {"softmax": "fp32", "modulation": "fp32"}
    islands = PrecisionSettings(islands=IslandSettings.model_validate(changes))
    compile_block = nn.Module.compile
    monkeypatch.setattr(nn.Module, "compile", lambda self, **how: compile_block(self, backend="eager", **how))
    torch._dynamo.reset()
    counters.clear()
    gradients = []
    for settings in ({}, {"compile": True}, {"activation_checkpointing": True}):
        model = model_with(islands, **settings)
        run(model, True).square().mean().backward()
        gradients.append([parameter.grad for parameter in model.parameters()])
    assert not counters["graph_break"] and counters["stats"]["unique_graphs"] == 1
    eager, compiled, recomputed = (torch.cat([g.flatten() for g in found if g is not None]) for found in gradients)
    assert torch.equal(eager, compiled) and torch.equal(eager, recomputed)
    torch._dynamo.reset()


def test_training_and_sampling_have_the_islands_of_the_plan() -> None:
    plan = tiny_plan(techniques=["island:timestep=bf16,softmax=bf16"])
    assert diff(tiny_plan(), plan) == {
        "precision.islands.softmax": ("fused", "bf16"),
        "precision.islands.timestep": ("fp32", "bf16"),
    }
    for build in (build_session, build_model):
        assert build(plan).denoiser.islands == plan.precision.islands
    parts = build_session(plan)
    assert update(parts, new_state(parts), Clock(parts.device)).finite


def test_storage_in_bf16_keeps_the_islands_and_fp32_throughout_does_not() -> None:
    assignments = ("precision.compute=bf16", "precision.islands.modulation=fp32", "precision.loss_scale=8")
    stored = tiny_plan(*assignments, techniques=["bf16-storage:rounding=kahan"]).precision
    assert (stored.storage, stored.islands.modulation, stored.loss_scale) == ("bf16", "fp32", 8)
    assert tiny_plan(*assignments, techniques=["fp32"]).precision == PrecisionSettings(compute="fp32", loss_scale=8)


@pytest.mark.parametrize(
    ("techniques", "message"),
    [
        (["island"], "name an island, such as timestep=bf16; valid: norms, softmax, rope, timestep, modulation"),
        (["island:softmax=fused"], "'island' changes nothing"),
        (["island:softmax=fp32"], "'island': islands.softmax fp32 changes nothing where compute is fp32"),
        (["island:rope=fused"], "rope"),
        (["fp32"], "'fp32' changes nothing"),
    ],
)
def test_what_would_change_nothing_is_refused(techniques: list[str], message: str) -> None:
    with pytest.raises(UserError, match=message):
        tiny_plan(techniques=techniques)


def test_a_position_that_is_left_to_autocast_is_left_alone() -> None:
    x = normal(4).bfloat16()
    assert held(x, "autocast") is x and held(x, "fp32").dtype == torch.float32
