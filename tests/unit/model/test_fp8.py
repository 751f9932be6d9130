"""FP8 products against numbers that are brought to FP8 and multiplied exactly, and against fp32.

torch multiplies FP8 on a CPU too, so the code is the same as on a GPU; only training there is refused.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from typer.testing import CliRunner

from tests.edit_checked import write_plan
from tests.studies import run_study
from tests.tiny import TINY, tiny_plan
from tintype.cli import app
from tintype.errors import UserError
from tintype.library.studies import make_study
from tintype.model import Transformer, fp8
from tintype.model.fp8 import Fp8Linear, _filled, product, scaled
from tintype.plan import Plan
from tintype.runtime.clock import Clock
from tintype.sampling.generate import SamplerSettings, generate
from tintype.settings import ModelSettings, PrecisionSettings
from tintype.study.lab import prepare_study
from tintype.train import checkpoint
from tintype.train.folder import RunFolder
from tintype.train.load import load_run
from tintype.train.session import build_session
from tintype.train.state import new_state
from tintype.train.update import update

E4M3, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2
FORWARD_ERROR, BACKWARD_ERROR = 0.05, 0.08
"""Relative errors of a product of random numbers: each e4m3 operand has about 2.6%, an e5m2 one twice that."""


def _multiplies_rows() -> bool:
    """Return whether this torch multiplies FP8 with a scale for each row on a CPU: 2.11 does not."""
    try:
        product(torch.ones(16, 16), torch.ones(16, 16), E4M3)
    except RuntimeError:
        return False
    return True


on_a_cpu = pytest.mark.skipif(not _multiplies_rows(), reason=f"torch {torch.__version__} has no such product on a CPU")


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def relative(found: Tensor, expected: Tensor) -> float:
    found, expected = found.detach().double(), expected.detach().double()
    return float((found - expected).norm() / expected.norm())


def in_fp8(x: Tensor, kind: torch.dtype, bits: int, least: int) -> Tensor:
    """An oracle that knows no FP8 type: each row by its largest number, then so many bits of mantissa."""
    scale = x.double().abs().amax(1, keepdim=True) / torch.finfo(kind).max
    exponent = torch.frexp(x.double() / scale).exponent.clamp(min=least + 1) - 1
    step = torch.exp2((exponent - bits).double())
    return torch.round(x.double() / scale / step) * step * scale


@pytest.mark.parametrize(("kind", "bits", "least"), [(E4M3, 3, -6), (E5M2, 2, -14)])
def test_a_row_is_rounded_to_so_many_bits_of_its_largest_number(kind: torch.dtype, bits: int, least: int) -> None:
    x = normal(64, 48) * torch.logspace(-20, 20, 64)[:, None]
    eight, scale = scaled(x, kind)
    assert eight.dtype == kind and eight.is_contiguous()
    assert relative(eight.float() * scale, in_fp8(x, kind, bits, least)) < 1e-3


@on_a_cpu
def test_all_three_products_are_those_of_the_rounded_numbers() -> None:
    layer, x, gradient = Fp8Linear(48, 32), normal(2, 20, 48).requires_grad_(), normal(2, 20, 32, seed=1).bfloat16()
    out = layer(x)
    out.backward(gradient)
    assert out.dtype == torch.bfloat16 and out.shape == (2, 20, 32)
    flat, weight, back = x.detach().bfloat16().flatten(0, 1), layer.weight.detach(), gradient.flatten(0, 1)

    def exact(left: Tensor, kind: torch.dtype, right: Tensor) -> Tensor:
        (a, a_scale), (b, b_scale) = scaled(left, kind), scaled(right, E4M3)
        return (a.double() * a_scale) @ (b.double() * b_scale).t()

    assert x.grad is not None and layer.weight.grad is not None
    assert relative(out.flatten(0, 1), exact(flat, E4M3, weight)) < 2**-8
    assert relative(x.grad.flatten(0, 1), exact(back, E5M2, weight.t())) < 2**-8
    assert relative(layer.weight.grad, exact(back.t(), E5M2, flat.t())) < 2**-8, "the 40 tokens are filled up to 48"
    assert layer.weight.grad.dtype == torch.float32


@on_a_cpu
def test_only_the_forward_product_sums_with_fewer_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    """A CPU sums them all alike."""
    fast: list[bool] = []
    multiply = torch._scaled_mm

    def watched(*args: Any, **more: Any) -> Tensor:
        fast.append(more["use_fast_accum"])
        return multiply(*args, **more)

    monkeypatch.setattr(torch, "_scaled_mm", watched)
    Fp8Linear(48, 32)(normal(16, 48).requires_grad_()).sum().backward()
    assert fast == [True, False, False]


def test_tokens_are_filled_up_with_zeros_to_what_a_gpu_can_sum_over() -> None:
    """A CPU sums over any number of them."""
    filled, x = _filled(normal(40, 8)), normal(32, 8)
    assert filled.shape == (48, 8) and torch.equal(filled[:40], normal(40, 8)) and not filled[40:].any()
    assert _filled(x) is x


@on_a_cpu
def test_the_error_against_fp32_is_that_of_so_few_bits() -> None:
    layer, x = Fp8Linear(256, 128), normal(512, 256).requires_grad_()
    plain, y = nn.Linear(256, 128, bias=False), normal(512, 256).requires_grad_()
    plain.load_state_dict(layer.state_dict())
    out, expected, gradient = layer(x), plain(y), normal(512, 128, seed=3)
    out.backward(gradient.bfloat16())
    expected.backward(gradient)
    assert 0.01 < relative(out, expected) < FORWARD_ERROR
    assert x.grad is not None and y.grad is not None and layer.weight.grad is not None and plain.weight.grad is not None
    assert 0.01 < relative(x.grad, y.grad) < BACKWARD_ERROR
    assert 0.01 < relative(layer.weight.grad, plain.weight.grad) < BACKWARD_ERROR


@on_a_cpu
def test_a_token_does_not_depend_on_those_beside_it() -> None:
    layer, x = Fp8Linear(48, 32), normal(20, 48)
    beside = torch.cat([x[:4], 1000 * x[4:]])
    assert torch.equal(layer(x)[:4], layer(beside)[:4])


@on_a_cpu
def test_zeros_stay_zeros_and_what_is_not_finite_is_seen() -> None:
    x, weight = normal(16, 32), normal(16, 32, seed=1)
    assert not product(torch.zeros(16, 32), weight, E4M3).any()
    for bad in (torch.inf, torch.nan):
        x[3, 5] = bad
        found = product(x, weight, E4M3).isfinite()
        assert not found[3].any() and found[4].all()


def test_only_the_large_matrices_of_the_blocks_are_in_fp8_under_their_own_names() -> None:
    settings = ModelSettings(depth=2, width=32, heads=2, mlp_ratio=2.0, patch=2)
    plain, eight = (Transformer(settings, 4, 12, PrecisionSettings(matmul=kind)) for kind in ("plain", "fp8"))
    assert [*plain.state_dict()] == [*eight.state_dict()]
    own = {name.split(".", 2)[2] for name, module in eight.named_modules() if isinstance(module, Fp8Linear)}
    attention = {f"attention.{name}" for name in ("img_qkv_proj", "txt_kv_proj", "to_out.0")}
    assert own == attention | {"gate_proj", "up_proj", "down_proj"}


def fp8_plan(*assignments: str) -> Plan:
    return tiny_plan(*assignments, techniques=["fp8"])


@on_a_cpu
def test_training_in_fp8_follows_training_in_bf16(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fp8, "runs_on", lambda device: True)  # slowly, but with the same numbers
    curves = []
    for plan in (fp8_plan("train.steps=8"), tiny_plan("train.steps=8", "precision.compute=bf16")):
        parts = build_session(plan)
        state = new_state(parts)
        curves.append(torch.stack([update(parts, state, Clock(parts.device)).losses["loss"] for _ in range(8)]))
        assert {parameter.dtype for parameter in parts.modules.parameters()} == {torch.float32}
    assert not torch.equal(*curves)
    assert relative(*curves) < 0.01


@pytest.mark.filterwarnings("ignore:.torch.jit:DeprecationWarning")  # torch's own, when dynamo is imported
@pytest.mark.filterwarnings("ignore:The .grad attribute:UserWarning")
@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")  # dynamo's, for any Function
@on_a_cpu
def test_it_compiles_without_a_break() -> None:
    from torch._dynamo.utils import counters

    torch._dynamo.reset()
    counters.clear()
    layer, x = Fp8Linear(48, 32), normal(2, 20, 48).requires_grad_()
    gradients = []
    for call in (layer, torch.compile(layer, backend="aot_eager", fullgraph=True)):
        layer.weight.grad = x.grad = None
        call(x).float().square().sum().backward()
        gradients.append((layer.weight.grad, x.grad))
    for one, other in zip(*gradients, strict=True):
        assert isinstance(one, Tensor) and isinstance(other, Tensor) and torch.equal(one, other)
    torch._dynamo.reset()


def test_a_device_without_it_is_refused_before_the_first_step() -> None:
    with pytest.raises(UserError, match=r"precision.matmul is fp8, but cpu has no FP8 .*precision.matmul=plain"):
        build_session(fp8_plan())


def test_a_command_says_so_before_it_says_that_it_trains(tmp_path: Path) -> None:
    (tmp_path / "plan.yaml").write_text(TINY)
    words = ["train", str(tmp_path / "plan.yaml"), "--technique", "fp8", "--out", str(tmp_path / "out")]
    shown = CliRunner().invoke(app, words)
    assert "cpu has no FP8" in str(shown.exception) and "training" not in shown.output
    assert not (tmp_path / "out").exists()


def test_a_study_says_so_of_the_arm_before_its_first_run_unless_it_is_prepared_for_another_machine(
    tmp_path: Path,
) -> None:
    evaluation = {"count": 8, "also": [], "reference_count": 8, "validation_count": 2, "metrics": ["fd"]}
    study = make_study("?", tiny_plan(), {"eight": "fp8"}, [0], evaluation=evaluation)
    with pytest.raises(UserError, match=r"arm 'eight': precision\.matmul is fp8, but cpu has no FP8"):
        run_study(study, tmp_path / "out", 1)
    assert not (tmp_path / "out" / "study.yaml").exists()
    prepare_study(study, tmp_path / "out")
    assert (tmp_path / "out" / "study.yaml").is_file()


def test_a_run_of_fp8_is_sampled_on_a_cpu_in_bf16_with_a_note(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, plain = RunFolder(tmp_path), build_session(tiny_plan("precision.compute=bf16"))
    write_plan(tmp_path, fp8_plan())
    checkpoint.save(folder.checkpoints, new_state(plain), keep=2)
    parts, _ = load_run(tmp_path)
    assert "computing in bf16 instead" in capsys.readouterr().err
    settings = SamplerSettings(steps=2)
    images = [generate(one, ["a red ball"], settings, seed=0, size_px=16) for one in (parts, plain)]
    assert torch.equal(*images)


@pytest.mark.parametrize(
    ("assignments", "message"),
    [
        (["model.width=40"], r"'fp8' applied.*multiples of 16, but img_qkv_proj has 40 \(model.width\)"),
        (["model.mlp_ratio=2.25"], r"gate_proj has 72 \(model.width × model.mlp_ratio\)"),
        (["precision.storage=bf16", "precision.compute=bf16"], "'fp8': matmul fp8 is for weights stored in fp32"),
    ],
)
def test_what_cannot_be_multiplied_in_fp8_is_refused_with_the_plan(assignments: list[str], message: str) -> None:
    with pytest.raises(UserError, match=message):
        fp8_plan(*assignments)
