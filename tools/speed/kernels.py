"""`python -m tools.speed.kernels training|optimizer|sampling FILE`: time the 1.17B model, part by part.

The file is whole after each part.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from statistics import median

import torch
from torch import Tensor, nn

from tintype.bench.clock import StepClock
from tintype.flow.path import sampling_times
from tintype.flow.sampler import euler
from tintype.model import Transformer
from tintype.model.fp8 import runs_on
from tintype.optim.adamw import AdamW, AdamWSettings
from tintype.optim.ema import Ema
from tintype.runtime.clock import synchronized_s
from tintype.runtime.copies import Copy
from tintype.runtime.files import Json, write_json
from tintype.runtime.machine import choose_device, environment
from tintype.seams import TextTokens
from tintype.settings import ModelSettings, PrecisionSettings
from tools.speed import training
from tools.speed.training import CHANNELS, TEXT_DIM, TEXT_TOKENS, prx_sizes, take_step

REAL_TOKENS = 170
_GUIDANCE = 3.5
Velocity = Callable[[Tensor, float], Tensor]
Guided = Callable[[], Velocity]
"""Begins an image."""


def denoiser(tiny: bool, device: torch.device, precision: PrecisionSettings) -> Transformer:
    """Build PRX's denoiser of 16 latent channels; random weights, since zeros need less power."""
    settings = ModelSettings(depth=1, width=32, heads=2) if tiny else ModelSettings()
    with device:
        model = Transformer(settings, CHANNELS, TEXT_DIM, precision)
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.02)
    return model.eval()


def optimizer(tiny: bool, device: torch.device) -> Iterator[tuple[str, Json]]:
    """Yield the milliseconds of norm, clipping, AdamW, weight average and bf16 copies."""
    weights = dict(denoiser(tiny, device, PrecisionSettings()).named_parameters())
    for name, one_pass, extras in (
        ("AdamW and clipping in one pass", True, False),
        ("AdamW and clipping apart", False, False),
        ("with the average and the copies, in one pass", True, True),
        ("with the average and the copies, apart", False, True),
    ):
        found_s = _step_s(weights, one_pass, extras, 3 if tiny else 30)
        yield f"{name}, ms", None if found_s is None else 1000 * found_s


def _step_s(weights: dict[str, nn.Parameter], one_pass: bool, extras: bool, steps: int) -> float | None:
    """Return the median seconds of a step; None if the device cannot make it in one pass."""
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
        take_step(built, list(weights.values()), average, copies)
        clock.end_step()
    for weight in weights.values():
        weight.grad = None
    return median(one.whole_s for one in clock.steps())


@torch.no_grad()
def sampling(tiny: bool, device: torch.device) -> Iterator[tuple[str, Json]]:
    """Yield the seconds of 28 Euler steps with guidance for one image of 1024 px, and of the first such loop.

    If diffusers is installed, its PRX is measured too: in bf16, compiled.
    """
    builders: dict[str, Callable[[], Guided]] = {"plain": lambda: _own_guided(tiny, device, PrecisionSettings())}
    if runs_on(device):
        builders["fp8"] = lambda: _own_guided(tiny, device, PrecisionSettings(matmul="fp8"))
    if find_spec("diffusers"):
        builders["diffusers"] = lambda: _diffusers_guided(tiny, device)
    for name, build in builders.items():
        yield name, dict(_loops(build, tiny, device))


def _loops(build: Callable[[], Guided], tiny: bool, device: torch.device) -> Iterator[tuple[str, Json]]:
    torch.compiler.reset()
    side, steps = (8, 2) if tiny else (128, 28)
    began_s = time.perf_counter()
    guided = build()
    noise_BCHW = torch.randn(1, CHANNELS, side, side, device=device)

    def loop() -> None:
        with torch.autocast(device.type, torch.bfloat16):
            euler(guided(), noise_BCHW, sampling_times(steps, 1.0))

    yield "until the first image, s", _seconds(loop, device, began_s)
    loop()
    yield "an image, s", min(_seconds(loop, device) for _ in range(3))


def _text(device: torch.device) -> TextTokens:
    """Return the text of both branches, with padding."""
    real_BS = (torch.arange(TEXT_TOKENS, device=device) < REAL_TOKENS).expand(2, -1)
    return TextTokens(torch.randn(2, TEXT_TOKENS, TEXT_DIM, device=device), real_BS, (REAL_TOKENS,) * 2)


def _own_guided(tiny: bool, device: torch.device, precision: PrecisionSettings) -> Guided:
    """Return tintype's velocity with guidance; the text is read once for all steps of an image."""
    model, text = denoiser(tiny, device, precision), _text(device)

    def begin() -> Velocity:
        cached = model.read_text(text)
        return lambda x_BCHW, t: _guide(model(_twice(x_BCHW), x_BCHW.new_full((2,), t), cached).prediction_BCHW)

    return begin


def _diffusers_guided(tiny: bool, device: torch.device) -> Guided:
    """Return the velocity of diffusers' PRX with guidance."""
    import diffusers

    text, sizes = _text(device), prx_sizes(tiny, CHANNELS, patch=2)
    model = getattr(diffusers, "PRXTransformer2DModel")(**sizes)  # noqa: B009 (it has no types)
    model = model.to(device, torch.bfloat16).eval()
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.02)
    if not tiny:
        model.compile()  # as a whole: it names no blocks of its own to compile apart

    def velocity(x_BCHW: Tensor, t: float) -> Tensor:
        two_BCHW = _twice(x_BCHW).bfloat16()
        with torch.autocast(device.type, enabled=False):  # its weights are bf16
            found = model(
                hidden_states=two_BCHW,
                timestep=two_BCHW.new_full((2,), t),
                encoder_hidden_states=text.tokens_BLC.bfloat16(),
                attention_mask=text.mask_BL,
                return_dict=False,
            )
        return _guide(found[0])

    return lambda: velocity


def _twice(x_BCHW: Tensor) -> Tensor:
    return torch.cat([x_BCHW, x_BCHW])


def _guide(predicted_BCHW: Tensor) -> Tensor:
    captioned, null = predicted_BCHW.float().chunk(2)
    return null + _GUIDANCE * (captioned - null)


def _seconds(work: Callable[[], None], device: torch.device, began_s: float | None = None) -> float:
    began_s = synchronized_s(device) if began_s is None else began_s
    work()
    return synchronized_s(device) - began_s


Measure = Callable[[bool, torch.device], Iterator[tuple[str, Json]]]
MEASURES: dict[str, Measure] = {"training": training.measure, "optimizer": optimizer, "sampling": sampling}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tools.speed.kernels")
    parser.add_argument("what", choices=tuple(MEASURES))
    parser.add_argument("out", type=Path)
    parser.add_argument("--tiny", action="store_true")
    options = parser.parse_args()
    device = choose_device("auto")
    report: dict[str, Json] = {"environment": environment(device), "tiny": options.tiny}
    for name, found in MEASURES[options.what](options.tiny, device):
        report[name] = found
        write_json(options.out, report)
        print(f"{name}: {found}", flush=True)


if __name__ == "__main__":
    main()
