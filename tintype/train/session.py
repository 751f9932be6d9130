"""A training session of a plan, with its model, data, loss terms and layout over the ranks."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial

import torch
from torch import Tensor

from tintype.data.buckets import Shape
from tintype.data.mixture.source import columns_by_part
from tintype.data.mixture.source import identities as of_data
from tintype.data.sources import ids_by_shape, open_order, open_source, scored_identity
from tintype.errors import UserError
from tintype.losses import LossPart
from tintype.plan import Plan
from tintype.rng import seeded
from tintype.runtime import dist as world
from tintype.runtime.dist import World
from tintype.runtime.gradients import GradientMean
from tintype.runtime.graphs import Graphs, Parameters
from tintype.runtime.layout import Layout, broadcast_weights, shard_blocks, sharded_layout, share_of_batch
from tintype.runtime.machine import choose_device
from tintype.runtime.transfer import send
from tintype.seams import Draws, ImageSource, JointTraining, LossContext, LossTerm, MainLoss, Sample, Weighting
from tintype.settings import DataPart
from tintype.tokenizers.latent_cache import LatentCache, open_latent_cache, why_uncacheable
from tintype.train.parts import (
    JOINT,
    LOSSES,
    Model,
    build_networks,
    build_objective,
    lacks_fp8,
    open_smaller,
    register,
    storage_dtype,
)


@dataclass(frozen=True)
class Term:
    settings: LossPart
    part: LossTerm

    @property
    def name(self) -> str:
        return self.settings.kind


@dataclass(frozen=True, kw_only=True)
class Session(Model):
    main_loss: MainLoss
    weighting: Weighting | None
    terms: tuple[Term, ...]
    layout: Layout
    gradients: GradientMean
    joint: JointTraining | None
    """The joint training of the tokenizer and the denoiser; None if the tokenizer is frozen."""
    kept: LatentCache | None
    """The latents that are cached on disk; None unless `run.latents` enables the cache."""
    graphs: Graphs = field(default_factory=Graphs)
    """CUDA graphs of computations outside of networks, which are the random draws of a batch."""

    @property
    def world(self) -> World:
        return self.layout.world

    @property
    def identities(self) -> dict[str, str | None]:
        """Return the identities of frozen networks and data, except teachers. Resuming requires the same identities."""
        data = {**of_data(self.source), **scored_identity(self.plan.data)}
        return {**data, "tokenizer": self.tokenizer.identity, "text": self.text.identity}

    def source_at(self, step: int) -> ImageSource:
        """Return the images in the size that this step uses. `source` has the images of the last stage."""
        return self.source_of(self.plan.size_px_at(step))

    def by_shape(self, ids: Sequence[int], step: int) -> list[tuple[Shape, list[int]]]:
        """Group ids by the shape that their images have at this step, which is the shape of their bucket."""
        side = self.plan.size_px_at(step)
        return [(shape or (side, side), some) for shape, some in ids_by_shape(self.source_at(step), ids)]

    def terms_at(self, step: int) -> list[Term]:
        return [term for term in self.terms if term.settings.weight_at(step)]

    def release_losses(self, step: int) -> list[str]:
        """Release the teachers of losses that have just ended, and return the names of these losses."""
        ended = [term for term in self.terms if (over := term.settings.schedule.over)(step) and not over(step - 1)]
        for term in ended:
            term.part.release()
        return [term.name for term in ended]

    def wants_images(self, terms: Sequence[Term]) -> bool:
        """Return whether steps with these terms need images, and not only latents."""
        return self.kept is None or any(term.part.needs_images for term in terms)

    def latents(self, ids: Sequence[int], image_BCHW: Tensor | None, draws: Draws) -> Tensor:
        """Return the latents of the images on the device. If the latents are cached, `image_BCHW` can be None."""
        if self.kept is not None:
            return self.kept(ids, draws)
        if image_BCHW is None:
            image_BCHW = send(self.source.images(ids), self.device)
        return self.tokenizer.encode(image_BCHW, draws)

    def draw(self, x_BCHW: Tensor, draws: Draws) -> Sample:
        """Draw noise and t for each sample according to the objective, on a GPU without waiting for the host."""
        if not x_BCHW.is_cuda or x_BCHW.requires_grad:
            return self.objective.draw(x_BCHW, draws)
        with torch.no_grad():
            found = self.graphs("draw", partial(self._drawn, draws.seed), (x_BCHW, draws.position_B), {})
        return self.objective.draw(x_BCHW, draws) if found is None else Sample(x_BCHW, *found)

    def _drawn(self, seed: int, inputs: Sequence[Tensor], parameters: Parameters) -> tuple[Tensor, ...]:
        sample = self.objective.draw(inputs[0], Draws(seed, inputs[1]))
        return sample.noise_BCHW, sample.t_B, sample.x_t_BCHW

    def optimized(self) -> dict[str, list[str]]:
        named = dict(self.modules.named_parameters())
        groups = self.plan.optimizer.groups({name: one for name, one in named.items() if not name.startswith(JOINT)})
        for group in self.joint.groups if self.joint else ():
            groups[group.name] = [name for name in named if name.startswith(group.prefix)]
        return groups

    def ready(self, step: int = 0) -> dict[str, str | None]:
        """Load the teachers that losses need from this step on, and return the teachers' identities."""
        running = [term for term in self.terms if not term.settings.schedule.over(step)]
        identities = {term.name: term.part.ready() for term in running}
        return identities | (self.joint.ready() if self.joint else {})


