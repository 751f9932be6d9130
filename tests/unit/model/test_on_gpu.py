"""Precision plans on a GPU: the compiler's own passes, and FP8 on its matrix units."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from tests.tiny import tiny_plan
from tintype.model import Transformer, fp8
from tintype.model.fp8 import Fp8Linear
from tintype.model.islands import rounded
from tintype.plan import Plan
from tintype.runtime.clock import Clock
from tintype.seams import TextTokens
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
