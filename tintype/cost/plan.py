"""Estimate the cost of a plan before it is trained, as parameters, operations, memory, and time on GPUs.

Parameters, operations, and the bytes of weights, gradients, optimizer and averages are counted exactly, on networks
without values (torch's meta device). Activations and time are estimated (`activation_bytes`, `Speed`).

B: samples. L: image tokens. S: text tokens. D: width of the denoiser.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from itertools import pairwise
from math import prod
from typing import TypeVar

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from tintype.errors import UserError, as_user_error
from tintype.flow.routes import Unrouted
from tintype.losses.alignment import AlignmentPart, AlignmentTerm
from tintype.losses.attention import AttentionSettings
from tintype.losses.class_token import ClassTokenSettings
from tintype.losses.contrastive import ContrastiveSettings
from tintype.losses.lpips import LpipsLossSettings
from tintype.losses.part import LossPart
from tintype.losses.perceptual_dino import PerceptualDinoSettings
from tintype.losses.self_alignment import SelfAlignment, SelfAlignmentSettings
from tintype.model import Transformer
from tintype.optim.storage import Storage
from tintype.plan import Plan
from tintype.pretrained.packages import Untyped
from tintype.pretrained.published import PUBLISHED
from tintype.runtime.clock import synchronized_s
from tintype.runtime.layout import ONE
from tintype.schedule import Schedule
from tintype.seams import LossContext, LossTerm, Output, Route, Router, Tapped, TextEncoder, TextTokens
from tintype.settings import PrecisionSettings
from tintype.text.frozen import FrozenTextPart
from tintype.text.words import WordsEncoder
from tintype.tokenizers.part import TokenizerPart
from tintype.tokenizers.pixels import PixelsSettings
from tintype.train.parts import LOSSES, register, storage_dtype
from tintype.train.state import build_optimizer, separate
from tintype.vision.lpips import Lpips
from tintype.vision.part import TeacherPart
from tintype.wording import option, setting

T = TypeVar("T")
META = torch.device("meta")
_BLOCKS = "denoiser.blocks."
_BYTES = {"bf16": 2}
"""Bytes per number of a frozen network for each compute dtype; 4 for all other dtypes."""
_WITH_TEACHER = (AlignmentPart, ClassTokenSettings, AttentionSettings)
"""Losses that use a frozen teacher."""
_COUNTED = (
    AlignmentPart,
    ClassTokenSettings,
    SelfAlignmentSettings,
    PerceptualDinoSettings,
    LpipsLossSettings,
    ContrastiveSettings,
)
"""Losses whose matrix products are all counted, or only occur in the teacher."""


@dataclass(frozen=True)
class Gpu:
    """Data sheet of a kind of GPU."""

    peak_flop_per_s: float
    """Peak speed of dense bf16 matrix products, in operations per second."""
    memory_gb: float


GPUS = {
    "a100": Gpu(312e12, 80),
    "h100": Gpu(989e12, 80),
    "h200": Gpu(989e12, 141),
    "b200": Gpu(2250e12, 180),
    "l40s": Gpu(362e12, 48),
    "rtx-4090": Gpu(165e12, 24),
}
USUAL_GPU = "h200"
UTILISATION = 0.4
"""Fraction of the peak speed that time estimates assume. This number is not measured."""


@dataclass(frozen=True)
class Speed:
    """Operations per second of one GPU, and the source of the number."""

    flop_per_s: float
    words: str
    measured: bool


def estimated_speed(gpu: str) -> Speed:
    """Return the speed of a kind of GPU from its data sheet; raise for an unknown kind."""
    if gpu not in GPUS:
        raise UserError(f"{option('gpu', gpu)}: unknown kind", f"known: {', '.join(GPUS)}")
    peak = GPUS[gpu].peak_flop_per_s
    words = f"an estimate: {UTILISATION:.0%} of the {peak / 1e12:.0f} TFLOP/s of the {gpu}'s data sheet, in bf16"
    return Speed(UTILISATION * peak, words, measured=False)


@dataclass(frozen=True)
class Tower:
    """A frozen network that training uses."""

    parameters: int
    bytes: int


@dataclass(frozen=True)
class Phase:
    """A range of training steps that have the same cost."""

    first: int
    end: int
    size_px: int
    batch: int
    """Number of images per step."""
    flops: Mapping[str, float]
    """Operations per image, by part. Trained networks count forward and backward, frozen networks only forward."""

    @property
    def steps(self) -> int:
        return self.end - self.first

    @property
    def image_flops(self) -> float:
        return sum(self.flops.values())


@dataclass(frozen=True)
class Memory:
    """Bytes on one GPU. All parts except `copies` and `activations` are exact.

    The sum can be above the peak, since activations are freed while gradients are allocated. The sum can be below,
    since images, noise and prediction are missing, which are large in pixel space.
    """

    weights: int
    gradients: int
    optimizer: int
    averages: int
    towers: int
    """Weights of frozen networks."""
    copies: int
    """Estimated bytes of the bf16 copies of the blocks' matrices, which matrix products read."""
    activations: int
    """Bytes of activations, as estimated by `activation_bytes`."""

    @property
    def total(self) -> int:
        return sum(vars(self).values())


