"""Build a model for sampling from a plan, with its networks, and with a registry of all modules that own parameters."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from functools import cached_property

import torch
from torch import Tensor, nn

from tintype import seams
from tintype.data.sources import open_order, open_source
from tintype.flow.guidance import Guide
from tintype.flow.routes import Unrouted
from tintype.losses.class_token import ClassTokens, ClassTokenSettings, noised_class_tokens
from tintype.model import TextCache, Transformer, fp8
from tintype.plan import Plan
from tintype.rng import seeded
from tintype.runtime.machine import choose_device
from tintype.runtime.notes import note
from tintype.settings import PrecisionSettings
from tintype.text.cache import CachedText
from tintype.text.frozen import FrozenTextEncoder


@dataclass(frozen=True, kw_only=True)
class Model:
    """A model for sampling. Components that only training needs are in `train.session`."""

    plan: Plan
    device: torch.device
    text: seams.TextEncoder
    tokenizer: seams.Tokenizer
    denoiser: Transformer
    objective: seams.Objective
    router: seams.Router
    modules: nn.ModuleDict
    """All modules with trained weights. Optimizer, average and checkpoint use exactly these modules."""
    trained_steps: int | None = None
    """Number of training steps of the loaded weights; None for new weights."""
    opened: seams.ImageSource | None = None
    """The training images; None if they are not open yet."""
    guides: Mapping[Guide, Model] = field(default_factory=dict)
    """The same model with earlier weights, used for autoguidance."""

    @cached_property
    def source(self) -> seams.ImageSource:
        """Return the training images, opened on first use, since sampling also works on a machine without the data."""
        return open_source(self.plan.data, "train", self.device) if self.opened is None else self.opened

    def source_of(self, size_px: int) -> seams.ImageSource:
        """Return the training images in the size of the plan's data, or of a training stage."""
        return self.source if size_px == self.plan.data.size_px else open_smaller(self.plan, size_px, self.device)

    @cached_property
    def order(self) -> seams.Order:
        return open_order(self.plan.seed, self.plan.data, self.plan.train, self.source)

    def route(self, z_BCHW: Tensor, step: int, draws: seams.Draws) -> seams.Route | None:
        """Return the tokens' route through the blocks for a training step. The same arguments give the same route."""
        patch = self.plan.model.patch
        return self.router.plan((z_BCHW.shape[2] // patch, z_BCHW.shape[3] // patch), step, draws)

    def velocity(
        self,
        x_t_BCHW: Tensor,
        t_B: Tensor,
        text: seams.TextTokens | TextCache,
        route: seams.Route | None = None,
        class_BT: Tensor | None = None,
    ) -> Tensor:
        """Return the velocity for sampling and validation. Without a `route`, all tokens pass through all blocks."""
        return self.velocities(x_t_BCHW, t_B, text, route, class_BT)[0]

    def velocities(
        self,
        x_t_BCHW: Tensor,
        t_B: Tensor,
        text: seams.TextTokens | TextCache,
        route: seams.Route | None = None,
        class_BT: Tensor | None = None,
    ) -> tuple[Tensor, Tensor | None]:
        """Return the velocity of the image, and the velocity of the class token (None without a class token)."""
        output = self.denoiser(x_t_BCHW, t_B, text, route=route or self.router.whole(), class_BT=class_BT)
        return self.objective.velocity(output.prediction_BCHW, x_t_BCHW, t_B), output.class_BT

    @cached_property
    def class_tokens(self) -> ClassTokens | None:
        """Return the teacher of the class token, for validation only: sampling needs no teacher."""
        found = (loss.teacher for loss in self.plan.losses if isinstance(loss, ClassTokenSettings))
        return next((ClassTokens(teacher, self.device) for teacher in found), None)

    def tap(self, x_BCHW: Tensor, batch: seams.JointBatch, taps: frozenset[int]) -> seams.Tapped:
        """Run the denoiser up to the last tapped block, with the times and noise of the batch."""
        sample = self.objective.draw(x_BCHW, batch.draws)
        text = replace(batch.text, tokens_BLC=batch.text.tokens_BLC.detach())
        route = self.route(x_BCHW, batch.step, batch.draws)
        class_BT = noised_class_tokens(self.plan.model.class_token, batch.seen, batch.draws, sample.t_B)
        tapped: seams.Tapped = self.denoiser(
            sample.x_t_BCHW, sample.t_B, text, route=route, taps=taps, only_taps=True, class_BT=class_BT
        )
        return tapped

    def compute(self) -> AbstractContextManager[None]:
        return torch.autocast(self.device.type, torch.bfloat16, enabled=self.plan.precision.compute == "bf16")


def open_smaller(plan: Plan, size_px: int, device: torch.device) -> seams.ImageSource:
    """Open the training images in the size of an earlier stage."""
    if len(plan.data.shapes) > 1:
        return open_source(plan.data, "train", device, plan.shapes_at_size(size_px))
    return open_source(plan.data.at_size(size_px), "train", device)


LOSSES = "losses_"
"""Prefix of parameters that a loss term owns, which sampling does not need."""
TOKENIZER = "tokenizer."
"""Prefix of parameters of a tokenizer trained jointly with the denoiser: always fp32, and not averaged."""
JOINT_ONLY = "adversary."
"""Prefix of parameters that only joint training uses, and that sampling does not need."""
JOINT = (TOKENIZER, JOINT_ONLY)


def build_model(plan: Plan) -> Model:
    """Build a model for sampling, replicated on every rank, without components that only training needs."""
    device = choose_device(plan.run.device)
    networks = build_networks(plan, device, _precision_to_sample(plan.precision, device))
    return Model(
        plan=plan,
        device=device,
        objective=build_objective(plan),
        modules=register(vars(networks)).to(device),
        **vars(networks),
    )


def build_twin(parts: Model) -> Model:
    """Build a second model for other weights of the same run. Both models share frozen networks and the tokenizer."""
    plan, device = parts.plan, parts.device
    networks = build_networks(plan, device, _precision_to_sample(plan.precision, device), parts)
    trained = {name: network for name, network in vars(networks).items() if network is not parts.tokenizer}
    return replace(parts, modules=register(trained).to(device), **trained)


def build_objective(plan: Plan) -> seams.Objective:
    objective = plan.objective.build(plan.time_density)
    return objective if plan.noise is None else plan.noise.pair(objective)


@dataclass(frozen=True)
class Networks:
    denoiser: Transformer
    text: seams.TextEncoder
    router: seams.Router
    tokenizer: seams.Tokenizer


def build_networks(
    plan: Plan, device: torch.device, precision: PrecisionSettings, shared: Model | None = None
) -> Networks:
    """Build the networks that sampling and training share, each with its own random stream for initialisation.

    If `shared` is given, its tokenizer and its frozen text encoder are used.
    """
    tokenizer = _build_tokenizer(plan, device) if shared is None else shared.tokenizer
    frozen_text = None if shared is None or isinstance(shared.text, nn.Module) else shared.text
    text = frozen_text or _build_text(plan, device)
    with seeded(plan.seed, "denoiser"):
        denoiser = Transformer(plan.model, tokenizer.channels, text.dim, precision)
    with seeded(plan.seed, "router"):
        router = plan.route.build(plan.model) if plan.route else Unrouted(plan.model.depth)
    return Networks(denoiser, text, router, tokenizer)


def _build_tokenizer(plan: Plan, device: torch.device) -> seams.Tokenizer:
    return plan.tuning.build_tokenizer(plan.tokenizer) if plan.tuning else plan.tokenizer.build(device)


def _build_text(plan: Plan, device: torch.device) -> seams.TextEncoder:
    with seeded(plan.seed, "text"):
        text = plan.text.build(device)
    if plan.run.text_embeddings == "disk" and isinstance(text, FrozenTextEncoder):  # a trained encoder's output changes
        return CachedText(text)
    return text


def register(owners: Mapping[str, object]) -> nn.ModuleDict:
    """Register every object that owns parameters, under its name in checkpoints."""
    return nn.ModuleDict({name: owner for name, owner in owners.items() if isinstance(owner, nn.Module)})


def lacks_fp8(precision: PrecisionSettings, device: torch.device) -> str:
    """Return the reason why the device cannot compute the plan's FP8 products; '' if it can or the plan has none."""
    if precision.matmul == "plain" or fp8.runs_on(device):
        return ""
    return f"{device} has no FP8 matrix products (NVIDIA GPUs of compute capability 8.9 and above have)"


def _precision_to_sample(precision: PrecisionSettings, device: torch.device) -> PrecisionSettings:
    """Return the denoiser's precision for sampling: bf16, with a note, if the device cannot compute FP8 products."""
    lacking = lacks_fp8(precision, device)
    if not lacking:
        return precision
    note(f"the run was trained with FP8 products, but {lacking}; computing in bf16 instead")
    return precision.model_copy(update={"matmul": "plain"})


def storage_dtype(plan: Plan, name: str) -> torch.dtype:
    """Return the dtype in which training stores a parameter. The optimizer's moments have the same dtype."""
    own = name.startswith((LOSSES, *JOINT))
    return torch.bfloat16 if plan.precision.storage == "bf16" and not own else torch.float32
