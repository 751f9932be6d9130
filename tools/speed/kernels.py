"""`python -m tools.speed.kernels optimizer|sampling FILE`: time AdamW or the denoising loop of the 1.17B model."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator
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


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tools.speed.kernels")
    parser.add_argument("what", choices=("optimizer", "sampling"))
    parser.add_argument("out", type=Path)
    parser.add_argument("--tiny", action="store_true")
    options = parser.parse_args()
    device = choose_device("auto")
    found = (optimizer if options.what == "optimizer" else sampling)(options.tiny, device)
    write_json(options.out, {"environment": environment(device), "tiny": options.tiny, **found})


if __name__ == "__main__":
    main()