@dataclass(frozen=True)
class PlanCost:
    """The cost of one run of a plan."""

    plan: str
    parameters: Mapping[str, int]
    """Number of parameters of the trained networks, by the part that owns them."""
    towers: Mapping[str, Tower]
    phases: Sequence[Phase]
    optimizer_flops: float
    """Operations of the optimizer's matrix products in a step."""
    memory: Memory
    accumulate: int
    """Number of micro-batches per step."""
    caption_tokens: int
    """Number of tokens assumed for each caption, which is the maximum."""
    gpus: int
    speed: Speed
    missing: Sequence[str] = field(default_factory=tuple)
    """Parts that are not counted, each with the reason."""

    @property
    def trained(self) -> int:
        return sum(self.parameters.values())

    @property
    def step_flops(self) -> float:
        """Return the operations of a step, averaged over the run."""
        return self.run_flops / self.phases[-1].end

    @property
    def run_flops(self) -> float:
        return self.flops_until(self.phases[-1].end)

    def flops_until(self, step: float) -> float:
        """Return the operations of the run up to a step."""
        counts = (max(0.0, min(step, phase.end) - phase.first) for phase in self.phases)
        costs = (phase.batch * phase.image_flops + self.optimizer_flops for phase in self.phases)
        return sum(count * cost for count, cost in zip(counts, costs, strict=True))

    def micro_batch(self, phase: Phase) -> int:
        """Return the number of images of a micro-batch on one GPU."""
        return phase.batch // self.accumulate // self.gpus

    @property
    def largest_micro_batch(self) -> int:
        return max(self.micro_batch(phase) for phase in self.phases)

    @property
    def gpu_hours(self) -> float:
        return self.run_flops / self.speed.flop_per_s / 3600

    @property
    def days(self) -> float:
        """Return the days that the run takes on all GPUs, if no GPU waits for another GPU."""
        return self.gpu_hours / self.gpus / 24

    @property
    def images_per_s(self) -> float:
        """Return the images per second of all GPUs, averaged over the run."""
        images = sum(phase.batch * phase.steps for phase in self.phases)
        return images * self.gpus * self.speed.flop_per_s / self.run_flops