def training_device(plan: Plan) -> torch.device:
    """Return the device on which a plan is trained; raise if it is missing or does not support the plan's precision."""
    device = choose_device(plan.run.device)
    if lacking := lacks_fp8(plan.precision, device):
        raise UserError(f"precision.matmul is fp8, but {lacking}", "use a GPU with FP8, or precision.matmul=plain")
    return device


def build_session(plan: Plan) -> Session:
    """Build everything that training needs, sharded or replicated over the ranks."""
    device = training_device(plan)
    ranks, how = world.current(), plan.run.distribution
    sharded = how.kind == "fsdp" and ranks.joined
    layout = sharded_layout(how.shards or ranks.size, ranks, device) if sharded else Layout(ranks)
    shares = [share_of_batch(batch, plan.train.accumulate, layout.world) for batch in plan.train.batches]  # may refuse
    networks = build_networks(plan, device, plan.precision)
    tokenizer = networks.tokenizer
    source = open_source(plan.data, "train", device)
    check_columns(plan, source)
    order = open_order(plan.seed, plan.data, plan.train, source)
    kept: LatentCache | None = None
    if plan.run.latents == "disk" and why_uncacheable(plan.tokenizer, plan.tuning) is None:
        kept = open_latent_cache(
            plan.tokenizer.kind, tokenizer, plan.data, source, device, batch=shares[-1], folder=plan.run.latents_folder
        )
    objective = build_objective(plan)
    terms = _build_terms(plan, source, device, shares[-1])
    joint = plan.tuning.build(plan, plan.seed, tokenizer) if plan.tuning else None
    of_losses = {LOSSES + term.name: term.part for term in terms}
    modules = register({**vars(networks), **of_losses, **(joint.modules if joint else {})})
    for name, parameter in modules.named_parameters():
        parameter.data = parameter.data.to(storage_dtype(plan, name))
    modules = modules.to(device)
    if joint:
        first_source = open_smaller(plan, plan.train.stages[0].size_px, device) if plan.train.stages else source
        joint.begin(first_source, order, plan.seed, plan.train.images_before(plan.train.steps), one_shape(plan))
    if layout.world.size > 1:
        layout.world.agree({"tokenizer": tokenizer.identity, "text": networks.text.identity, **of_data(source)})
    broadcast_weights(modules, layout.world)
    if layout.mesh is not None:
        gather = torch.bfloat16 if plan.precision.gather == "bf16" else None
        shard_blocks(networks.denoiser, layout, gather, how.reshard)
    others = [parameter for name, parameter in modules.named_parameters() if not name.startswith(JOINT)]
    if joint:
        joint.attach({term.name: term.part for term in terms}, others, layout)
    return Session(
        plan=plan,
        device=device,
        opened=source,
        objective=objective,
        main_loss=plan.main_loss.build(),
        weighting=plan.weighting.build(plan.time_density, objective) if plan.weighting else None,
        terms=terms,
        modules=modules,
        layout=layout,
        gradients=GradientMean(others, layout),
        joint=joint,
        kept=kept,
        **vars(networks),
    )


def one_shape(plan: Plan) -> int | None:
    """Return how many consecutive images certainly have the same shape; None if all images have the same shape."""
    return None if len(plan.data.shapes) == 1 else plan.train.alike


def _build_terms(plan: Plan, source: ImageSource, device: torch.device, batch: int) -> tuple[Term, ...]:
    """Build the plan's loss terms, and a term for the projector of joint training if no other term trains it."""
    unit, several = plan.token_px, len(plan.data.shapes) > 1

    def grids(shapes: Sequence[Shape]) -> tuple[Shape, ...]:
        """Return the distinct token grids of the shapes; shapes can have equal grids in a small stage."""
        return tuple(dict.fromkeys((height // unit, width // unit) for height, width in shapes))

    place = LossContext(
        plan.model.width,
        plan.token_grid,
        device,
        source,
        _data_key(plan.data, source),
        token_px=unit,
        grids=grids(plan.data.shapes) if several else (),
        stage_grids=tuple(map(grids, plan.stage_shapes)) if several else (),
        batch=batch,
    )
    probe = plan.tuning.probe(plan) if plan.tuning is not None else None
    terms = []
    for settings in plan.losses if probe is None else (*plan.losses, probe):
        with seeded(plan.seed, f"losses.{settings.kind}"):
            terms.append(Term(settings, settings.build(place)))
    return tuple(terms)


def check_columns(plan: Plan, source: ImageSource) -> None:
    for what, columns in columns_by_part(source).items():
        for column in plan.captions.columns():
            if column not in columns:
                there = ", ".join(sorted(columns))
                raise UserError(f"captions: {what} has no caption column '{column}'; its caption columns are {there}")


def _data_key(data: DataPart, source: ImageSource) -> str:
    """Return a key of the data from the settings, and a hash of the content if the settings do not determine it."""
    content = json.dumps(data.content(), separators=(",", ":"), ensure_ascii=False)
    return content if source.identity is None else f"{source.identity} {content}"
