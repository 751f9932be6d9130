"""Precision plans on a GPU: the compiler's own passes, and FP8 on its matrix units."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from tests.tiny import tiny_plan
from tintype.model import Transformer, fp8
from tintype.model.fp8 import Fp8Linear
from tintype.model.islands import rounded
from tintype.optim.adamw import AdamW, AdamWSettings
from tintype.optim.power_ema import PowerEma
from tintype.plan import Plan
from tintype.runtime.clock import Clock
from tintype.runtime.copies import Copy, cast
from tintype.seams import Route, TextTokens
from tintype.settings import IslandSettings, ModelSettings, PrecisionSettings
from tintype.train.session import build_session
from tintype.train.state import new_state
from tintype.train.update import update

pytestmark = [
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning"),
]
CUDA = torch.device("cuda")
FORWARD_ERROR, BACKWARD_ERROR = 0.05, 0.08


def relative(found: Tensor, expected: Tensor) -> float:
    found, expected = found.detach().double(), expected.detach().double()
    return float((found - expected).norm() / expected.norm())


def test_the_compiler_leaves_every_rounding_in() -> None:
    """A cast to bf16 and back it takes away, when it fuses."""
    x = torch.randn(10_000, device=CUDA)

    def twice(x: Tensor) -> Tensor:
        return rounded(rounded(x * 1.1) * 3)

    assert torch.equal(torch.compile(twice)(x), twice(x))


@pytest.mark.parametrize("position", ["bf16", "fp32"])
def test_compiled_islands_are_the_islands(position: str) -> None:
    """Compared with how far each island is from the default, compiling changes little."""
    changes = {"softmax": position, "modulation": position}
    if position == "bf16":
        changes |= {"norms": "bf16", "rope": "bf16", "timestep": "bf16"}
    settings = ModelSettings(depth=2, width=64, heads=2, mlp_ratio=2.0, patch=2)
    islands = PrecisionSettings(islands=IslandSettings.model_validate(changes))
    generator = torch.Generator(CUDA).manual_seed(0)
    x, tokens = (torch.randn(*shape, device=CUDA, generator=generator) for shape in ((4, 4, 16, 16), (4, 5, 12)))
    text = TextTokens(tokens, torch.ones(4, 5, dtype=torch.bool, device=CUDA))
    found = []
    for precision, compiled in ((islands, False), (islands, True), (PrecisionSettings(), False)):
        torch.manual_seed(0)
        model = Transformer(settings.model_copy(update={"compile": compiled}), 4, 12, precision)
        for parameter in model.parameters():
            nn.init.normal_(parameter, std=0.2)
        with torch.autocast("cuda", torch.bfloat16):
            prediction = model.to(CUDA)(x, torch.linspace(0.1, 0.9, 4, device=CUDA), text).prediction_BCHW
        prediction.float().square().mean().backward()
        found.append(prediction.float())
    eager, compiled_too, usual = found
    assert relative(compiled_too, eager) < 0.5 * relative(usual, eager)


needs_fp8 = pytest.mark.skipif(
    not (torch.cuda.is_available() and fp8.runs_on(CUDA)), reason="no GPU of compute capability 8.9 or more"
)


@needs_fp8
@pytest.mark.parametrize("tokens", [4096, 1000])  # 1000 is no multiple of 16
@pytest.mark.parametrize("compiled", [False, True])
def test_products_of_the_matrix_units_are_near_fp32(tokens: int, compiled: bool) -> None:
    torch.manual_seed(0)
    layer, plain = Fp8Linear(512, 1536).to(CUDA), nn.Linear(512, 1536, bias=False).to(CUDA)
    plain.load_state_dict(layer.state_dict())
    x, y = (torch.randn(tokens, 512, device=CUDA).requires_grad_() for _ in range(2))
    y.data.copy_(x.data)
    gradient = torch.randn(tokens, 1536, device=CUDA)
    out = (torch.compile(layer, fullgraph=True) if compiled else layer)(x)
    out.backward(gradient.bfloat16())
    expected = plain(y)
    expected.backward(gradient)
    assert 0.01 < relative(out, expected) < FORWARD_ERROR
    assert x.grad is not None and y.grad is not None and layer.weight.grad is not None and plain.weight.grad is not None
    assert 0.01 < relative(x.grad, y.grad) < BACKWARD_ERROR
    assert 0.01 < relative(layer.weight.grad, plain.weight.grad) < BACKWARD_ERROR


@needs_fp8
@pytest.mark.parametrize("compiled", ["false", "true"])
@pytest.mark.parametrize("techniques", [[], ["tread"]])
def test_twenty_steps_in_fp8_follow_those_in_bf16(compiled: str, techniques: list[str]) -> None:
    sizes = ["model.width=128", "train.batch=16", "train.steps=20", "run.device=cuda", f"model.compile={compiled}"]

    def curve(plan: Plan) -> Tensor:
        parts = build_session(plan)
        state = new_state(parts)
        return torch.stack([update(parts, state, Clock(parts.device)).losses["loss"] for _ in range(20)])

    bf16 = curve(tiny_plan(*sizes, "precision.compute=bf16", techniques=techniques))
    eight = curve(tiny_plan(*sizes, techniques=[*techniques, "fp8"]))
    assert 0 < relative(eight, bf16) < 0.02


def denoiser(kernels: str, matmul: str = "plain", compute: str = "bf16") -> Transformer:
    torch.manual_seed(0)
    settings = ModelSettings.model_validate({"depth": 3, "width": 256, "heads": 4, "patch": 2, "kernels": kernels})
    precision = PrecisionSettings.model_validate({"compute": compute, "matmul": matmul})
    found = Transformer(settings, 16, 128, precision).to(CUDA)
    for parameter in found.parameters():
        nn.init.normal_(parameter, std=0.05)
    return found


def all_gradients(model: Transformer, route: Route | None, *, calls: int = 1) -> dict[str, Tensor]:
    """Return output and gradients of the last of some equal calls."""
    generator = torch.Generator(CUDA).manual_seed(0)
    x, tokens = (torch.randn(*shape, device=CUDA, generator=generator) for shape in ((4, 16, 20, 20), (4, 20, 128)))
    lengths, t_B = (20, 7, 13, 1), torch.tensor([0.1, 0.4, 0.7, 0.9], device=CUDA)
    mask = torch.arange(20, device=CUDA) < torch.tensor(lengths, device=CUDA)[:, None]
    for _ in range(calls):
        model.zero_grad(set_to_none=True)
        with torch.autocast("cuda", torch.bfloat16, enabled=model._precision.compute == "bf16"):
            output = model(x, t_B, TextTokens(tokens, mask, lengths), route=route, taps=(1,))
        (output.prediction_BCHW.float().square().mean() + output.features[1].float().square().mean()).backward()
    return {
        "out": output.prediction_BCHW,
        **{name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None},
    }


@pytest.mark.parametrize("weight", [1.0, 16.0], ids=["bounded scores", "scores beyond the bound"])
def test_attention_of_long_images_is_as_near_to_float64_as_torchs(weight: float) -> None:
    """Weights of the norms decide whether a running maximum is needed."""
    from tintype.model.fused.attention import LONG, Inputs, attend

    torch.manual_seed(0)
    heads, size, tokens, words = 2, 64, LONG, 40
    q, k = (weight * nn.functional.rms_norm(torch.randn(n, heads, size, device=CUDA), (size,)) for n in (tokens, words))
    image_k = weight * nn.functional.rms_norm(torch.randn_like(q), (size,))
    q, k = q.bfloat16(), torch.cat([image_k, k]).bfloat16()
    v = torch.randn(tokens + words, heads, size, device=CUDA).bfloat16()
    image, text = slice(tokens), slice(tokens, None)
    rows = (q.flatten(1), k[image].flatten(1), v[image].flatten(1), k[text].flatten(1), v[text].flatten(1))
    first, length = torch.tensor([0], device=CUDA), torch.tensor([words], device=CUDA)
    norms = torch.full((size,), weight, device=CUDA)
    found, _ = attend(Inputs(*rows, first, length, words, tokens, heads, (norms, norms, norms)))
    attention = nn.functional.scaled_dot_product_attention
    q, k, v = (one.transpose(0, 1)[None] for one in (q, k, v))
    expected = attention(q.double(), k.double(), v.double())
    fused = found.view(tokens, heads, size).transpose(0, 1)[None]
    assert relative(fused, expected) < 2 * relative(attention(q, k, v), expected) < 0.1


ROUTES = {"all tokens": None, "kept tokens": 37}


@pytest.mark.parametrize("kept", ROUTES.values(), ids=ROUTES)
@pytest.mark.parametrize("matmul", ["plain", "fp8"])
def test_fused_kernels_are_as_near_to_fp32_as_plain_operations(matmul: str, kept: int | None) -> None:
    """Both round to bf16, or to FP8, at other places: each error is one draw, and twice another is within its spread.

    The errors of one tensor are few independent ones where it is short: a norm's weight gathers those of a whole block.
    """
    route = (
        None if kept is None else Route(1, 2, torch.stack([torch.randperm(100, device=CUDA)[:kept] for _ in range(4)]))
    )
    exact = all_gradients(denoiser("plain", compute="fp32"), route)
    plain = all_gradients(denoiser("plain", matmul), route)
    fused = all_gradients(denoiser("fused", matmul), route)
    assert fused.keys() == exact.keys()
    for name, expected in exact.items():
        assert relative(fused[name], expected) <= 2 * relative(plain[name], expected) + 1e-3, name


@pytest.mark.parametrize("matmul", ["plain", "fp8"])
def test_a_graph_gives_the_same_bits_and_so_does_a_second_call(matmul: str) -> None:
    """The first call runs without a graph, the second captures one, the third replays it."""
    once, twice, thrice = (all_gradients(denoiser("fused", matmul), None, calls=calls) for calls in (1, 2, 3))
    for name, expected in once.items():
        assert torch.equal(twice[name], expected) and torch.equal(thrice[name], expected), name


def test_a_graph_reads_changed_weights_and_adds_up_micro_batches() -> None:
    """Gradients of two passes without a reset are twice those of one; a changed weight is cast before the graph."""
    model = denoiser("fused")
    first = all_gradients(model, None, calls=3)
    weight = model.blocks[0].down_proj.weight  # type: ignore[union-attr]
    with torch.no_grad():
        weight.mul_(2)  # type: ignore[operator]
    second = all_gradients(model, None)
    assert not torch.equal(first["out"], second["out"])
    with torch.no_grad():
        weight.mul_(0.5)  # type: ignore[operator]
    assert torch.equal(all_gradients(model, None)["out"], first["out"])
    kept = {name: parameter.grad.clone() for name, parameter in model.named_parameters() if parameter.grad is not None}
    zero_grad, model.zero_grad = model.zero_grad, lambda set_to_none=True: None  # type: ignore[method-assign]
    both = all_gradients(model, None)
    model.zero_grad = zero_grad  # type: ignore[method-assign]
    for name, once in kept.items():
        assert torch.equal(both[name], 2 * once), name


def test_two_runs_of_a_seed_end_with_the_same_bits() -> None:
    """Compiled text encoder, fused blocks, graphs and the optimizer of one pass."""
    found = []
    for _ in range(2):
        on_gpu = ("run.device=cuda", "precision.compute=bf16", "model.compile=true")
        plan = tiny_plan(*on_gpu, "model.width=64", "model.heads=2", "model.kernels=fused")
        parts = build_session(plan)
        state = new_state(parts)
        for _ in range(12):
            update(parts, state, Clock(parts.device))
        found.append({name: tensor.clone() for name, tensor in state.tensors().items()})
    assert found[0].keys() == found[1].keys()
    assert all(torch.equal(found[0][name], found[1][name]) for name in found[0])


def test_adamw_in_one_pass_is_torchs_on_clipped_gradients() -> None:
    """Same moments and weights but for the last bits; a skipped step moves nothing."""
    shapes = [(1000, 77), (3,), (1 << 15,), (70_001,)]
    own, theirs = (
        [
            nn.Parameter(torch.randn(*shape, device=CUDA, generator=torch.Generator(CUDA).manual_seed(i)))
            for i, shape in enumerate(shapes)
        ]
        for _ in range(2)
    )
    settings = AdamWSettings(lr=1e-2, weight_decay=0.1)
    fused, plain = (
        settings.build([(str(i), p) for i, p in enumerate(own)]),
        settings.build([(str(i), p) for i, p in enumerate(theirs)]),
    )
    factor = torch.tensor(0.3, device=CUDA)
    for step in range(5):
        skipped = torch.tensor(float(step == 2), device=CUDA)
        for mine, other in zip(own, theirs, strict=True):
            other.grad = torch.randn_like(other)
            mine.grad = other.grad.clone()
            other.grad *= factor
        fused.gradient_factor, fused.found_inf, plain.found_inf = factor, skipped, skipped  # type: ignore[attr-defined]
        before = own[0].clone()
        fused.step()
        plain.step()
        assert torch.equal(before, own[0]) == bool(skipped)
    for mine, other in zip(own, theirs, strict=True):
        assert relative(mine, other) < 1e-6
        for slot in ("exp_avg", "exp_avg_sq", "step"):
            assert relative(fused.state[mine][slot], plain.state[other][slot]) < 1e-6, slot


def test_the_optimizers_pass_moves_the_averages_and_writes_the_copies() -> None:
    """An average is the plain one but for the last bits; a copy is the weight rounded to nearest, bit for bit."""
    found = []
    for one_pass in (True, False):
        generator = torch.Generator(CUDA).manual_seed(0)
        weights = {
            str(shape): nn.Parameter(torch.randn(*shape, device=CUDA, generator=generator))
            for shape in ((1000, 77), (24,), (70_001,))
        }
        optimizer = AdamWSettings(lr=1e-2).build(weights.items())
        assert isinstance(optimizer, AdamW) and optimizer.clips
        optimizer.clips = one_pass
        average = PowerEma((0.05, 0.1), weights)
        optimizer.copies = [Copy(one, torch.empty_like(one, dtype=torch.bfloat16)) for one in weights.values()]
        cast(optimizer.copies)
        for copy in optimizer.copies:
            copy.mark_fresh()
        for step in range(4):
            for one in weights.values():
                one.grad = torch.randn(one.shape, device=CUDA, generator=generator)
            skipped = torch.tensor(float(step == 2), device=CUDA)
            optimizer.gradient_factor, optimizer.found_inf = torch.ones((), device=CUDA), skipped
            optimizer.averaging = average.begin(skipped)
            optimizer.step()
            optimizer.averaging.finish()
            assert all(copy.fresh == one_pass for copy in optimizer.copies)
        if one_pass:
            assert all(torch.equal(copy.values, copy.weight.bfloat16()) for copy in optimizer.copies)
        found.append(average.tensors())
    assert all(relative(found[0][name], found[1][name]) < 1e-6 for name in found[1])


@pytest.mark.parametrize("techniques", [[], ["muon"], ["ema"], ["tread"]], ids=str)
def test_copies_have_the_weights_numbers_after_every_step(techniques: list[str]) -> None:
    """Fused blocks with and without graphs, two micro-batches a step, and weights loaded in between."""
    on_gpu = ("run.device=cuda", "precision.compute=bf16", "model.width=64", "model.heads=2", "model.kernels=fused")
    parts = build_session(tiny_plan(*on_gpu, "train.accumulate=2", techniques=techniques))
    state = new_state(parts)
    for step in range(6):
        update(parts, state, Clock(parts.device))
        if step == 3:
            state.load({name: tensor.clone() for name, tensor in state.tensors().items()}, state.scalars())
        for copy in parts.denoiser.copies():
            assert not copy.fresh or torch.equal(copy.values, copy.weight.bfloat16()), step
    assert len(parts.denoiser.copies()) == 7 * parts.plan.model.depth