def cost_of_plan(plan: Plan, speed: Speed, gpus: int = 1) -> PlanCost:
    """Return the cost of a run on this many GPUs, without reading weights or computing anything."""
    for batch in plan.train.batches:
        if (micro_batch := batch // plan.train.accumulate) % gpus:
            raise UserError(
                f"{option('gpus', gpus)}: a micro-batch has {micro_batch} images (the batch, or a stage's "
                f"batch, divided by train.accumulate), which cannot be split evenly over {gpus} GPUs",
                f"use another number of GPUs, or {setting('train.accumulate', 1)}",
            )
    counted = Counted(plan)
    networks = counted.networks
    memory = memory_of(counted, gpus)
    products = plan.optimizer.matrix_products(networks.named)
    return PlanCost(
        plan=plan.hash,
        parameters=networks.parameters,
        towers={name: tower for name, (tower, _) in counted.towers.items()},
        phases=counted.phases,
        optimizer_flops=products[0] if products else 0.0,
        memory=memory,
        accumulate=plan.train.accumulate,
        caption_tokens=text_tokens(plan),
        gpus=gpus,
        speed=speed,
        missing=tuple(dict.fromkeys(counted.missing)),
    )


def memory_of(counted: Counted, gpus: int = 1) -> Memory:
    """Return the exact bytes of training, with the blocks' activations as estimated by `activation_bytes`."""
    plan, networks = counted.plan, counted.networks
    bytes_of = {name: parameter.numel() * parameter.element_size() for name, parameter in networks.named.items()}
    optimizer = build_optimizer(plan.optimizer, networks.named, Storage(plan.precision.rounding), ONE, {})
    slots = [form for one in networks.named.values() for form in optimizer.slots(one).values()]  # type: ignore[attr-defined]
    averages = plan.ema.build(separate(networks.named)).tensors() if plan.ema else {}
    weights = sum(bytes_of.values())
    shards = _shards(plan, gpus)
    return Memory(
        weights=weights // shards,
        gradients=weights // shards,
        optimizer=sum(prod(form.shape) * _size(form.dtype) for form in slots) // shards,
        averages=sum(one.numel() * one.element_size() for one in averages.values()) // shards,
        towers=sum(tower.bytes for tower, _ in counted.towers.values()),
        copies=_copied_bytes(plan, networks.named) // shards,
        activations=max(
            activation_bytes(plan, phase.batch // plan.train.accumulate // gpus, phase.first)
            for phase in counted.phases
        ),
    )


def _copied_bytes(plan: Plan, named: Mapping[str, nn.Parameter]) -> int:
    if (plan.precision.storage, plan.precision.compute) != ("fp32", "bf16"):
        return 0
    return sum(2 * one.numel() for name, one in named.items() if name.startswith(_BLOCKS) and one.ndim == 2)


def _size(dtype: torch.dtype | None) -> int:
    return 4 if dtype is None else dtype.itemsize


def _shards(plan: Plan, gpus: int) -> int:
    """Return the number of GPUs among which the weights are sharded."""
    how = plan.run.distribution
    return min(how.shards or gpus, gpus) if how.kind == "fsdp" else 1


def activation_bytes(plan: Plan, images: int, step: int = 0) -> int:
    """Estimate the bytes that the blocks keep for the backward pass of a micro-batch.

    For each image token, a block keeps 12 vectors of the denoiser's width and 3 of the MLP's width. These vectors are
    inputs and outputs of norms, projections, q and k before and after norm and rotation, and the attention's output. In
    the MLP, these vectors are gate, up and their product. For each text token, a block keeps 3 vectors of the
    denoiser's width. With activation checkpointing, a block keeps one vector per token, and only one block at a time
    keeps all.
    """
    model, tokens = plan.model, _tokens(plan, step)
    of_block = 12 * model.width + 3 * model.hidden
    text = 3 * model.width * text_tokens(plan)
    sparse = plan.route.sparse_blocks(step) if plan.route else range(0)
    kept = plan.route.kept(tokens) if plan.route else tokens
    in_block = [kept if block in sparse else tokens for block in range(model.depth)]
    whole = [of_block * count + text for count in in_block]
    numbers = (
        max(whole) + sum(count * model.width for count in in_block) if model.activation_checkpointing else sum(whole)
    )
    return images * numbers * (2 if plan.precision.compute == "bf16" else 4)


def _tokens(plan: Plan, step: int) -> int:
    return prod(grid_at(plan, step))


def text_tokens(plan: Plan) -> int:
    """Return the maximum number of tokens of a caption. Every caption is assumed to have this number."""
    count = getattr(plan.text, "max_tokens", None)
    if not isinstance(count, int):
        raise UserError(
            f"text: the settings of the encoder '{plan.text.kind}' have no field max_tokens, which the cost "
            f"estimate needs",
            "add the field max_tokens to the class of these settings",
        )
    return count


def grid_at(plan: Plan, step: int) -> tuple[int, int]:
    side = plan.size_px_at(step) // (plan.tokenizer.compression.stride_px * plan.model.patch)
    return side, side


class SizedTeacher(TeacherPart):
    """Placeholder for a teacher, of which only the token width is known."""

    kind: str = "sized"
    tokens_width: int

    def width(self) -> int:
        return self.tokens_width


@dataclass(frozen=True)
class Networks:
    """All trained modules, without values, in their storage dtypes."""

    denoiser: Transformer
    text: WordsEncoder | None
    """The built-in text encoder if it is trained. The parameters of a plugin's encoder are only in `named`."""
    router: Router
    terms: Mapping[str, tuple[LossPart, LossTerm]]
    text_width: int
    named: Mapping[str, nn.Parameter]

    @property
    def parameters(self) -> dict[str, int]:
        found: dict[str, int] = {}
        for name, parameter in self.named.items():
            owner = name.split(".")[0]
            found[owner] = found.get(owner, 0) + parameter.numel()
        return found

    @property
    def trains_text(self) -> bool:
        return "text" in self.parameters


class Counted:
    """The networks of a plan, and the operations of its phases."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.missing: list[str] = []
        self.networks = self._networks()
        self.towers = dict(self._towers())
        self.phases = [self._phase(first, end) for first, end in pairwise(_edges(plan))]
        if len(plan.data.shapes) > 1:
            self.missing.append(
                "data.buckets: images are counted as squares, of data.size_px or of the stage's size_px"
            )
        if plan.tuning is not None:
            self.missing.append("tuning: the training of the tokenizer is not counted")
        self.missing += [f"{one.kind}: its own matrix products" for one in plan.losses if not isinstance(one, _COUNTED)]
        perceptual = [one for one in plan.losses if isinstance(one, (LpipsLossSettings, PerceptualDinoSettings))]
        self.missing += [f"{one.kind}: the memory of its activations" for one in perceptual]

    def _networks(self) -> Networks:
        plan = self.plan
        with META:
            text = None if isinstance(plan.text, FrozenTextPart) else self._text_encoder()
            width = self._text_width() if text is None else text.dim
            model = plan.model.model_copy(update={"compile": False, "kernels": "plain"})
            plain = PrecisionSettings(storage=plan.precision.storage)
            denoiser = Transformer(model, plan.tokenizer.compression.channels, width, plain)
            router: Router = plan.route.build(plan.model) if plan.route else Unrouted(plan.model.depth)
            terms = dict(self._terms())
        owners = {"denoiser": denoiser, "text": text, "router": router}
        trained = {LOSSES + kind: term for kind, (_, term) in terms.items() if isinstance(term, nn.Module)}
        modules = register({**owners, **trained})
        for name, parameter in modules.named_parameters():
            parameter.data = parameter.data.to(storage_dtype(plan, name))
        words = text if isinstance(text, WordsEncoder) else None
        if words is not text:
            self.missing.append(f"text: the operations of '{plan.text.kind}', which is of a plugin")
        return Networks(denoiser, words, router, terms, width, dict(modules.named_parameters()))

    def _text_encoder(self) -> TextEncoder:
        """Build an encoder that is trained; raise if it cannot be built without its weights."""
        text, instead = self.plan.text, f"use another encoder, for example {setting('text.kind', 'words')}"
        if text.is_frozen:
            raise UserError(
                f"text: '{text.kind}' is a frozen encoder from a plugin, whose size is unknown until its "
                f"weights are loaded",
                instead,
            )
        with as_user_error(RuntimeError, f"text: '{text.kind}' cannot be built on the meta device of torch", instead):
            return text.build(META)

    def _text_width(self) -> int:
        text = self.plan.text
        assert isinstance(text, FrozenTextPart)
        if text.weights in PUBLISHED:
            return PUBLISHED[text.weights].width
        config: Untyped = text.checkpoint.config()
        width = getattr(getattr(config, "encoder", config), "hidden_size", None)
        if not isinstance(width, int):
            raise UserError(f"text: the config of {text.weights} has no hidden_size, which the cost estimate needs")
        return width

    def _terms(self) -> Iterator[tuple[str, tuple[LossPart, LossTerm]]]:
        """Yield the loss terms. Terms with an unknown teacher are left out."""
        plan, source = self.plan, None
        context = LossContext(plan.model.width, plan.token_grid, META, source, "")  # type: ignore[arg-type]
        for loss in plan.losses:
            if isinstance(loss, AlignmentPart):
                if (width := self._teacher_width(loss)) is None:
                    continue
                loss = loss.model_copy(update={"teacher": SizedTeacher(tokens_width=width)})
            yield loss.kind, (loss, loss.build(context))

    def _teacher_width(self, loss: AlignmentPart) -> int | None:
        if (known := PUBLISHED.get(getattr(loss.teacher, "source", ""))) is not None:
            return known.width
        try:
            return loss.teacher.width()
        except UserError as error:
            self.missing.append(
                f"{loss.kind}: the size of its teacher is not known here ({str(error).splitlines()[0]})"
            )
            return None

    # Frozen networks

    def _towers(self) -> Iterator[tuple[str, tuple[Tower, Untyped]]]:
        """Yield the frozen networks, each with the number of its values in GPU memory."""
        plan = self.plan
        if isinstance(plan.text, FrozenTextPart):
            yield from self._tower("text", plan.text.weights, plan.text.compute)
        if not isinstance(plan.tokenizer, PixelsSettings):
            source = getattr(plan.tokenizer, "weights", plan.tokenizer.kind)
            if (autoencoder := known_network(self.missing, "tokenizer", source, plan.tokenizer.outline)) is not None:
                size = autoencoder.numbers
                yield "tokenizer", (Tower(size, size * autoencoder.number_bytes), autoencoder)
        for loss in plan.losses:
            if isinstance(loss, _WITH_TEACHER):
                source = getattr(loss.teacher, "source", "") or loss.teacher.kind
                teacher = known_network(self.missing, loss.kind, source, partial(loss.teacher.outline, plan.token_grid))
                if teacher is not None:
                    yield loss.kind, (Tower(teacher.numbers, teacher.bytes), teacher)
            elif isinstance(loss, PerceptualDinoSettings):
                yield from self._tower(loss.kind, loss.source, loss.compute)
            elif isinstance(loss, LpipsLossSettings):
                with META:
                    network = Lpips(loss.net).eval().requires_grad_(False)
                if loss.compute == "bf16":
                    network.trunk.narrow()
                yield loss.kind, (_stored(network), network)

    def _tower(self, name: str, source: str, arithmetic: str) -> Iterator[tuple[str, tuple[Tower, Untyped]]]:
        known = PUBLISHED.get(source)
        network = known_network(self.missing, name, source, known.build if known else lambda: None)
        if network is not None:
            yield name, (_tower(network, arithmetic), network)

    # Operations

    def _phase(self, first: int, end: int) -> Phase:
        plan = self.plan
        flops = {"denoiser": denoiser_flops(self, first), **dict(self._tower_flops(first))}
        flops |= self._average_flops(first)
        return Phase(first, end, plan.size_px_at(first), plan.train.batch_at(first), flops)

    def _tower_flops(self, step: int) -> Iterator[tuple[str, float]]:
        plan = self.plan
        running = {loss.kind: loss for loss in plan.losses if loss.weight_at(step)}
        for name, (_, network) in self.towers.items():
            if name == "text" and plan.run.text_embeddings == "live":
                assert isinstance(plan.text, FrozenTextPart)
                yield name, _text_flops(plan.text.weights, plan.text.max_tokens)
            elif name == "tokenizer" and plan.run.latents == "none":
                yield name, _encoder_flops(plan.tokenizer, plan.size_px_at(step))
            elif name in running:
                yield name, self._loss_flops(running[name], network, step)

    def _average_flops(self, step: int) -> dict[str, float]:
        """Return the operations of forward passes of the weight average, by the loss that uses them."""
        plan, networks = self.plan, self.networks
        route = networks.router.whole()

        def tap(block: int) -> Tapped:
            class_BT = class_input(plan, 1, META)
            inputs = latent_input(plan, step), torch.empty(1, device=META), text_input(plan, networks, given=True)
            tapped: Tapped = networks.denoiser(*inputs, route=route, taps=(block,), only_taps=True, class_BT=class_BT)
            return tapped

        losses = [one for one in plan.losses if isinstance(one, SelfAlignmentSettings) and one.weight_at(step)]
        return {loss.kind: forward_flops(partial(tap, loss.teacher_block - 1)) for loss in losses}

    def _loss_flops(self, loss: LossPart, network: Untyped, step: int) -> float:
        """Return the operations of a loss's frozen network.

        A perceptual network reads two images, one with a gradient. A cached teacher counts 0: it runs once per image.
        """
        if isinstance(loss, LpipsLossSettings):
            side_px = min(self.plan.size_px_at(step), loss.largest_px)
            return flops_of(lambda: network(_image(side_px).requires_grad_(), _image(side_px)).sum().backward())
        if isinstance(loss, PerceptualDinoSettings):
            predicted = _image(loss.size_px).requires_grad_()
            whole = flops_of(lambda: network(pixel_values=predicted).last_hidden_state.sum().backward())
            return whole + forward_flops(partial(network, pixel_values=_image(loss.size_px)))
        assert isinstance(loss, _WITH_TEACHER)
        if isinstance(loss, AlignmentPart) and loss.cache != "none":
            self.missing.append(f"{loss.kind}: its cached teacher, which sees each image once")
            return 0.0
        return _teacher_flops(loss.teacher, grid_at(self.plan, step))


@cache
def _text_flops(source: str, tokens: int) -> float:
    network = PUBLISHED[source]
    ids_BS = torch.zeros(1, tokens, dtype=torch.long, device=META)
    return forward_flops(partial(network.build(), input_ids=ids_BS, **(network.text_inputs or {})))


@cache
def _encoder_flops(tokenizer: TokenizerPart, size_px: int) -> float:
    outline = tokenizer.outline()
    assert outline is not None
    return forward_flops(partial(outline.encode, _image(size_px)))


@cache
def _teacher_flops(teacher: TeacherPart, grid: tuple[int, int]) -> float:
    """Return the operations of a teacher with as many patches as the denoiser has tokens."""
    outline = teacher.outline(grid)
    assert outline is not None
    return forward_flops(partial(outline.forward, torch.empty(1, 3, *outline.input_px, device=META)))


def _tower(network: nn.Module, arithmetic: str) -> Tower:
    count = sum(one.numel() for one in network.parameters())
    return Tower(count, count * _BYTES.get(arithmetic, 4))


def _stored(network: Lpips) -> Tower:
    """Count the weights of LPIPS by dtype. The weights are buffers, and under bf16 the last of them stay in fp32."""
    weights = list(network.buffers())
    return Tower(sum(one.numel() for one in weights), sum(one.numel() * one.element_size() for one in weights))


def _image(side_px: int) -> Tensor:
    return torch.empty(1, 3, side_px, side_px, device=META)


def _edges(plan: Plan) -> list[int]:
    """Return the steps at which the cost per step changes, including 0 and the last step."""
    found = {0, plan.train.steps, *(stage.until for stage in plan.train.stages)}
    route = getattr(plan.route, "schedule", None)
    schedules = [loss.schedule for loss in plan.losses] + ([route] if isinstance(route, Schedule) else [])
    for schedule in schedules:
        found |= {schedule.start, schedule.end or 0}
    return sorted(step for step in found if 0 <= step <= plan.train.steps)


def known_network(missing: list[str], name: str, source: str, outline: Callable[[], T | None]) -> T | None:
    """Return a frozen network without its weights; if its sizes are unknown, record the network in `missing`."""
    try:
        found = outline()
    except UserError as error:
        missing.append(f"{name}: {error}")
        return None
    if found is None:
        missing.append(f"{name}: the sizes of '{source}' are not known")
    return found


def denoiser_flops(counted: Counted, step: int, alone: bool = False) -> float:
    """Count the operations of one image, forward and backward, in all trained modules or the denoiser `alone`."""
    plan, networks = counted.plan, counted.networks
    rows, columns = grid_at(plan, step)
    x_t_BCHW = latent_input(plan, step)
    channels = x_t_BCHW.shape[1]
    route = route_at(plan, networks.router, rows * columns, step)
    running = [one for one in networks.terms.values() if one[0].weight_at(step) and not alone]
    terms = [term for _, term in running]
    losses = [{key: value for key, value in loss if key not in ("weight", "schedule")} for loss, _ in running]
    sparse = plan.route is not None and bool(plan.route.sparse_blocks(step))
    key = repr((plan.model, channels, rows, columns, networks.text_width, plan.text, plan.route, sparse, losses, alone))
    if key in _known:
        return _known[key]
    taps = frozenset(tap for term in terms for tap in term.taps)

    def work() -> None:
        text = text_input(plan, networks, alone)
        inputs = x_t_BCHW, torch.empty(1, device=META), text
        output: Output = networks.denoiser(*inputs, route=route, taps=taps, class_BT=class_input(plan, 1, META))
        total = output.prediction_BCHW.sum()
        if output.class_BT is not None:
            total = total + output.class_BT.sum()
        for term in terms:
            if isinstance(term, AlignmentTerm):
                (block,) = term.taps
                kept_BK = output.tokens_at(block)
                projected_BKT = term.project(output.features[block], kept_BK, (rows, columns))
                teacher_BLT = torch.empty(1, rows * columns, teacher_width(term), device=META)
                total = total + term.compare(projected_BKT, teacher_BLT, kept_BK).sum()
            elif isinstance(term, SelfAlignment):
                (block,) = term.taps
                total = total + term.head(output.features[block].float()).sum()
        total.backward()

    _known[key] = flops_of(work)
    return _known[key]


def latent_input(plan: Plan, step: int, images: int = 1) -> Tensor:
    sides = (side * plan.model.patch for side in grid_at(plan, step))
    return torch.empty(images, plan.tokenizer.compression.channels, *sides, device=META)


_known: dict[str, float] = {}
"""Cached counts, by all settings that determine them. Many arms of a study have the same denoiser."""


def class_input(plan: Plan, images: int, device: torch.device) -> Tensor | None:
    """Return class tokens of zeros; None for a denoiser without class token."""
    width = plan.model.class_token
    return torch.zeros(images, width, device=device) if width else None


def teacher_width(term: AlignmentTerm) -> int:
    return term._settings.teacher.width()


def text_input(plan: Plan, networks: Networks, given: bool, images: int = 1) -> TextTokens:
    """Return the encoded captions of images. With `given`, they are an input and their encoding has no operations."""
    count = text_tokens(plan)
    mask_BS = torch.ones(images, count, dtype=torch.bool, device=META)
    if given or networks.text is None:
        trained = networks.trains_text and not given
        shape = (images, count, networks.text_width)
        return TextTokens(torch.empty(shape, device=META, requires_grad=trained), mask_BS)
    return TextTokens(networks.text(torch.zeros(images, count, dtype=torch.long, device=META)), mask_BS)


def route_at(plan: Plan, router: Router, tokens: int, step: int, images: int = 1) -> Route | None:
    if plan.route is None or not plan.route.sparse_blocks(step):
        return router.whole()
    return router.sparse(torch.zeros(images, plan.route.kept(tokens), dtype=torch.long, device=META))


def flops_of(work: Callable[[], object]) -> float:
    """Count the operations of matrix products and convolutions; a multiplication with its addition counts as two."""
    counter = FlopCounterMode(display=False)
    with counter:
        work()
    return float(counter.get_total_flops())


def forward_flops(work: Callable[[], object]) -> float:
    with torch.no_grad():
        return flops_of(work)


_WARM_UP_STEPS, _TIMED_STEPS = 3, 5


def measured_speed(plan: Plan, device: torch.device, images: int) -> Speed:
    """Measure the operations per second in steps of the denoiser and its optimizer, with random latents and texts.

    Frozen networks are assumed to be as fast. A fraction of a micro-batch is measured if it does not fit.
    """
    counted = Counted(plan)
    while True:
        try:
            seconds = _step_seconds(plan, counted, device, images)
            break
        except torch.OutOfMemoryError:
            if images == 1:
                raise UserError(
                    "not even one image fits on this GPU", f"name a GPU with more memory: {option('gpu')}"
                ) from None
            images //= 2
    products = plan.optimizer.matrix_products(counted.networks.named)
    flop = images * denoiser_flops(counted, 0, alone=True) + (products[0] if products else 0.0)
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else str(device)
    words = f"measured on {name}: {_TIMED_STEPS} steps of the denoiser with {images} random images each"
    if counted.towers:
        words += "; frozen networks are taken to be as fast"
    return Speed(flop / seconds, words, measured=True)


def _step_seconds(plan: Plan, counted: Counted, device: torch.device, images: int) -> float:
    """Return the mean seconds of a step with forward, backward and optimizer."""
    channels, patch = plan.tokenizer.compression.channels, plan.model.patch
    rows, columns = grid_at(plan, 0)
    width, length = counted.networks.text_width, text_tokens(plan)
    denoiser = Transformer(plan.model, channels, width, plan.precision).to(device)
    for name, parameter in denoiser.named_parameters():
        parameter.data = parameter.data.to(storage_dtype(plan, f"denoiser.{name}"))
    named = {f"denoiser.{name}": parameter for name, parameter in denoiser.named_parameters()}
    optimizer = plan.optimizer.build(named.items(), Storage(plan.precision.rounding), ONE)
    generator = torch.Generator(device).manual_seed(0)
    x_t_BCHW = torch.randn(images, channels, rows * patch, columns * patch, device=device, generator=generator)
    tokens_BSC = torch.randn(images, length, width, device=device, generator=generator)
    mask_BS = torch.ones(images, length, dtype=torch.bool, device=device)
    t_B = torch.rand(images, device=device, generator=generator)
    route = None
    if plan.route is not None and plan.route.sparse_blocks(0):
        router = plan.route.build(plan.model)
        if isinstance(router, nn.Module):
            router.to(device)
        kept_BK = torch.arange(plan.route.kept(rows * columns), device=device).expand(images, -1)
        route = router.sparse(kept_BK)

    def step() -> None:
        text = TextTokens(tokens_BSC, mask_BS, (length,) * images)
        with torch.autocast(device.type, torch.bfloat16, enabled=plan.precision.compute == "bf16"):
            class_BT = class_input(plan, images, device)
            prediction_BCHW = denoiser(x_t_BCHW, t_B, text, route=route, class_BT=class_BT).prediction_BCHW
        prediction_BCHW.float().square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    for _ in range(_WARM_UP_STEPS):
        step()
    began_s = synchronized_s(device)
    for _ in range(_TIMED_STEPS):
        step()
    return (synchronized_s(device) - began_s) / _TIMED_STEPS
