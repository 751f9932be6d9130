"""Training steps of the 1.17B denoiser and, where Python finds it, of PRX's own module in the same process.

For PRX, put `prx/models/prx.py` and `prx_layers.py` of github.com/Photoroom/PRX where Python finds them.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from statistics import median
from typing import Any

import torch
from torch import Tensor, nn

from tintype.bench.clock import StepClock
from tintype.model import Transformer
from tintype.model.fp8 import runs_on
from tintype.optim.adamw import AdamW, AdamWSettings
from tintype.optim.ema import Ema
from tintype.runtime.clock import synchronized_s
from tintype.runtime.copies import Copy, cast
from tintype.runtime.files import Json
from tintype.runtime.gradients import clip_factor, gradient_norm, multiply_gradients
from tintype.runtime.layout import ONE
from tintype.seams import TextTokens
from tintype.settings import ModelSettings, PrecisionSettings
from tools.speed.gauge import Gauge

CHANNELS, TEXT_DIM, TEXT_TOKENS = 16, 2304, 256
_CLIP = 1.0


@dataclass(frozen=True)
class Shape:
    """A micro-batch of the published setting."""

    batch: int
    channels: int
    side: int
    patch: int
    bottleneck: int | None = None


SHAPES = {
    "256 tokens, micro-batch 32": Shape(32, CHANNELS, 32, 2),
    "256 tokens, micro-batch 128": Shape(128, CHANNELS, 32, 2),
    "JiT 1024 px, micro-batch 16": Shape(16, 3, 1024, 32, 256),
}


@dataclass(frozen=True)
class Trained:
    """A denoiser, and how its weights are updated once they have gradients."""

    weights: list[nn.Parameter]
    predict: Callable[[Tensor, Tensor, TextTokens], Tensor]
    """Takes the noised images, their times and the text."""
    update: Callable[[], None]


def measure(tiny: bool, device: torch.device) -> Iterator[tuple[str, Json]]:
    """Yield the images/s of a step of the denoiser, clipping and AdamW included, on random data on the device."""
    shapes = {"tiny": Shape(2, 3, 8, 2)} if tiny else SHAPES
    kinds = ["plain", *(["fp8"] if runs_on(device) else []), *(["PRX"] if has_prx() else [])]
    for name, shape in shapes.items():
        for kind in kinds:
            yield f"{name}, {kind}", _speed(shape, kind, tiny, device)


def has_prx() -> bool:
    """Return whether PRX's module can be imported."""
    return find_spec("prx") is not None


