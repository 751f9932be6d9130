"""The fused block beside the plain one, in fp32, by Triton's interpreter; `test_on_gpu.py` runs the kernels."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence

import pytest
import torch
from torch import Tensor, nn

from tests.triton_interpreter import interpret_kernels

interpret_kernels()

from tintype.model import transformer  # noqa: E402
from tintype.model.fused import attention, gelu_gate, heads, products, quantise  # noqa: E402
from tintype.model.layers import FinalLayer  # noqa: E402
from tintype.model.packing import FEW_SIZES, MANY_SIZES, PackedText, pack  # noqa: E402
from tintype.model.transformer import Block, Transformer  # noqa: E402
from tintype.optim import adamw  # noqa: E402
from tintype.optim.adamw import AdamWSettings  # noqa: E402
from tintype.runtime.copies import Copy, cast  # noqa: E402
from tintype.seams import Output, Route, TextTokens  # noqa: E402
from tintype.settings import ModelSettings, PrecisionSettings  # noqa: E402
from tintype.text import words  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # numpy's, of exp where its result is infinite
CLOSE = 1e-5
"""Relative; fp32 sums of a few hundred terms in another order differ by less."""
LENGTHS = (7, 1, 5)


@pytest.fixture(autouse=True)
def fp32_on_the_cpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let the kernels run here, with the stream and the weights' copies in fp32."""
    monkeypatch.setattr(transformer, "why_plain", lambda *_: "")
    monkeypatch.setattr(Tensor, "bfloat16", lambda self: self)
    monkeypatch.setattr(products, "COPY_TYPE", torch.float32)
    monkeypatch.setattr(transformer, "_LONG_FLOPS", 0)
    yield


def model(kernels: str, depth: int = 2) -> Transformer:
    torch.manual_seed(0)
    settings = ModelSettings.model_validate(
        {"depth": depth, "width": 32, "heads": 2, "mlp_ratio": 2.0, "patch": 2, "kernels": kernels}
    )
    found = Transformer(settings, 4, 12, PrecisionSettings(compute="fp32"))
    for parameter in found.parameters():
        nn.init.normal_(parameter, std=0.2)
    return found


def text(*, with_lengths: bool) -> TextTokens:
    mask_BL = torch.arange(7) < torch.tensor(LENGTHS)[:, None]
    tokens_BLC = torch.randn(3, 7, 12, generator=torch.Generator().manual_seed(1)).requires_grad_()
    return TextTokens(tokens_BLC, mask_BL, LENGTHS if with_lengths else None)


def passes(
    kernels: str, *, with_lengths: bool, route: Route | None = None, depth: int = 2, rows: int = 6
) -> dict[str, Tensor]:
    """Return output, tapped features and all gradients, of padding none."""
    denoiser, words = model(kernels, depth), text(with_lengths=with_lengths)
    x = torch.randn(3, 4, rows, 4, generator=torch.Generator().manual_seed(2)).requires_grad_()
    output = denoiser(x, torch.tensor([0.1, 0.5, 0.9]), words, route=route, taps=(0,))
    assert isinstance(output, Output)
    (output.prediction_BCHW.square().sum() + output.features[0].square().sum()).backward()
    assert x.grad is not None and words.tokens_BLC.grad is not None
    of_weights = {name: one.grad for name, one in denoiser.named_parameters() if one.grad is not None}
    of_text = words.tokens_BLC.grad * words.mask_BL[..., None]
    return {"out": output.prediction_BCHW, "tap": output.features[0], "x": x.grad, "text": of_text, **of_weights}


def test_output_and_gradients_are_those_of_the_plain_block() -> None:
    """With padding in place, and the same as with the mask; some tokens skip a block, each with its own rotation."""
    route = Route(1, 2, torch.stack([torch.randperm(6)[:3] for _ in LENGTHS]))
    assert_same(*(passes(kernels, with_lengths=False, route=route) for kernels in ("plain", "fused")))


