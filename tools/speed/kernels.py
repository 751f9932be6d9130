"""`python -m tools.speed.kernels training|optimizer|sampling FILE`: time the 1.17B model, part by part."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import torch
from torch import Tensor, nn

from tintype.bench.clock import StepClock
from tintype.flow.path import sampling_times
from tintype.flow.sampler import integrate
from tintype.model import Transformer
from tintype.model.fp8 import runs_on
from tintype.optim.adamw import AdamW, AdamWSettings
from tintype.optim.ema import Ema
from tintype.runtime.clock import synchronized_s
from tintype.runtime.copies import Copy, cast
from tintype.runtime.files import Json, write_json
from tintype.runtime.gradients import clip_factor, gradient_norm, multiply_gradients
from tintype.runtime.layout import ONE
from tintype.runtime.machine import choose_device, environment
from tintype.seams import TextTokens
from tintype.settings import ModelSettings, PrecisionSettings

CHANNELS, TEXT_DIM, TEXT_TOKENS, REAL_TOKENS = 16, 2304, 256, 170
_GUIDANCE = 3.5


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


def training(tiny: bool, device: torch.device) -> dict[str, Json]:
    """Return the images/s of a step of the denoiser, clipping and AdamW included, on random data on the device."""
    shapes = {"tiny": Shape(2, 3, 8, 2)} if tiny else SHAPES
    kinds = ("plain", "fp8") if runs_on(device) else ("plain",)
    return {
        f"{name}, {kind}": _training_speed(shape, kind, tiny, device)
        for name, shape in shapes.items()
        for kind in kinds
    }


def _training_speed(shape: Shape, matmul: str, tiny: bool, device: torch.device) -> dict[str, Json]:
    """Time steps on text of a third to all of its tokens, as in a batch of captions."""
    sizes = {"depth": 1, "width": 32, "heads": 2} if tiny else {}
    precision = PrecisionSettings.model_validate({"compute": "bf16", "matmul": matmul})
    settings = ModelSettings.model_validate(
        {**sizes, "patch": shape.patch, "bottleneck": shape.bottleneck, "compile": not tiny}
    )
    began_s = time.perf_counter()
    with device:
        model = Transformer(settings, shape.channels, TEXT_DIM, precision)
        image_BCHW = torch.randn(shape.batch, shape.channels, shape.side, shape.side)
        text_BSC = torch.randn(shape.batch, TEXT_TOKENS, TEXT_DIM, dtype=torch.bfloat16)
        lengths = torch.randint(TEXT_TOKENS // 3, TEXT_TOKENS, (shape.batch,))
        text = TextTokens(text_BSC, torch.arange(TEXT_TOKENS) < lengths[:, None], tuple(lengths.tolist()))
    weights = list(model.parameters())
    built = AdamWSettings().build(model.named_parameters())
    assert isinstance(built, AdamW)

    def step() -> None:
        noise_BCHW, t_B = torch.randn_like(image_BCHW), torch.rand(shape.batch, device=device)
        noised_BCHW = torch.lerp(image_BCHW, noise_BCHW, t_B[:, None, None, None])
        with torch.autocast(device.type, torch.bfloat16):
            predicted_BCHW = model(noised_BCHW, t_B, text).prediction_BCHW
        (predicted_BCHW.float() - noise_BCHW + image_BCHW).square().mean().backward()
        built.found_inf, built.copies = torch.zeros((), device=device), model.copies()
        _step(built, weights, None, built.copies)
        for weight in weights:
            weight.grad = None

    first_s = _seconds(step, device, began_s)
    for _ in range(4):
        step()
    clock = StepClock(device)
    clock.start()
    for _ in range(2 if tiny else 20):
        step()
        clock.end_step()
    step_s = median(one.whole_s for one in clock.steps())
    return {"images/s": shape.batch / step_s, "step, s": step_s, "until the first step is done, s": first_s}


def denoiser(tiny: bool, device: torch.device, precision: PrecisionSettings) -> Transformer:
    """Build PRX's denoiser of 16 latent channels; random weights, since zeros need less power."""
    settings = ModelSettings(depth=1, width=32, heads=2) if tiny else ModelSettings()
    with device:
        model = Transformer(settings, CHANNELS, TEXT_DIM, precision)
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.02)
    return model.eval()