def _speed(shape: Shape, kind: str, tiny: bool, device: torch.device) -> dict[str, Json]:
    """Time steps on text of a third to all of its tokens, as in a batch of captions."""
    _free()
    began_s = time.perf_counter()
    trained = _prx(shape, tiny, device) if kind == "PRX" else _own(shape, kind, tiny, device)
    with device:
        image_BCHW = torch.randn(shape.batch, shape.channels, shape.side, shape.side)
        text_BSC = torch.randn(shape.batch, TEXT_TOKENS, TEXT_DIM, dtype=torch.bfloat16)
        lengths = torch.randint(TEXT_TOKENS // 3, TEXT_TOKENS, (shape.batch,))
        text = TextTokens(text_BSC, torch.arange(TEXT_TOKENS) < lengths[:, None], tuple(lengths.tolist()))

    def step() -> None:
        noise_BCHW, t_B = torch.randn_like(image_BCHW), torch.rand(shape.batch, device=device)
        noised_BCHW = torch.lerp(image_BCHW, noise_BCHW, t_B[:, None, None, None])
        with torch.autocast(device.type, torch.bfloat16):
            predicted_BCHW = trained.predict(noised_BCHW, t_B, text)
        (predicted_BCHW.float() - noise_BCHW + image_BCHW).square().mean().backward()
        trained.update()
        for weight in trained.weights:
            weight.grad = None

    step()
    first_s = synchronized_s(device) - began_s
    with Gauge(device) as gauge:
        for _ in range(4):
            step()
        if device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(device)
        retries = _allocation_retries(device)
        clock = StepClock(device)
        gauge.start()
        clock.start()
        for _ in range(2 if tiny else 20):
            step()
            clock.end_step()
        steps_s = [one.whole_s for one in clock.steps()]
    step_s = median(steps_s)
    return {
        "images/s": shape.batch / step_s,
        "step, s": step_s,
        "fastest step, s": min(steps_s),
        "slowest step, s": max(steps_s),
        "until the first step is done, s": first_s,
        "peak memory, GiB": torch.cuda.max_memory_allocated(device) / 2**30 if device.type == "cuda" else None,
        "retries of the allocator": _allocation_retries(device) - retries,
        **gauge.figures,
    }


def _free() -> None:
    """Free the model before, which reference cycles keep: else the allocator may lack memory and retry in each step."""
    torch.compiler.reset()
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def _allocation_retries(device: torch.device) -> int:
    """Return how often the GPU had no memory left until cached blocks were freed; 0 on a CPU."""
    return int(torch.cuda.memory_stats(device)["num_alloc_retries"]) if device.type == "cuda" else 0


def _own(shape: Shape, matmul: str, tiny: bool, device: torch.device) -> Trained:
    """Build tintype's denoiser."""
    sizes = {"depth": 1, "width": 32, "heads": 2} if tiny else {}
    precision = PrecisionSettings.model_validate({"compute": "bf16", "matmul": matmul})
    settings = ModelSettings.model_validate(
        {**sizes, "patch": shape.patch, "bottleneck": shape.bottleneck, "compile": not tiny}
    )
    with device:
        model = Transformer(settings, shape.channels, TEXT_DIM, precision)
    weights = list(model.parameters())
    built = AdamWSettings().build(model.named_parameters())
    assert isinstance(built, AdamW)

    def predict(noised_BCHW: Tensor, t_B: Tensor, text: TextTokens) -> Tensor:
        predicted_BCHW: Tensor = model(noised_BCHW, t_B, text).prediction_BCHW
        return predicted_BCHW

    def update() -> None:
        built.found_inf, built.copies = torch.zeros((), device=device), model.copies()
        take_step(built, weights, None, built.copies)

    return Trained(weights, predict, update)


def prx_sizes(tiny: bool, channels: int, patch: int) -> dict[str, Any]:
    """Return the sizes of PRX's module by its own names."""
    own = ModelSettings(depth=1, width=32, heads=2) if tiny else ModelSettings()
    return {
        "in_channels": channels,
        "patch_size": patch,
        "context_in_dim": TEXT_DIM,
        "hidden_size": own.width,
        "mlp_ratio": own.mlp_ratio,
        "num_heads": own.heads,
        "depth": own.depth,
        "axes_dim": [own.width // own.heads // 2] * 2,
    }


def _prx(shape: Shape, tiny: bool, device: torch.device) -> Trained:
    """Build PRX's module, compiled as a whole, with torch's fused AdamW, as its trainer does."""
    from prx.models.prx import PRX, PRXParams  # type: ignore[import-not-found]

    sizes = prx_sizes(tiny, shape.channels, shape.patch)
    parameters = PRXParams(**sizes, theta=10_000, bottleneck_size=shape.bottleneck)
    module = PRX(parameters).to(device)
    model = module if tiny else torch.compile(module)
    weights = list(module.parameters())
    usual = AdamWSettings()
    betas, fused = (usual.beta1, usual.beta2), device.type == "cuda"
    adamw = torch.optim.AdamW(weights, usual.lr, betas, usual.eps, usual.weight_decay, fused=fused)

    def predict(noised_BCHW: Tensor, t_B: Tensor, text: TextTokens) -> Tensor:
        predicted_BCHW: Tensor = model(
            image_latent=noised_BCHW,
            timestep=t_B,
            prompt_embeds=text.tokens_BLC,
            prompt_attention_mask=text.mask_BL,
        )
        return predicted_BCHW

    def update() -> None:
        nn.utils.clip_grad_norm_(weights, _CLIP, foreach=True)
        adamw.step()

    return Trained(weights, predict, update)


def take_step(built: AdamW, weights: list[nn.Parameter], average: Ema | None, copies: list[Copy]) -> None:
    """Clip, update the weights, their average and the copies that the blocks read."""
    assert built.found_inf is not None
    factor = clip_factor(gradient_norm(weights, ONE), _CLIP)
    if built.clips:
        built.gradient_factor = factor
    else:
        multiply_gradients(weights, factor)
    built.averaging = averaging = average.begin(built.found_inf) if average else None
    built.step()
    if averaging:
        averaging.finish()
    if stale := [copy for copy in copies if not copy.fresh]:
        cast(stale)
        for copy in stale:
            copy.mark_fresh()