def test_wide_blocks_without_padding_are_the_plain_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels go other ways through the rows of wide models, and read whole tiles of tokens without a mask."""
    monkeypatch.setattr(heads, "_NARROW", 0)
    monkeypatch.setattr(gelu_gate, "_WHOLE", 0)
    for name in ("FORWARD", "BACK_KEYS", "BACK_QUERIES"):
        monkeypatch.setattr(attention, name, (16, 16, 4, 1))
    assert_same(*(passes(kernels, with_lengths=True, depth=1, rows=16) for kernels in ("plain", "fused")))


def assert_same(plain: dict[str, Tensor], fused: dict[str, Tensor]) -> None:
    assert plain.keys() == fused.keys()
    for name, expected in plain.items():
        assert bool((fused[name] - expected).norm() <= CLOSE * expected.norm()), name


@pytest.mark.parametrize("storage", [torch.float32, torch.bfloat16])
def test_the_norm_of_the_words_is_torchs(storage: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    """Small numbers, to which the number below the root matters."""
    x, weight, bias = 0.01 * torch.randn(5, 7, 24), *torch.randn(2, 24).to(storage)
    found: list[list[Tensor | None]] = []
    for reason, kind in (("the device is cpu", torch.float32), ("", storage)):
        monkeypatch.setattr(words, "why_no_kernels", lambda _, reason=reason: reason)
        norm, given = words.Norm(24).to(kind), x.clone().requires_grad_()
        norm.load_state_dict({"weight": weight, "bias": bias})
        out = norm(given)
        (out * torch.linspace(-1, 1, 24)).square().sum().backward()
        found.append([out, given.grad, norm.weight.grad, norm.bias.grad])
    for expected, fused in zip(*found, strict=True):
        assert expected is not None and fused is not None
        close = CLOSE if fused.dtype == torch.float32 else torch.finfo(storage).eps / 2  # rounded once, at the end
        assert bool((fused - expected).norm() <= close * expected.norm())


@torch.no_grad()
def test_the_final_layer_runs_without_autocast_too() -> None:
    layer, token_BLD, vector_BD = FinalLayer(32, 4, "fp32", "autocast"), torch.randn(2, 3, 32), torch.randn(2, 32)
    for parameter in layer.parameters():
        nn.init.normal_(parameter, std=0.2)
    token_BLD = token_BLD.to(torch.bfloat16)
    plain, fused = layer(token_BLD.float(), vector_BD), layer(token_BLD, vector_BD, fused=True)
    assert bool((fused - plain).norm() <= CLOSE * plain.norm())


@torch.no_grad()
def test_keys_and_values_of_the_text_are_read_once_and_joined() -> None:
    denoiser, words = model("fused", depth=1), text(with_lengths=True)
    x, t_B = torch.randn(3, 4, 6, 4), torch.rand(3)
    first = TextTokens(words.tokens_BLC[:2], words.mask_BL[:2], LENGTHS[:2])
    last = TextTokens(words.tokens_BLC[2:], words.mask_BL[2:], LENGTHS[2:])
    joined = denoiser.read_text(first).join(denoiser.read_text(last))
    assert torch.equal(denoiser(x, t_B, joined).prediction_BCHW, denoiser(x, t_B, words).prediction_BCHW)


def test_a_changed_weight_is_cast_again() -> None:
    denoiser, words = model("fused", depth=1), text(with_lengths=True)
    x, t_B = torch.randn(3, 4, 6, 4), torch.rand(3)
    before = denoiser(x, t_B, words).prediction_BCHW
    with torch.no_grad():
        denoiser.blocks[0].down_proj.weight.mul_(2)  # type: ignore[union-attr,operator]
    assert not torch.equal(denoiser(x, t_B, words).prediction_BCHW, before)


@pytest.mark.parametrize("one_pass", [True, False], ids=["one pass", "torch's kernel"])
def test_weights_are_cast_by_the_optimizer_or_after_it_and_not_in_every_micro_batch(
    one_pass: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Torch's own kernel leaves the versions of weights alone: unless ours are raised, old copies would be read."""
    monkeypatch.setattr(adamw, "runs_kernels", lambda device: one_pass)
    casts: list[int] = []

    def count(copies: Sequence[Copy]) -> None:
        casts.append(len(copies))
        cast(copies)

    monkeypatch.setattr(products, "cast", count)
    gate, up = (nn.Parameter(torch.randn(4, 8)) for _ in range(2))
    weight = products.Weight([gate, up], fp8=False)
    optimizer = AdamWSettings(lr=1e-2).build([("gate", gate), ("up", up)])
    assert isinstance(optimizer, adamw.AdamW)
    optimizer.found_inf, optimizer.gradient_factor, optimizer.copies = torch.zeros(()), torch.ones(()), weight.copies
    for step in range(3):
        for _ in range(2):
            weight.refresh()
            assert torch.equal(weight.values_NK, torch.cat([gate, up])), step
        gate.grad, up.grad = torch.ones_like(gate), torch.ones_like(up)
        optimizer.step()
    assert casts == ([2] if one_pass else [2, 2, 2])


