"""Muon against torch's own, one matrix at a time, and AdamW's part against torch's AdamW."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from tests.bounds import distance, muon_bound, rounding_bound
from tests.tiny import tiny_plan
from tintype.errors import UserError
from tintype.model import Transformer
from tintype.optim.adamw import AdamWSettings
from tintype.optim.muon import COEFFICIENTS, MuonSettings, newton_schulz_flops, orthogonalise, polynomials
from tintype.plan import plan_from_document
from tintype.recipes import packaged
from tintype.runtime.interrupt import Interrupt
from tintype.train.loop import train
from tintype.train.record import RunRecord
from tintype.train.session import build_session

SHAPES = {"wide": (6, 14), "tall": (14, 6), "square": (8, 8), "wide too": (6, 14)}
ADAMW = AdamWSettings(lr=3e-3, eps=1e-8, weight_decay=0.01)


def parameters(shapes: Mapping[str, tuple[int, ...]], seed: int = 0) -> dict[str, nn.Parameter]:
    generator = torch.Generator().manual_seed(seed)
    return {f"blocks.{name}": nn.Parameter(torch.randn(shape, generator=generator)) for name, shape in shapes.items()}


def settings(**changes: Any) -> MuonSettings:
    return MuonSettings(**{"lr": 0.02, "matrices": ("blocks.",), "adamw": ADAMW, "compute": "fp32", **changes})


def give_gradients(named: dict[str, nn.Parameter], step: int) -> None:
    generator = torch.Generator().manual_seed(1000 + step)
    for parameter in named.values():
        parameter.grad = torch.randn(parameter.shape, generator=generator)


def trained(optimizer: torch.optim.Optimizer, named: dict[str, nn.Parameter], steps: int = 4) -> dict[str, Tensor]:
    for step in range(steps):
        give_gradients(named, step)
        optimizer.step()
    return {name: parameter.detach().clone() for name, parameter in named.items()}


def largest_difference(first: dict[str, Tensor], second: dict[str, Tensor]) -> float:
    return max(float((first[name] - second[name]).abs().max()) for name in first)


@pytest.mark.parametrize(("scaling", "theirs"), [("matched", "match_rms_adamw"), ("original", "original")])
@pytest.mark.parametrize(("nesterov", "weight_decay"), [(True, 0.0), (False, 0.1)])
def test_it_is_torchs_own_in_fp32(
    scaling: str, theirs: str, nesterov: bool, weight_decay: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    named, same = parameters(SHAPES), parameters(SHAPES)
    ours = settings(scaling=scaling, nesterov=nesterov, weight_decay=weight_decay).build(named.items())
    oracle = torch.optim.Muon(
        list(same.values()), lr=0.02, weight_decay=weight_decay, nesterov=nesterov, adjust_lr_fn=theirs
    )
    found = trained(ours, named)
    monkeypatch.setattr(Tensor, "bfloat16", lambda self: self.clone())  # torch's iteration knows bf16 only
    monkeypatch.setattr(torch, "bfloat16", torch.float32)  # which it takes from here since 2.15
    assert largest_difference(found, trained(oracle, same)) < muon_bound(4, 0.02, 14)


@pytest.mark.parametrize("decay", [0.0, 4.0])
def test_in_bf16_it_is_torchs_own_but_for_rounding(decay: float) -> None:
    """Both are a few percent from the truth, and ours, which rounds the diagonal with the rest, not much further.

    Of matrices whose singular values collapse, as those of gradients do, bf16 makes more, and ours no more than torch.
    """
    left, _, right = torch.linalg.svd(torch.randn(64, 96, generator=torch.Generator().manual_seed(0)), False)
    matrix = (left * torch.logspace(0, -decay, 64)) @ right
    exact = orthogonalise(matrix[None].double(), 5, torch.float64)[0]
    oracle = torch.optim._muon._zeropower_via_newtonschulz(matrix, (3.4445, -4.7750, 2.0315), 5, 1e-7)
    found = orthogonalise(matrix[None], 5, torch.bfloat16)[0]
    ours, theirs = (float((one.double() - exact).norm() / exact.norm()) for one in (found, oracle))
    assert ours < (0.05 if decay == 0 else 1.1 * theirs)
    assert theirs < (0.02 if decay == 0 else 0.15)


def test_the_rest_is_adamw_bit_for_bit() -> None:
    shapes = {"matrix": (6, 14), "vector": (9,), "row": (1, 7), "column": (7, 1)}
    named, same = parameters(shapes), parameters(shapes)
    found = trained(settings().build(named.items()), named)
    rest = {name: same[name] for name in same if "matrix" not in name}
    oracle = torch.optim.AdamW(
        rest.values(), ADAMW.lr, (ADAMW.beta1, ADAMW.beta2), ADAMW.eps, ADAMW.weight_decay, fused=True
    )
    give = trained(oracle, same)
    assert all(torch.equal(found[name], give[name]) for name in rest)
    assert not torch.equal(found["blocks.matrix"], give["blocks.matrix"])


@pytest.mark.parametrize("shape", [(3, 20, 40), (2, 16, 16)])
def test_singular_values_come_near_one(shape: tuple[int, int, int]) -> None:
    matrix = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    values = torch.linalg.svdvals(orthogonalise(matrix, 5, torch.float32))
    spread = torch.linalg.svdvals(matrix)
    assert float(values[spread > 0.05 * spread.max()].min()) > 0.6 and float(values.max()) < 1.25


def test_a_batch_is_each_matrix_by_itself() -> None:
    """But for rounding: each of five iterations multiplies the errors of small singular values by up to 3.4445."""
    matrix = torch.randn(5, 6, 9, generator=torch.Generator().manual_seed(0)) * torch.logspace(-3, 3, 5)[:, None, None]
    together = orthogonalise(matrix, 5, torch.float32)
    alone = torch.cat([orthogonalise(matrix[i : i + 1], 5, torch.float32) for i in range(5)])
    assert distance(together, alone) < COEFFICIENTS[0] ** 5 * rounding_bound(9 + 6 + 6, 1.0)


def test_polar_express_comes_nearer_to_the_polar_factor() -> None:
    """Singular values between 1e-3 and 1 end within the paper's bound of one after eight steps, and near it after five;
    Newton and Schulz's one polynomial does not converge."""
    value = torch.logspace(-3, 0, 1000, dtype=torch.float64) / 1.01
    errors = {}
    for iteration in ("polar-express", "newton-schulz"):
        for steps in (5, 8):
            x = value.clone()
            for a, b, c in polynomials(iteration, steps):
                x = a * x + b * x**3 + c * x**5
            errors[iteration, steps] = float((1 - x).abs().max())
    assert errors["polar-express", 5] < 0.4 and errors["polar-express", 8] < 1e-2
    assert errors["newton-schulz", 8] > 0.2 and errors["newton-schulz", 5] > errors["polar-express", 5]
    assert polynomials("polar-express", 10)[7:] == [(1.875, -1.25, 0.375)] * 3
    left, _, right = torch.linalg.svd(torch.randn(24, 40, generator=torch.Generator().manual_seed(0)), False)
    matrix = (left * torch.logspace(0, -2, 24)) @ right
    found, usual = (
        float((orthogonalise(matrix[None].double(), 8, torch.float64, one)[0] - left @ right).norm())
        for one in ("polar-express", "newton-schulz")
    )
    assert found < 0.05 < usual


