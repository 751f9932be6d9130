"""Builds the parts of a run from its Plan. Everything that owns trainable parameters is registered here, once."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import nn

from tintype.data.scenes.source import scene_source
from tintype.errors import UserError
from tintype.model import Transformer
from tintype.plan import Plan
from tintype.rng import stream_key
from tintype.seams import CaptionPolicy, ImageSource, LossTerm, Objective, Router, TextEncoder, Tokenizer


@dataclass(frozen=True)
class Parts:
    plan: Plan
    device: torch.device
    source: ImageSource
    captions: CaptionPolicy
    text: TextEncoder
    tokenizer: Tokenizer
    denoiser: Transformer
    objective: Objective
    router: Router | None
    terms: tuple[LossTerm, ...]
    modules: nn.ModuleDict
    """All that is trained: optimizer, weight average, checkpoint and export see exactly this."""

    @property
    def taps(self) -> frozenset[int]:
        return frozenset().union(*(term.taps for term in self.terms))

    @contextmanager
    def compute(self) -> Iterator[None]:
        """Runs the matrix products in the plan's type."""
        bf16 = self.plan.precision.compute == "bf16"
        with torch.autocast(self.device.type, dtype=torch.bfloat16, enabled=bf16):
            yield


def choose_device(name: str) -> torch.device:
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError:
        raise UserError(f"run.device: '{name}' is no device; valid: auto, cpu, cuda, cuda:N") from None
    if device.type == "cuda" and not torch.cuda.is_available():
        raise UserError(f"run.device is {name}, but no CUDA device is available here; use --set run.device=cpu")
    return device


def build_parts(plan: Plan) -> Parts:
    device = choose_device(plan.run.device)
    tokenizer = plan.tokenizer.build()
    _check_sizes(plan, tokenizer)
    source = scene_source(plan.data, "train", device)
    _check_column(plan, source)
    with seeded(plan.seed, "text"):
        text = plan.text.build()
    with seeded(plan.seed, "denoiser"):
        denoiser = Transformer(plan.model, tokenizer.channels, text.dim)
    terms = []
    for settings in plan.losses:
        with seeded(plan.seed, f"losses.{settings.kind}"):
            terms.append(settings.build(plan.model.width))
    owners = {"denoiser": denoiser, "text": text, **{f"losses_{term.name}": term for term in terms}}
    modules = nn.ModuleDict({name: owner for name, owner in owners.items() if isinstance(owner, nn.Module)})
    return Parts(
        plan=plan,
        device=device,
        source=source,
        captions=plan.captions.build(),
        text=text,
        tokenizer=tokenizer,
        denoiser=denoiser,
        objective=plan.objective.build(plan.time),
        router=plan.route.build(plan.model.depth) if plan.route else None,
        terms=tuple(terms),
        modules=modules.to(device),
    )


@contextmanager
def seeded(seed: int, name: str) -> Iterator[None]:
    """Initialises one part from its own stream, so that an arm with one part more leaves the others' weights alone."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(stream_key(seed, f"init/{name}"))
        yield


def _check_sizes(plan: Plan, tokenizer: Tokenizer) -> None:
    unit = tokenizer.stride_px * plan.model.patch
    if plan.data.size_px % unit:
        raise UserError(
            f"data.size_px ({plan.data.size_px}) must be a multiple of {unit} (tokenizer stride × model.patch)"
        )


def _check_column(plan: Plan, source: ImageSource) -> None:
    columns = sorted(source.records([0])[0].captions)
    wanted = plan.captions.columns()
    for column in wanted:
        if column not in columns:
            raise UserError(f"captions: the data has no caption column '{column}'; it has {', '.join(columns)}")