def test_loaded_weights_are_cast_again() -> None:
    denoiser = model("fused")
    block = denoiser.blocks[1]
    assert isinstance(block, Block) and denoiser.copies() == []
    block.refresh()
    assert len(denoiser.copies()) == 7 and all(copy.fresh for copy in denoiser.copies())
    denoiser.load_state_dict({name: 2 * tensor for name, tensor in denoiser.state_dict().items()})
    assert not any(copy.fresh for copy in denoiser.copies())
    block.refresh()
    assert all(copy.fresh and torch.equal(copy.values, copy.weight) for copy in denoiser.copies())


@torch.no_grad()
def test_a_modulation_in_fp32_has_no_copy_and_reads_the_weights() -> None:
    denoiser, vector_BD = model("fused", depth=1), torch.randn(3, 32)
    block = denoiser.blocks[0]
    assert isinstance(block, Block)
    block.refresh()
    expected = block._kernels()._modulate(vector_BD)
    block.modulation.position, block._on_kernels = "fp32", None
    torch.testing.assert_close(block._kernels()._modulate(vector_BD), expected)
    assert len(denoiser.copies()) == 6


def test_weights_are_cast_before_a_graph_reads_their_copies(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transformer, "_LONG_FLOPS", 1e12)
    denoiser, words = model("fused"), text(with_lengths=True)
    seen: list[int] = []

    def graph(key: object, run: object, inputs: tuple[Tensor, ...], parameters: object) -> tuple[Tensor, ...]:
        seen.append(sum(copy.fresh for copy in denoiser.copies()))
        return inputs[:1]

    monkeypatch.setattr(denoiser, "_graphs", graph)
    for _ in range(2):
        denoiser(torch.randn(3, 4, 6, 4), torch.rand(3), words)
        with torch.no_grad():
            denoiser.blocks[1].up_proj.weight.mul_(2)  # type: ignore[union-attr,operator]
    assert seen == [14, 14]


BOUND_16 = 48 / (4 * math.log2(math.e))
"""Product of the weights of queries and keys at which heads of 16 numbers reach the bound."""