def normuon_oracle(weight: Tensor, gradients: Sequence[Tensor], decay: float, lr: float, parts: int = 1) -> Tensor:
    """Algorithm 1 of NorMuon with the authors' epsilons, in float64, Nesterov, matched scaling."""
    weight, momentum = weight.double(), torch.zeros_like(weight.double())
    rows = torch.zeros(len(weight), 1, dtype=torch.float64)
    for gradient in gradients:
        momentum = 0.95 * momentum + 0.05 * gradient.double()
        aim = 0.05 * gradient.double() + 0.95 * momentum
        pieces = []
        for index, piece in enumerate(aim.split(len(aim) // parts)):
            tall = piece.shape[0] > piece.shape[1]
            step = orthogonalise((piece.T if tall else piece)[None], 5, torch.float64)[0]
            step = step.T if tall else step
            norm, own = step.norm(), rows[index * len(piece) : (index + 1) * len(piece)]
            own.lerp_(step.square().mean(1, keepdim=True), 1 - decay)
            step = step / (own.sqrt() + 1e-10)
            pieces.append(step * norm / (step.norm() + 1e-10) * 0.2 * max(step.shape) ** 0.5)
        weight = weight - lr * torch.cat(pieces)
    return weight


@pytest.mark.parametrize("fused", ["whole", "parts"])
def test_normuon_evens_the_rows_as_its_authors_do(fused: str) -> None:
    named = parameters({**SHAPES, "a.img_qkv_proj.weight": (12, 4)})
    start = {name: one.detach().clone() for name, one in named.items()}
    found = trained(settings(row_decay=0.9, fused=fused).build(named.items()), named)
    gradients: dict[str, list[Tensor]] = {name: [] for name in named}
    for step in range(4):
        give_gradients(named, step)
        for name, one in named.items():
            assert one.grad is not None
            gradients[name].append(one.grad.clone())
    for name, weight in found.items():
        parts = 3 if fused == "parts" and "qkv" in name else 1
        wanted = normuon_oracle(start[name], gradients[name], 0.9, 0.02, parts)
        assert distance(weight, wanted.float()) < muon_bound(4, 0.02, 14)
    plain = trained(settings(fused=fused).build((same := parameters(SHAPES)).items()), same)
    assert largest_difference(plain, {name: found[name] for name in plain}) > 1e-3


@pytest.mark.parametrize("row_decay", [None, 0.9])
def test_cautious_weight_decay_spares_weights_that_the_step_lets_grow(row_decay: float | None) -> None:
    """w - lr (u + decay 1[u w >= 0] w), with u the whole step."""
    lr, decay = 0.02, 0.5
    results = {}
    for name, changes in {"none": {}, "usual": {"weight_decay": decay}, "cautious": CAUTIOUS}.items():
        named = parameters(SHAPES)
        results[name] = trained(settings(row_decay=row_decay, **changes).build(named.items()), named, steps=1)
    start = {name: one.detach() for name, one in parameters(SHAPES).items()}
    for name, weight in start.items():
        moved = weight - results["none"][name]
        wanted = weight - moved - lr * decay * torch.where(moved * weight >= 0, weight, 0.0)
        assert distance(results["cautious"][name], wanted) < muon_bound(1, lr, 14)
        spared = moved * weight < 0
        assert torch.equal(results["cautious"][name][spared], results["none"][name][spared])
        assert distance(results["cautious"][name][~spared], results["usual"][name][~spared]) < 1e-6
        assert 0 < spared.sum() < spared.numel()


CAUTIOUS = {"weight_decay": 0.5, "cautious": True}


def test_cautious_without_weight_decay_is_refused() -> None:
    with pytest.raises(UserError, match="cautious is about weight decay"):
        tiny_plan(techniques=["muon:cautious=true"])


def test_a_skipped_step_leaves_the_rows_as_they_are() -> None:
    named = parameters(SHAPES)
    optimizer: Any = settings(row_decay=0.9, **CAUTIOUS).build(named.items())
    trained(optimizer, named, steps=2)
    before = {name: one.detach().clone() for name, one in named.items()}
    rows = [optimizer.state[one]["rows"].clone() for one in named.values()]
    for one in named.values():
        one.grad = torch.full_like(one, float("nan"))
    optimizer.found_inf = torch.ones(())
    optimizer.step()
    assert all(torch.equal(before[name], one) for name, one in named.items())
    assert all(torch.equal(old, optimizer.state[one]["rows"]) for old, one in zip(rows, named.values(), strict=True))
    assert all(old.shape == one.shape[:1] and old.any() for old, one in zip(rows, named.values(), strict=True))


def test_no_gradient_no_step() -> None:
    assert not orthogonalise(torch.zeros(2, 3, 4), 5, torch.bfloat16).any()


def test_fused_matrices_can_be_taken_apart() -> None:
    """Each part of a QKV, KV or modulation matrix moves as if it were a parameter of its own."""
    fused = {"a.img_qkv_proj.weight": (12, 4), "a.txt_kv_proj.weight": (8, 4), "a.modulation.lin.weight": (24, 4)}
    named = parameters(fused)
    apart = {
        f"{name}.{part}": nn.Parameter(piece.clone())
        for name, parameter in named.items()
        for part, piece in enumerate(parameter.detach().split(4))
    }
    optimizers = settings(fused="parts").build(named.items()), settings().build(apart.items())
    give_gradients(named, 0)
    for name, parameter in apart.items():
        owner, _, part = name.rpartition(".")
        gradient = named[owner].grad
        assert gradient is not None
        parameter.grad = gradient.split(4)[int(part)].clone()
    for optimizer in optimizers:
        optimizer.step()
    for name, parameter in named.items():
        pieces = [apart[one].detach() for one in apart if one.startswith(name)]
        assert distance(parameter, torch.cat(pieces)) < muon_bound(1, 0.02, 24)


def test_whole_and_in_parts_are_not_the_same() -> None:
    results = []
    for fused in ("whole", "parts"):
        named = parameters({"a.img_qkv_proj.weight": (12, 4)})
        results.append(trained(settings(fused=fused).build(named.items()), named, steps=1))
    assert largest_difference(*results) > 1e-3


@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
def test_a_step_that_is_not_finite_moves_nothing_and_leaves_no_trace(weight_decay: float) -> None:
    named, same = parameters({**SHAPES, "vector": (5,)}), parameters({**SHAPES, "vector": (5,)})
    ours, clean = (settings(weight_decay=weight_decay).build(of.items()) for of in (named, same))
    for optimizer, of in ((ours, named), (clean, same)):
        give_gradients(of, 0)
        optimizer.found_inf = torch.zeros(())  # type: ignore[attr-defined]
        optimizer.step()
    for parameter in named.values():
        parameter.grad = torch.full_like(parameter, float("nan"))
    ours.found_inf = torch.ones(())  # type: ignore[attr-defined]
    ours.step()
    ours.found_inf = torch.zeros(())  # type: ignore[attr-defined]
    for optimizer, of in ((ours, named), (clean, same)):
        give_gradients(of, 1)
        optimizer.step()
    assert all(torch.equal(named[name], same[name]) for name in named)


def taken(*options: str) -> set[str]:
    plan = tiny_plan(techniques=[":".join(["muon", ",".join(options)]).rstrip(":")])
    assert isinstance(plan.optimizer, MuonSettings)
    return plan.optimizer.taken(dict(build_session(plan).modules.named_parameters()))


def test_it_takes_the_matrices_of_the_blocks() -> None:
    names = taken()
    assert {name.split(".")[0] + "." + name.split(".")[1] for name in names} == {"denoiser.blocks"}
    in_block = {name.removeprefix("denoiser.blocks.0.") for name in names if ".blocks.0." in name}
    projections = {"attention.img_qkv_proj.weight", "attention.txt_kv_proj.weight", "attention.to_out.0.weight"}
    gated = {"gate_proj.weight", "up_proj.weight", "down_proj.weight"}
    assert in_block == projections | gated | {"modulation.lin.weight"}
    assert {name for name in names if "modulation" in name} == names - taken("modulation=false")


def test_the_run_says_which_tensors_it_took(tmp_path: Path) -> None:
    train(tiny_plan("train.steps=1", techniques=["muon"]), tmp_path / "run", Interrupt())
    groups = RunRecord(tmp_path / "run").read("optimizer.json")
    assert set(groups) == {"muon", "adamw"}
    assert set(groups["muon"]["names"]) == taken() and groups["muon"]["tensors"] == len(taken())
    assert "denoiser.final_layer.linear.weight" in groups["adamw"]["names"]
    modules = build_session(tiny_plan()).modules
    whole = sum(parameter.numel() for parameter in modules.parameters())
    assert groups["muon"]["parameters"] + groups["adamw"]["parameters"] == whole


def test_names_that_match_nothing_are_refused() -> None:
    with pytest.raises(UserError, match=r"optimizer.matrices: no 2-D weight .* 'decoder.'; names begin with blocks.m"):
        settings(matrices=("decoder.",)).build(parameters({"m.x": (4, 4)}).items())


@pytest.mark.parametrize("options", [["muon:lr=0.01", "muon"], ["muon:scaling=best"], ["muon:lr=0"]])
def test_what_cannot_be_is_refused(options: Sequence[str]) -> None:
    with pytest.raises(UserError):
        tiny_plan(techniques=options)


def test_an_arm_changes_nothing_but_the_matrices() -> None:
    baseline, plan = tiny_plan(), tiny_plan(techniques=["muon"])
    assert isinstance(plan.optimizer, MuonSettings)
    assert plan.optimizer.adamw == baseline.optimizer and plan.optimizer.lr == plan.optimizer.adamw.lr


def test_the_operations_of_the_iteration_are_counted_from_the_shapes() -> None:
    """By hand: a 6 × 14 matrix, wide or tall, has 2·6·14·6 + 2·6·6·6 + 2·6·6·14 in each of five iterations."""
    wide = 5 * (1008 + 432 + 1008)
    assert newton_schulz_flops(settings(), parameters({"wide": (6, 14), "vector": (9,), "row": (1, 7)})) == wide
    assert newton_schulz_flops(settings(), parameters({"wide": (6, 14), "tall": (14, 6)})) == 2 * wide
    assert newton_schulz_flops(settings(newton_schulz_steps=1), parameters({"wide": (6, 14)})) == wide // 5
    fused = parameters({"img_qkv_proj.weight": (18, 14), "modulation.lin.weight": (12, 2)})
    whole = 5 * (4 * 14 * 14 * 18 + 2 * 14**3)
    assert newton_schulz_flops(settings(modulation=False), fused) == whole
    assert newton_schulz_flops(settings(modulation=False, fused="parts"), fused) == 3 * wide
    assert newton_schulz_flops(settings(fused="parts"), fused) == 3 * wide + 6 * 5 * (4 * 8 + 2 * 8)


def test_the_operations_of_prxs_blocks() -> None:
    """16 blocks of QKV, text KV, output, gate, up, down and modulation: 47.9 TFLOP, 41.4 of them products with X."""
    plan = plan_from_document(packaged.find("plans", "prx-jit-1024"), ["model.compile=false"])
    with torch.device("meta"):
        model = Transformer(plan.model, 3, 2304)
    named = {f"denoiser.{name}": parameter for name, parameter in model.named_parameters()}
    columns = [5376, 3584, 1792, 6272, 6272, 6272, 10752]
    with_x, squares = 80 * 4 * 1792**2 * sum(columns), 80 * 2 * 1792**3 * len(columns)
    assert newton_schulz_flops(MuonSettings(), named) == with_x + squares
    assert (with_x / 1e12, squares / 1e12) == pytest.approx((41.4, 6.4), rel=0.01)
    without = newton_schulz_flops(MuonSettings(modulation=False), named)
    assert without == 80 * (4 * 1792**2 * sum(columns[:-1]) + 2 * 1792**3 * 6)
    assert without / 1e12 == pytest.approx(35.9, rel=0.01)


class _Calls(TorchDispatchMode):
    """Counts what is started on a device: all but views."""

    count = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += not function.is_view and function is not torch.ops.aten.unbind.int
        return function(*args, **(kwargs or {}))


def test_more_matrices_of_a_shape_start_no_more_kernels() -> None:
    """A small model's step waits for the host, which starts them one by one."""

    def started(blocks: int) -> int:
        named = [(f"denoiser.blocks.{index}.weight", nn.Parameter(torch.randn(6, 4))) for index in range(blocks)]
        for _, parameter in named:
            parameter.grad = torch.randn_like(parameter)
        optimizer = MuonSettings().build(named)
        optimizer.step()
        with _Calls() as calls:  # type: ignore[no-untyped-call]
            optimizer.step()
        return int(calls.count)

    assert 0 < started(9) == started(3)