def optimizer(tiny: bool, device: torch.device) -> dict[str, Json]:
    """Return the milliseconds of norm, clipping, AdamW, weight average and bf16 copies."""
    weights = dict(denoiser(tiny, device, PrecisionSettings()).named_parameters())
    return {
        f"{name}, ms": None
        if (found := _step_s(weights, one_pass, extras, 3 if tiny else 30)) is None
        else 1000 * found
        for name, one_pass, extras in (
            ("AdamW and clipping in one pass", True, False),
            ("AdamW and clipping apart", False, False),
            ("with the average and the copies, in one pass", True, True),
            ("with the average and the copies, apart", False, True),
        )
    }


def _step_s(weights: dict[str, nn.Parameter], one_pass: bool, extras: bool, steps: int) -> float | None:
    """Return the median seconds of a step; None where the device cannot take it in one pass."""
    built = AdamWSettings().build(weights.items())
    assert isinstance(built, AdamW)
    if one_pass and not built.clips:
        return None
    built.clips = one_pass
    device = next(iter(weights.values())).device
    average = Ema(0.999, weights) if extras else None
    matrices = [one for name, one in weights.items() if extras and name.startswith("blocks.") and one.ndim == 2]
    copies = [Copy(one, torch.empty_like(one, dtype=torch.bfloat16)) for one in matrices]
    built.found_inf, built.copies = torch.zeros((), device=device), copies
    for weight in weights.values():
        weight.grad = torch.randn_like(weight)
    clock = StepClock(device)
    for step in range(steps + 3):
        if step == 3:
            clock.start()
        _step(built, list(weights.values()), average, copies)
        clock.end_step()
    for weight in weights.values():
        weight.grad = None
    return median(one.whole_s for one in clock.steps())


def _step(built: AdamW, weights: list[nn.Parameter], average: Ema | None, copies: list[Copy]) -> None:
    assert built.found_inf is not None
    factor = clip_factor(gradient_norm(weights, ONE), 1.0)
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


@torch.no_grad()
def sampling(tiny: bool, device: torch.device) -> dict[str, Json]:
    """Return the seconds of 28 Euler steps with guidance for one image of 1024 px, and of the first such loop."""
    kinds = [PrecisionSettings(), *([PrecisionSettings(matmul="fp8")] if runs_on(device) else [])]
    return {precision.matmul: dict(_loops(tiny, device, precision)) for precision in kinds}


def _loops(tiny: bool, device: torch.device, precision: PrecisionSettings) -> Iterator[tuple[str, Json]]:
    began_s = time.perf_counter()
    model, side, steps = denoiser(tiny, device, precision), *((8, 2) if tiny else (128, 28))
    noise_BCHW = torch.randn(1, CHANNELS, side, side, device=device)
    real_BS = (torch.arange(TEXT_TOKENS, device=device) < REAL_TOKENS).expand(2, -1)
    text = TextTokens(torch.randn(2, TEXT_TOKENS, TEXT_DIM, device=device), real_BS, (REAL_TOKENS,) * 2)

    def loop() -> None:
        with torch.autocast(device.type, torch.bfloat16):
            cached = model.read_text(text)

            def guided(x_BCHW: Tensor, t: float) -> Tensor:
                output = model(torch.cat([x_BCHW, x_BCHW]), x_BCHW.new_full((2,), t), cached)
                captioned, null = output.prediction_BCHW.float().chunk(2)
                velocity: Tensor = null + _GUIDANCE * (captioned - null)
                return velocity

            integrate(guided, noise_BCHW, sampling_times(steps, 1.0))

    yield "until the first image, s", _seconds(loop, device, began_s)
    loop()
    yield "an image, s", min(_seconds(loop, device) for _ in range(3))


def _seconds(work: Callable[[], None], device: torch.device, began_s: float | None = None) -> float:
    began_s = synchronized_s(device) if began_s is None else began_s
    work()
    return synchronized_s(device) - began_s


MEASURES = {"training": training, "optimizer": optimizer, "sampling": sampling}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tools.speed.kernels")
    parser.add_argument("what", choices=tuple(MEASURES))
    parser.add_argument("out", type=Path)
    parser.add_argument("--tiny", action="store_true")
    options = parser.parse_args()
    device = choose_device("auto")
    found = MEASURES[options.what](options.tiny, device)
    write_json(options.out, {"environment": environment(device), "tiny": options.tiny, **found})


if __name__ == "__main__":
    main()