@pytest.mark.parametrize(
    "weights",
    [
        (1.0, 1.0, 1.0),
        (1.0, 0.99 * BOUND_16, 0.99 * BOUND_16),
        (1.0, 16 * BOUND_16, 1.0),
        (1.0, 1.0, 16 * BOUND_16),
        (-4.0, 4 * BOUND_16, 1.0),
    ],
    ids=["small", "just below the bound", "large for keys", "large for the text's keys", "below zero"],
)
def test_attention_of_long_images_is_a_softmax(
    weights: tuple[float, float, float], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Scores are as far apart as the weights let them: those of the image far below zero, those of the text above."""
    monkeypatch.setattr(attention, "LONG", 0)
    heads, size, tokens, lengths, first = 2, 16, 20, (7, 2), (0, 7)
    generator = torch.Generator().manual_seed(3)
    draw = [torch.randn(rows, heads, size, generator=generator) for rows in (2 * tokens, 2 * tokens, 9)]
    q, k, text_k = (
        weight * nn.functional.rms_norm(direction + 0.1 * drawn, (size,))
        for weight, direction, drawn in zip(weights, (1, -1, 1), draw, strict=True)
    )
    v, text_v = torch.randn(2 * tokens, heads, size), torch.randn(9, heads, size)
    norms = (torch.full((size,), weights[0]), torch.full((size,), weights[1]), torch.full((size,), weights[2]))
    places = (torch.tensor(first), torch.tensor(lengths), max(lengths))
    given = (q.flatten(1), k.flatten(1), v.flatten(1), text_k.flatten(1), text_v.flatten(1), *places, tokens, heads)
    found, log_sum = attention.attend(attention.Inputs(*given, norms))
    for sample in range(2):
        own, words = (
            slice(sample * tokens, (sample + 1) * tokens),
            slice(first[sample], first[sample] + lengths[sample]),
        )
        keys, values = torch.cat([k[own], text_k[words]]).double(), torch.cat([v[own], text_v[words]]).double()
        score = torch.einsum("qhe,khe->hqk", q[own].double(), keys) / math.sqrt(size)
        expected = torch.einsum("hqk,khe->qhe", score.softmax(-1), values)
        # Each fp32 score has the error of a sum of `size` terms, a share twice that, and its exponent's own.
        terms = torch.einsum("qhe,khe->hqk", q[own].abs().double(), keys.abs()).max() / math.sqrt(size)
        error = 4 * (size + 2) * torch.finfo(torch.float32).eps * (terms + 1)
        assert bool((found[own].view_as(q[own]) - expected).abs().max() <= error * values.abs().max())
        of_sample = log_sum.view(2, heads, tokens)[sample] / math.log2(math.e)
        assert bool((of_sample - score.logsumexp(-1)).abs().max() <= error)


def test_the_block_of_a_long_image_is_the_plain_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention, "LONG", 0)
    assert_same(*(passes(kernels, with_lengths=True, depth=1) for kernels in ("plain", "fused")))


@pytest.mark.parametrize("limit", [0.0, 1e12], ids=["too long for a graph", "a graph"])
def test_text_is_filled_to_few_numbers_of_rows_where_each_is_a_graph(
    limit: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transformer, "_LONG_FLOPS", limit)
    found: list[int] = []

    def note(given: TextTokens, sizes: int) -> PackedText:
        found.append(sizes)
        return pack(given, sizes)

    monkeypatch.setattr(transformer, "pack", note)
    denoiser = model("fused", depth=1)
    monkeypatch.setattr(denoiser, "_graphs", lambda *_: None)
    denoiser(torch.randn(3, 4, 6, 4), torch.rand(3), text(with_lengths=True))
    assert found == [FEW_SIZES if limit else MANY_SIZES]


@pytest.mark.parametrize("grad", [True, False])
def test_a_pass_is_no_graph_where_its_activations_do_not_fit_twice(grad: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transformer, "_LONG_FLOPS", 1e12)
    denoiser, x = model("fused"), torch.zeros(3, 4, 6, 4)
    activations = 2 * (3 * 6) * 2 * (11 * 32 + 3 * 64)  # bytes of bf16, tokens, blocks, numbers of a token
    state = 20 * sum(parameter.numel() for parameter in denoiser.parameters())
    found = []
    for memory in (2 * activations + state, 2 * activations + state - 1):
        monkeypatch.setattr(transformer, "memory_bytes", lambda _, memory=memory: memory)
        with torch.set_grad_enabled(grad):
            found.append(denoiser._waits_for_host(x, None))
    assert found == [True, not grad]


@pytest.mark.parametrize("matmul", ["plain", "fp8"])
def test_in_fp8_a_pass_of_up_to_twice_the_operations_is_a_graph(matmul: str, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = ModelSettings(depth=1, width=32, heads=2, mlp_ratio=2.0, patch=2)
    denoiser = Transformer(settings, 4, 12, PrecisionSettings.model_validate({"matmul": matmul}))
    x = torch.zeros(3, 4, 6, 4)
    flops = 2 * (3 * 6) * (4 * 32 * 32 + 3 * 32 * 64)  # tokens times the weights that multiply them
    found = []
    for limit in (0.4 * flops, 0.6 * flops, 1.1 * flops):
        monkeypatch.setattr(transformer, "_LONG_FLOPS", limit)
        found.append(denoiser._waits_for_host(x, None))
    assert found == [False, matmul == "fp8", True]


class Launches:
    """Stands for a kernel, and notes its grids."""

    def __init__(self) -> None:
        self.grids: list[tuple[int, ...]] = []

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
        self.grids.append(grid)
        return lambda *args, **named: None


def test_large_batches_of_small_images_fit_into_the_grids(monkeypatch: pytest.MonkeyPatch) -> None:
    """A GPU takes 2^31 - 1 programs along the first side of a grid, and 65,535 along the others."""
    samples, heads, tokens, longest = 8192, 16, 200, 70
    launches = Launches()
    for kernel in ("_attend", "_attend_back_keys", "_attend_back_queries"):
        monkeypatch.setattr(attention, kernel, launches)
    with torch.device("meta"):
        image_RD, text_ND = torch.empty(samples * tokens, heads * 16), torch.empty(samples * 3, heads * 16)
        place_B, weight = torch.empty(samples, dtype=torch.int64), torch.empty(16)
    given = (image_RD, image_RD, image_RD, text_ND, text_ND, place_B, place_B, longest, tokens, heads)
    inputs = attention.Inputs(*given, (weight, weight, weight))
    out_RD, log_sum = attention.attend(inputs)
    gradients = attention.Gradients(image_RD, image_RD, image_RD, text_ND, text_ND)
    attention.attend_back(inputs, image_RD, out_RD, log_sum, gradients)
    (forward, *_), (_, keys, *_), (back, *_) = attention.FORWARD, attention.BACK_KEYS, attention.BACK_QUERIES
    tiles = [-(-tokens // forward), -(-tokens // back), -(-tokens // keys) - (-longest // keys)]
    assert [math.prod(grid) for grid in launches.grids] == [samples * heads * count for count in tiles]
    assert all(side <= 65_535 for _, *others in launches.grids for side in others)


@pytest.mark.parametrize("kind", [torch.float8_e4m3fn, torch.float8_e5m2], ids=str)
def test_a_row_in_fp8_has_a_power_of_two_that_keeps_its_largest_number_in_range(kind: torch.dtype) -> None:
    x_RC = torch.randn(9, 48) * torch.logspace(-30, 30, 9)[:, None]
    x_RC[4] = 0
    found = products.quantised(x_RC, kind)
    mantissa, _ = torch.frexp(found.scale_R)
    assert bool((mantissa == 0.5).all())
    largest, some = (x_RC / found.scale_R[:, None]).abs().amax(1), x_RC.any(1)
    least = 2.0 ** quantise.SPARE[kind]
    assert bool(((largest >= least) & (largest < 2 * least))[some].all())
    assert 2 * least <= torch.finfo(kind).max


def test_a_row_that_is_not_finite_stays_so() -> None:
    """By its scale: a GPU rounds an infinite number to the largest of FP8."""
    x_RC = torch.ones(2, 16)
    x_RC[0, 3] = float("inf")
    found = products.quantised(x_RC, torch.float8_e4m3fn)
    assert found.scale_R.isfinite().tolist() == [False, True]


def test_turned_rows_come_to_one_scale_and_are_filled_with_zeros() -> None:
    found = products.quantised(torch.randn(18, 32) * torch.logspace(-2, 2, 18)[:, None], torch.float8_e5m2)
    most = found.scale_R.amax()
    transposed_CR = quantise.new_transposed(found.values_RC)
    quantise.transpose(found.values_RC, transposed_CR, found.scale_R / most)
    whole = found.values_RC.float() * found.scale_R[:, None]
    assert transposed_CR.shape == (32, 32) and not transposed_CR[:, 18:].float().any()
    assert torch.equal(transposed_CR[:, :18].float() * most, whole.t())


def test_the_warps_of_any_width_are_a_power_of_two() -> None:
    found = {heads._warps(width, most) for width in range(64, 8_193, 64) for most in (2, 4)}
    assert found == {1, 2, 4}
