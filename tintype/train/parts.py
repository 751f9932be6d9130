"""Builds the parts of a run from its Plan. Everything that owns trainable parameters is registered here, once."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from tintype.data.mixture.source import columns_by_part
from tintype.data.mixture.source import identities as of_data
from tintype.data.sources import LaterSource, open_order, open_source
from tintype.errors import UserError
from tintype.flow.routes import Unrouted
from tintype.losses import LossPart
from tintype.model import TextCache, Transformer, fp8
from tintype.plan import Plan
from tintype.rng import seeded
from tintype.runtime import dist as world
from tintype.runtime.dist import World
from tintype.runtime.gradients import NO_OTHERS, GradientMean
from tintype.runtime.layout import ONE, Layout, as_the_leader_has_it, cut_into_pieces, lay_out, share_of_batch
from tintype.runtime.transfer import send
from tintype.seams import (
    CaptionPolicy,
    Draws,
    ImageSource,
    JointBatch,
    JointTraining,
    LossTerm,
    Objective,
    Order,
    Place,
    Route,
    Router,
    Tapped,
    TextEncoder,
    TextTokens,
    Tokenizer,
    Weighting,
)
from tintype.settings import DataPart, PrecisionSettings, RunSettings
from tintype.text.cache import CachedText
from tintype.text.frozen import FrozenTextEncoder
from tintype.tokenizers.latent_cache import LatentCache, open_latent_cache, why_uncacheable


@dataclass(frozen=True)
class Term:
    """A loss term with its settings, which hold its weight."""

    settings: LossPart
    part: LossTerm

    @property
    def name(self) -> str:
        return self.settings.kind


@dataclass(frozen=True)
class Parts:
    plan: Plan
    device: torch.device
    source: ImageSource
    order: Order
    captions: CaptionPolicy
    text: TextEncoder
    tokenizer: Tokenizer
    denoiser: Transformer
    objective: Objective
    weighting: Weighting | None
    router: Router
    terms: tuple[Term, ...]
    modules: nn.ModuleDict
    """All that is trained: optimizer, weight average and checkpoint see exactly this."""
    layout: Layout = ONE
    gradients: GradientMean = NO_OTHERS
    joint: JointTraining | None = None
    """Where the tokenizer is trained too, and this is a training."""
    trained_steps: int | None = None
    """How long the weights were trained, where they were loaded."""
    kept: LatentCache | None = None
    """The latents on the disk, where `run.latents` asks for them."""
    sources_by_size: Mapping[int, ImageSource] = field(default_factory=dict)
    """The same images, by the same ids, in the sizes of the plan's stages; `source` has those of the last one."""

    @property
    def world(self) -> World:
        return self.layout.world

    @property
    def identities(self) -> dict[str, str | None]:
        """What was loaded and is not trained, losses aside: a run goes on with the same."""
        return {**of_data(self.source), "tokenizer": self.tokenizer.identity, "text": self.text.identity}

    def source_at(self, step: int) -> ImageSource:
        """The images in the size of this step."""
        return self.sources_by_size.get(self.plan.size_px_at(step), self.source)

    def terms_at(self, step: int) -> list[Term]:
        """The terms that have a weight at this step."""
        return [term for term in self.terms if term.settings.weight_at(step)]

    def release_losses(self, step: int) -> list[str]:
        """Release what the losses that are just over had loaded, and return their names: a teacher leaves memory."""
        ended = [term for term in self.terms if (over := term.settings.schedule.over)(step) and not over(step - 1)]
        for term in ended:
            term.part.release()
        return [term.name for term in ended]

    def wants_images(self, terms: Sequence[Term]) -> bool:
        """Whether steps with these terms need the images themselves."""
        return self.kept is None or any(term.part.needs_images for term in terms)

    def latents(self, ids: Sequence[int], image_BCHW: Tensor | None, draws: Draws) -> Tensor:
        """The latents of the images, on the device; those that are kept need no images."""
        if self.kept is not None:
            return self.kept(ids, draws)
        if image_BCHW is None:
            image_BCHW = send(self.source.images(ids), self.device)
        return self.tokenizer.encode(image_BCHW, draws)

    def optimized(self) -> dict[str, list[str]]:
        """Which parameters are optimized how, by name."""
        named = dict(self.modules.named_parameters())
        groups = self.plan.optimizer.groups({name: one for name, one in named.items() if not name.startswith(JOINT)})
        for group in self.joint.groups if self.joint else ():
            groups[group.name] = [name for name in named if name.startswith(group.prefix)]
        return groups

    def ready(self, step: int = 0) -> dict[str, str | None]:
        """Loads what the losses compare with from this step on, and gives the identities."""
        running = [term for term in self.terms if not term.settings.schedule.over(step)]
        identities = {term.name: term.part.ready() for term in running}
        return identities | (self.joint.ready() if self.joint else {})

    def route(self, z_BCHW: Tensor, step: int, draws: Draws) -> Route | None:
        """The tokens' way through a step of training: the same whenever it is asked for."""
        patch = self.plan.model.patch
        return self.router.plan((z_BCHW.shape[2] // patch, z_BCHW.shape[3] // patch), step, draws)

    def velocity(
        self, x_t_BCHW: Tensor, t_B: Tensor, text: TextTokens | TextCache, route: Route | None = None
    ) -> Tensor:
        """The velocity as sampling and validation see it, where every token goes through every block by default."""
        output = self.denoiser(x_t_BCHW, t_B, text, route=route or self.router.whole())
        return self.objective.velocity(output.prediction_BCHW, x_t_BCHW, t_B)

    def tap(self, x_BCHW: Tensor, batch: JointBatch, taps: frozenset[int]) -> Tapped:
        """Run the denoiser up to the last tapped block, at the t and with the noise of the batch."""
        sample = self.objective.draw(x_BCHW, batch.draws)
        text = TextTokens(batch.text.tokens_BLC.detach(), batch.text.mask_BL)
        route = self.route(x_BCHW, batch.step, batch.draws)
        tapped: Tapped = self.denoiser(sample.x_t_BCHW, sample.t_B, text, route=route, taps=taps, only_taps=True)
        return tapped

    @contextmanager
    def compute(self) -> Iterator[None]:
        """Runs the matrix products in the plan's type."""
        bf16 = self.plan.precision.compute == "bf16"
        with torch.autocast(self.device.type, dtype=torch.bfloat16, enabled=bf16):
            yield


@contextmanager
def exact_fp32(exact: bool = True) -> Iterator[None]:
    """What the plan does not send to another type is fp32: cuDNN would by itself round its convolutions to TF32."""
    before = torch.backends.cudnn.allow_tf32
    torch.backends.cudnn.allow_tf32 = not exact
    try:
        yield
    finally:
        torch.backends.cudnn.allow_tf32 = before


@contextmanager
def cpu_threads(run: RunSettings, threads: int | None = None) -> Iterator[None]:
    """Compute on the CPU with the run's number of threads, or `threads`: another number adds sums in another order.

    On a GPU torch's own number stays: runs are not bit-exact there.
    """
    before = torch.get_num_threads()
    if choose_device(run.device).type == "cpu":
        torch.set_num_threads(threads or run.threads)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def choose_device(name: str) -> torch.device:
    if name in ("auto", "cuda") and torch.cuda.is_available() and world.current().joined:
        return torch.device("cuda", world.current().local_rank)
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if name.startswith("cuda:") and world.current().size > 1:
        raise UserError(f"run.device is {name}, but torchrun started several ranks, each with its own GPU; use auto")
    try:
        device = torch.device(name)
    except RuntimeError:
        raise UserError(f"run.device: '{name}' is no device; valid: auto, cpu, cuda, cuda:N") from None
    if device.type == "cuda" and not torch.cuda.is_available():
        raise UserError(f"run.device is {name}, but no CUDA device is available here; use --set run.device=cpu")
    return device


LOSSES = "losses_"
"""Stands before the names of parameters that a loss term owns. Sampling needs none of them."""
TOKENIZER = "tokenizer."
"""Prefix of the parameters of a tokenizer that a joint training trains: fp32 always, and not averaged."""
JOINT_ONLY = "adversary."
"""Prefix of the parameters that a joint training has for itself. Sampling needs none of them."""
JOINT = (TOKENIZER, JOINT_ONLY)


def build_parts(plan: Plan, training: bool = True) -> Parts:
    """All parts of a run; without its loss terms, and whole on every rank, where nothing is trained."""
    device = choose_device(plan.run.device)
    layout = lay_out(plan.run.distribution, world.current(), device) if training else ONE
    share = share_of_batch(
        plan.train.batch, plan.train.accumulate, layout.world
    )  # refuses what cannot be shared, before anything is built
    precision = precision_on(device, plan.precision, training)
    tokenizer = _build_tokenizer(plan, device)
    opened = open_source if training else LaterSource
    source: ImageSource = opened(plan.data, "train", device)
    if training:
        check_columns(plan, source)
    order = open_order(plan.seed, plan.data, plan.train, source, device)
    kept: LatentCache | None = None
    if training and plan.run.latents == "disk" and why_uncacheable(plan.tokenizer, plan.tuning) is None:
        kept = open_latent_cache(
            plan.tokenizer.kind, tokenizer, plan.data, source, device, batch=share, folder=plan.run.latents_folder
        )
    with seeded(plan.seed, "text"):
        text = _build_text(plan, device)
    if plan.model.compile:
        text.compile_layers()
    with seeded(plan.seed, "denoiser"):
        denoiser = Transformer(plan.model, tokenizer.channels, text.dim, precision)
    with seeded(plan.seed, "router"):
        router = plan.route.build(plan.model) if plan.route else Unrouted(plan.model.depth)
    objective = plan.objective.build(plan.time)
    terms = _build_terms(plan, source, device) if training else ()
    of_losses = {LOSSES + term.name: term.part for term in terms}
    joint = plan.tuning.build(plan, plan.seed, tokenizer) if plan.tuning and training else None
    trained = joint.modules if joint else {"tokenizer": tokenizer}
    owners = {"denoiser": denoiser, "text": text, "router": router, **of_losses, **trained}
    modules = nn.ModuleDict({name: owner for name, owner in owners.items() if isinstance(owner, nn.Module)})
    for name, parameter in modules.named_parameters() if training else ():
        parameter.data = parameter.data.to(storage_dtype(plan, name))
    modules = modules.to(device)
    if joint:
        joint.begin(source, order, plan.seed, plan.train.steps * plan.train.batch)
    if layout.world.size > 1:
        loaded = {"tokenizer": tokenizer.identity, "text": text.identity}
        layout.world.agree({**loaded, **(of_data(source) if training else {})})  # who samples may not have the data
    as_the_leader_has_it(modules, layout.world)
    if layout.mesh is not None:
        gather = torch.bfloat16 if plan.precision.gather == "bf16" else None
        cut_into_pieces(denoiser, plan.run.distribution, layout, gather)
    others = [parameter for name, parameter in modules.named_parameters() if not name.startswith(JOINT)]
    if joint:
        joint.attach({term.name: term.part for term in terms}, others, layout)
    return Parts(
        plan=plan,
        device=device,
        source=source,
        order=order,
        captions=plan.captions.build(),
        text=text,
        tokenizer=tokenizer,
        denoiser=denoiser,
        objective=objective,
        weighting=plan.weighting.build(plan.time, objective) if plan.weighting else None,
        router=router,
        terms=terms,
        modules=modules,
        layout=layout,
        gradients=GradientMean(others, layout),
        joint=joint,
        kept=kept,
        sources_by_size={
            stage.size_px: LaterSource(plan.data.at_size(stage.size_px), "train", device) for stage in plan.train.stages
        },
    )


def _build_tokenizer(plan: Plan, device: torch.device) -> Tokenizer:
    return plan.tuning.build_tokenizer(plan.tokenizer) if plan.tuning else plan.tokenizer.build(device)


def _build_text(plan: Plan, device: torch.device) -> TextEncoder:
    """With its embeddings on the disk where `run.text_embeddings` asks for it and they do not change."""
    text = plan.text.build(device)
    if plan.run.text_embeddings == "disk" and isinstance(text, FrozenTextEncoder):
        return CachedText(text)
    return text


def _losses(plan: Plan) -> tuple[LossPart, ...]:
    """The plan's, and the one that trains a projector for the tuning where no other does."""
    probe = plan.tuning.probe(plan) if plan.tuning is not None else None
    return plan.losses if probe is None else (*plan.losses, probe)


def precision_on(device: torch.device, precision: PrecisionSettings, training: bool) -> PrecisionSettings:
    """The precision of the denoiser on this device. What was trained in FP8 can be sampled without it, with a note."""
    if precision.matmul == "plain" or fp8.runs_on(device):
        return precision
    lacking = f"{device} has no FP8 matrix products (NVIDIA GPUs of compute capability 8.9 and above have)"
    if training:
        raise UserError(f"precision.matmul is fp8, but {lacking}; use such a GPU, or --set precision.matmul=plain")
    sys.stderr.write(f"note: the run was trained with FP8 products, but {lacking}; computing in bf16 instead\n")
    return precision.model_copy(update={"matmul": "plain"})


def storage_dtype(plan: Plan, name: str) -> torch.dtype:
    """The type in which training stores a parameter; its moments have the same."""
    own = name.startswith((LOSSES, *JOINT))
    return torch.bfloat16 if plan.precision.storage == "bf16" and not own else torch.float32


def _build_terms(plan: Plan, source: ImageSource, device: torch.device) -> tuple[Term, ...]:
    place = Place(plan.model.width, plan.token_grid, device, source, _data_key(plan.data, source))
    return tuple(_build_term(plan, settings, place) for settings in _losses(plan))


def _build_term(plan: Plan, settings: LossPart, place: Place) -> Term:
    with seeded(plan.seed, f"losses.{settings.kind}"):
        return Term(settings, settings.build(place))


def check_columns(plan: Plan, source: ImageSource) -> None:
    """Refuses data without the captions that the plan reads."""
    for what, columns in columns_by_part(source).items():
        for column in plan.captions.columns():
            if column not in columns:
                there = ", ".join(sorted(columns))
                raise UserError(f"captions: {what} has no caption column '{column}'; it has {there}")


def _data_key(data: DataPart, source: ImageSource) -> str:
    """The settings; and the content, wherever it lies, where they do not say all."""
    content = json.dumps(data.content(), separators=(",", ":"), ensure_ascii=False)
    return content if source.identity is None else f"{source.identity} {content}"
