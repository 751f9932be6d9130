"""Estimate a run's peak memory on one GPU, by part, without measurements.

Memory in `held` is allocated during the whole run, for weights, optimizer, images and graphs. The other tasks run one
after the other, so only the largest counts. Activations are counted on the networks themselves, without values
(`live`), or by a formula for tintype's own kernels.

B: images at a time. L: image tokens. S: text tokens. D: width of the denoiser.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from math import prod

import torch
from torch import Tensor, nn

from tintype.cost.live import META, peak_per_image
from tintype.cost.plan import (
    GPUS,
    USUAL_GPU,
    Counted,
    activation_bytes,
    class_input,
    grid_at,
    known_network,
    latent_input,
    memory_of,
    route_at,
    teacher_width,
    text_input,
    text_tokens,
)
from tintype.data.captions import captions_of
from tintype.data.mixture.settings import MixtureSettings
from tintype.data.scenes.source import ScenesSettings
from tintype.data.sources import open_order, open_source
from tintype.errors import UserError
from tintype.evaluation.protocol import Protocol, Sampling
from tintype.evaluation.reference import BLOCK
from tintype.losses.alignment import AlignmentPart, AlignmentTerm
from tintype.losses.attention import AttentionSettings
from tintype.losses.class_token import ClassTokenSettings
from tintype.losses.contrastive import ContrastiveSettings
from tintype.losses.dispersive import DispersiveSettings
from tintype.losses.lpips import LpipsLossSettings, shrunk_sides
from tintype.losses.part import LossPart
from tintype.losses.perceptual import PerceptualPart
from tintype.losses.perceptual_dino import PerceptualDinoSettings
from tintype.losses.repa_e.settings import TuningSettings
from tintype.losses.self_alignment import SelfAlignment, SelfAlignmentSettings
from tintype.model.fused import why_other_blocks
from tintype.model.packing import FEW_SIZES, rows_step
from tintype.model.transformer import is_short
from tintype.plan import Plan
from tintype.plugins.registry import is_built_in
from tintype.pretrained.packages import Untyped
from tintype.pretrained.published import PUBLISHED, Outline
from tintype.runtime.graphs import MOST_GRADIENT_SHARE
from tintype.runtime.pools import CONTEXT_BYTES
from tintype.seams import Draws
from tintype.text.frozen import FrozenTextPart
from tintype.text.packing import MOST_TOKENS
from tintype.text.words import WordsEncoder, token_ids
from tintype.tokenizers.latent import images_at_a_time
from tintype.tokenizers.part import AutoencoderOutline
from tintype.tokenizers.pixels import PixelsSettings
from tintype.vision.lpips import Lpips, Net
from tintype.vision.part import TeacherPart
from tintype.vision.scene_encoder import READ_TOGETHER, SceneEncoderSettings
from tintype.vision.teacher_cache import CACHED_TEACHER_BATCH

HOST_BYTES = 5 << 30
"""Host memory that Python, torch and the CUDA libraries need in a process on a machine with a GPU."""
SLACK = 1.25
"""Bytes reserved per byte of temporary memory; twelve estimates are 1.02 to 1.3 times the peak on an H200."""
_TEXT_SIZES = 2
"""Assumed number of the denoiser's CUDA graphs if the rounded numbers of text tokens per batch are unknown."""
_SAMPLED_CAPTIONS = 512
"""Number of captions whose lengths are read to estimate the rounded numbers of text tokens per batch."""
_DEVIATIONS = 3
"""A batch's text tokens are assumed to be within this many standard deviations of the mean, as in 399 of 400.

A batch with a new rounded number of tokens runs without a graph, and needs additional memory.
"""
_PRODUCTS_COPIES = 6
"""Number of fp32 copies of the weights in a step of an optimizer that orthogonalises with matrix products."""
EXACT = frozenset({"weights", "gradients", "optimizer", "averages", "copies", "frozen networks", "images on the GPU"})
"""Parts that exist from the first step to the last; their bytes are exact, so `SLACK` does not apply."""
_LATENT_TENSORS = 10
"""Number of fp32 tensors of the latents' size in a step, such as x, noise, x_t, prediction and gradients."""
_OUTSIDE, _ROUTED = 8, 4
"""Numbers of bf16 vectors of the denoiser's width per image token, outside of the blocks, and for a route."""


@dataclass(frozen=True)
class Peak:
    """Memory of a run on one GPU in bytes, by part."""

    training: Mapping[str, int]
    """Bytes by part at the peak of training."""
    scoring: Mapping[str, int]
    """Bytes by part at the peak of scoring; empty without a protocol."""
    host_bytes: int
    """Host memory of the process, without the shared memory."""
    shared_host: Mapping[str, int]
    """Host memory that all processes of a machine share, by content. Arms with equal content share the memory."""
    missing: Sequence[str]
    """Parts of unknown size, each with the reason."""

    @property
    def training_bytes(self) -> int:
        return reserved(self.training) + CONTEXT_BYTES

    @property
    def scoring_bytes(self) -> int:
        return reserved(self.scoring) + CONTEXT_BYTES if self.scoring else 0

    @property
    def bytes(self) -> int:
        """Return the GPU bytes that the run needs, which is the larger of the two peaks, including the CUDA context."""
        return max(self.training_bytes, self.scoring_bytes)

    @property
    def known(self) -> bool:
        return not self.missing


def reserved(parts: Mapping[str, int]) -> int:
    """Return the bytes that torch's allocator reserves for these parts."""
    return int(sum(size if name in EXACT else SLACK * size for name, size in parts.items()))


def peak_of(plan: Plan, protocol: Protocol | None = None, along: Protocol | None = None, gpus: int = 1) -> Peak:
    """Estimate the peak memory of a run and of its scoring, on each of `gpus` GPUs. No weights are read.

    The upper bound assumes captions of text.max_tokens tokens, and kernels that keep as much as plain torch.
    """
    try:
        found = _Run(plan, gpus)
    except UserError as error:
        return Peak({}, {}, HOST_BYTES, {}, (str(error).splitlines()[0],))
    training = found.training()
    scorings = [found.scoring(one) for one in (protocol, along) if one is not None]
    scoring = max(scorings, key=lambda parts: sum(parts.values()), default={})
    missing = tuple(dict.fromkeys(found.missing))
    return Peak(training, scoring, HOST_BYTES, found.shared_host(), missing)


class _Run:
    def __init__(self, plan: Plan, gpus: int) -> None:
        self.plan, self.gpus = plan, gpus
        self.counted = Counted(plan)
        self.exact = memory_of(self.counted, gpus)
        self.missing: list[str] = []
        model, precision = plan.model, plan.precision
        self.fused = model.kernels != "plain" and not why_other_blocks(model, precision)
        self.bf16 = precision.compute == "bf16"
        if not isinstance(plan.text, FrozenTextPart) and self.counted.networks.text is None:
            self.missing.append(f"text: the activations of '{plan.text.kind}', which is of a plugin")

    # Training

    def training(self) -> dict[str, int]:
        """Return the bytes by part in the training phase that needs most memory."""
        found = [self._phase(phase.first, self._share(phase.batch)) for phase in self.counted.phases]
        return max(found, key=lambda parts: sum(parts.values()))

    def _share(self, batch: int) -> int:
        return batch // self.plan.train.accumulate // self.gpus

    def _phase(self, step: int, images: int) -> dict[str, int]:
        plan, exact = self.plan, self.exact
        held = {name: value for name, value in vars(exact).items() if name not in ("towers", "activations")}
        held |= {"frozen networks": exact.towers, "images on the GPU": self._resident()}
        products = plan.optimizer.matrix_products(self.counted.networks.named)
        held["optimizer's step"] = exact.weights * _PRODUCTS_COPIES if products else 0
        work: dict[str, int] = {}
        held["images and latents"] = images * self._image_bytes(step)
        denoiser = images * self._denoiser_bytes(step)
        text = images * self._trained_text_bytes()
        at_work = denoiser + text
        if self._in_graph(images, step):
            # All graphs share one memory pool, but each keeps its own gradients. A batch with a new number of text
            # tokens first runs without a graph, with its own gradients. Sums over micro-batches also take memory.
            sizes = self._text_sizes(images, step)
            most = int(MOST_GRADIENT_SHARE * GPUS[USUAL_GPU].memory_gb * 1e9)
            held["graphs"] = denoiser + min(sizes * exact.weights, most)
            if sizes == 1:
                at_work -= denoiser
                held["gradients"] *= plan.train.accumulate > 1
        if text:
            held["graphs"] = held.get("graphs", 0) + text  # the frozen text encoder always runs as a graph
        for loss in plan.losses:
            if loss.weight_at(step):
                at_work += images * self._loss_bytes(loss, step)
                held[f"{loss.kind}: seen"] = images * self._seen_bytes(loss, step)
                work[f"{loss.kind}: teacher at work"] = text + self._teacher_bytes(loss, step, images)
        work["forward and backward"] = at_work
        if isinstance(plan.text, FrozenTextPart) and plan.run.text_embeddings == "live":
            work["text encoder at work"] = self._frozen_text_bytes(images * plan.train.accumulate)
        autoencoder = self._autoencoder()
        if autoencoder is not None and plan.run.latents == "none" and plan.tuning is None:
            work["tokenizer at work"] = text + self._coded(autoencoder, step, images, encode=True)
        if plan.tuning is not None:
            assert isinstance(plan.tuning, TuningSettings)
            self._tuned(plan.tuning, autoencoder, step, images, denoiser, held, work)
        return _with_largest(held, work)

    def _resident(self) -> int:
        """Return the bytes of the training images that stay on the GPU, in all sizes."""
        sizes = dict.fromkeys([self.plan.data.size_px, *(stage.size_px for stage in self.plan.train.stages)])
        several = len(self.plan.data.shapes) > 1
        return 0 if several else sum(self.plan.data.at_size(size).resident_bytes for size in sizes)

    def _image_bytes(self, step: int) -> int:
        """Return the bytes that one image needs in a step for its pixels, latents and caption."""
        plan = self.plan
        embedding = text_tokens(plan) * self.counted.networks.text_width * 4
        return 2 * 3 * plan.size_px_at(step) ** 2 + 4 * _LATENT_TENSORS * latent_input(plan, step).numel() + embedding

    def _in_graph(self, images: int, step: int) -> bool:
        """Return whether a denoiser pass is short enough for a CUDA graph."""
        plan = self.plan
        merges = plan.route is not None and hasattr(self.counted.networks.router, "fuse")
        if merges or not self.fused or plan.model.activation_checkpointing or plan.run.distribution.kind == "fsdp":
            return False
        return is_short(plan.model, plan.precision, images * prod(grid_at(plan, step)))

    def _text_sizes(self, images: int, step: int) -> int:
        """Return the number of different rounded text lengths among a run's batches."""
        plan, encoder = self.plan, self.counted.networks.text
        data = plan.data
        parts = [one.data for one in data.sources.values()] if isinstance(data, MixtureSettings) else [data]
        if encoder is None or not all(isinstance(one, ScenesSettings) for one in parts):
            return _TEXT_SIZES
        key = repr((plan.data, plan.captions, plan.text, step))
        if key not in _lengths:
            _lengths[key] = _caption_lengths(plan, encoder, step)
        length_N = _lengths[key]
        deviation = float(length_N.std()) * math.sqrt(images)
        unit, mean = rows_step(images, text_tokens(plan)), images * float(length_N.mean())
        first, last = (math.ceil((mean + sign * _DEVIATIONS * deviation) / unit) for sign in (-1, 1))
        return min(last, FEW_SIZES) - max(first, 1) + 1

    def _denoiser_bytes(self, step: int) -> int:
        """Return the bytes per training image that the denoiser needs during backward, with kept activations."""
        plan = self.plan
        if self.fused:
            return _fused_bytes(plan, step)
        key = (plan.model, plan.tokenizer.compression, grid_at(plan, step), plan.text, plan.route)
        return _known(repr(("denoiser", step if plan.route else 0, self.bf16, *key)), self._passes(step))

    def _passes(self, step: int, grad: bool = True) -> Callable[[], int]:
        plan, networks = self.plan, self.counted.networks
        tokens = prod(grid_at(plan, step))

        def one_pass(images: int) -> None:
            text = text_input(plan, networks, given=True, images=images)
            route = route_at(plan, networks.router, tokens, step, images) if grad else networks.router.whole()
            class_BT = class_input(plan, images, META)
            inputs = latent_input(plan, step, images), torch.empty(images, device=META), text
            with torch.set_grad_enabled(grad):
                output = networks.denoiser(*inputs, route=route, class_BT=class_BT)
            if grad:
                output.prediction_BCHW.float().square().mean().backward()

        return lambda: peak_per_image(one_pass, self.bf16)

    def _trained_text_bytes(self) -> int:
        plan, encoder = self.plan, self.counted.networks.text
        if encoder is None:
            return 0

        def encode(images: int) -> None:
            ids_BS = torch.zeros(images, text_tokens(plan), dtype=torch.long, device=META)
            encoder(ids_BS).float().sum().backward()

        return _known(repr(("text", plan.text, self.bf16)), lambda: peak_per_image(encode, self.bf16))

    def _frozen_text_bytes(self, images: int) -> int:
        """Return the bytes of a pass of the frozen text encoder, and of the encoded captions."""
        text = self.plan.text
        assert isinstance(text, FrozenTextPart)
        if text.weights not in PUBLISHED:
            self.missing.append(f"text: the activations of '{text.weights}'")
            return 0
        number = 2 if text.compute == "bf16" else 4
        states = images * text.max_tokens * PUBLISHED[text.weights].width * number
        at_a_time = min(images, max(1, MOST_TOKENS // text.max_tokens))
        return states + at_a_time * _text_bytes(text.weights, text.max_tokens) * number // 4

    # Losses

    def _seen_bytes(self, loss: LossPart, step: int) -> int:
        """Return the bytes of a teacher's tokens for one image."""
        tokens = prod(grid_at(self.plan, step))
        if isinstance(loss, AlignmentPart):
            width = _width(loss, self.counted.networks.terms)
            return 4 * tokens * width
        if isinstance(loss, AttentionSettings):
            return 4 * loss.layers * self.plan.model.heads * tokens**2
        return 0

    def _teacher_bytes(self, loss: LossPart, step: int, images: int) -> int:
        teacher = getattr(loss, "teacher", None)
        if not isinstance(teacher, TeacherPart):
            return 0
        outline = known_network(
            self.missing, loss.kind, teacher.kind, partial(teacher.outline, grid_at(self.plan, step))
        )
        if outline is None:
            return 0
        cached = isinstance(loss, AlignmentPart) and loss.cache != "none"
        return (min(images, CACHED_TEACHER_BATCH) if cached else images) * forward_bytes(outline)

    def _loss_bytes(self, loss: LossPart, step: int) -> int:
        """Return the bytes per image that a loss needs in addition to the denoiser's activations."""
        plan, tokens = self.plan, prod(grid_at(self.plan, step))
        if not is_built_in("losses", loss.kind):
            self.missing.append(f"{loss.kind}: its memory, since it is of a plugin")
            return 0
        if isinstance(loss, PerceptualPart):
            return self._perceptual_bytes(loss, plan.size_px_at(step))
        if isinstance(loss, AttentionSettings):
            # Logits and what becomes of them on the way to the cross entropy, with gradients, and queries and keys.
            return loss.layers * (20 * plan.model.heads * tokens**2 + 24 * plan.model.width * tokens)
        if isinstance(loss, DispersiveSettings):
            return 4 * 4 * plan.model.width * tokens
        if isinstance(loss, (ContrastiveSettings, ClassTokenSettings)):
            return 4 * 4 * latent_input(plan, step).numel()
        if loss.kind not in self.counted.networks.terms:
            self.missing.append(f"{loss.kind}: the size of its teacher's tokens")
            return 0
        term = self.counted.networks.terms[loss.kind][1]
        whole = _known(repr((loss, grid_at(plan, step), plan.model)), lambda: peak_per_image(self._term(term, step)))
        if isinstance(loss, SelfAlignmentSettings):  # the average's blocks are plain operations
            whole += _known(repr(("average", plan.model, grid_at(plan, step))), self._passes(step, grad=False))
        return whole

    def _term(self, term: object, step: int) -> Callable[[int], None]:
        grid, width = grid_at(self.plan, step), self.plan.model.width
        tokens = prod(grid)

        def work(images: int) -> None:
            feature = torch.empty(images, tokens, width, device=META, requires_grad=True)
            if isinstance(term, AlignmentTerm):
                seen = torch.empty(images, tokens, teacher_width(term), device=META)
                loss_B = term.compare(term.project(feature, None, grid), seen, None)
            else:
                assert isinstance(term, SelfAlignment)
                seen = torch.empty(images, tokens, width, device=META)
                loss_B = term.compare(term.head(feature.float()), seen)
            loss_B.sum().backward()

        return work

    def _perceptual_bytes(self, loss: PerceptualPart, size_px: int) -> int:
        """Return the activation bytes of an image and its prediction in the network of a perceptual loss."""
        number = 2 if loss.compute == "bf16" else 4
        if isinstance(loss, LpipsLossSettings):
            side_px, _ = shrunk_sides(size_px, size_px, loss.largest_px)
            return _lpips_bytes(loss.net, side_px) * number // 4
        if isinstance(loss, PerceptualDinoSettings) and loss.source in PUBLISHED:
            return _dino_pair_bytes(loss.source, loss.size_px) * number // 4
        self.missing.append(f"{loss.kind}: the activations of its network")
        return 0

    # Tokenizer

    def _autoencoder(self) -> AutoencoderOutline | None:
        tokenizer = self.plan.tokenizer
        if isinstance(tokenizer, PixelsSettings):
            return None
        source = getattr(tokenizer, "weights", tokenizer.kind)
        found: AutoencoderOutline | None = known_network(self.missing, "tokenizer", source, tokenizer.outline)
        return found

    def _coded(self, autoencoder: AutoencoderOutline, step: int, images: int, encode: bool) -> int:
        """Return the activation bytes of the images that the autoencoder encodes or decodes in one pass."""
        size_px = self.plan.size_px_at(step)
        at_a_time = min(images, images_at_a_time(size_px, size_px))
        channels, sides = latent_input(self.plan, step).shape[1], latent_input(self.plan, step).shape[2:]
        form = (3, size_px, size_px) if encode else (channels, *sides)
        key = repr(("autoencoder", self.plan.tokenizer, encode, form))
        run = autoencoder.encode if encode else autoencoder.decode
        return (
            at_a_time
            * _known(key, lambda: peak_per_image(_without_gradient(run, form)))
            * (autoencoder.number_bytes)
            // 4
        )

    def _tuned(
        self,
        tuning: TuningSettings,
        autoencoder: AutoencoderOutline | None,
        step: int,
        images: int,
        denoiser: int,
        held: dict[str, int],
        work: dict[str, int],
    ) -> None:
        """Add the memory to train the autoencoder's weights, and for its step up to the aligned block."""
        if autoencoder is None:
            return
        plan, size_px = self.plan, self.plan.size_px_at(step)
        form = tuple(latent_input(plan, step).shape[1:])
        held["tuned tokenizer"] = 16 * autoencoder.numbers  # weight, gradient, two averages of AdamW
        held["frozen networks"] -= autoencoder.numbers * autoencoder.number_bytes

        def both(count: int) -> None:
            image = torch.empty(count, 3, size_px, size_px, device=META, requires_grad=True)
            latent = torch.empty(count, *form, device=META, requires_grad=True)
            kept = (_tensor(autoencoder.encode(image)), _tensor(autoencoder.decode(latent)))
            (kept[0].float().sum() + kept[1].float().sum()).backward()

        key = repr(("tuned", plan.tokenizer, size_px, tuning.compute))
        whole = _known(key, lambda: peak_per_image(both, tuning.compute == "bf16"))
        if tuning.perceptual.kind == "lpips":
            whole += _lpips_bytes(tuning.perceptual.net, size_px)
            held["frozen networks"] += 4 * sum(one.numel() for one in _lpips(tuning.perceptual.net).buffers())
        if tuning.perceptual.kind == "scenes":
            whole += 2 * forward_bytes(SceneEncoderSettings().outline())
        if tuning.adversarial.weight:
            whole += 16 * tuning.adversarial.width * size_px**2  # its first maps, thrice, and all smaller ones
        outline = known_network(
            self.missing, tuning.kind, tuning.teacher.kind, partial(tuning.teacher.outline, grid_at(plan, step))
        )
        if outline is not None:
            held["frozen networks"] += outline.bytes
            work[f"{tuning.kind}: teacher at work"] = images * forward_bytes(outline)
        work["tokenizer's training"] = images * whole + denoiser * tuning.block // plan.model.depth

    # Scoring

    def scoring(self, protocol: Protocol) -> dict[str, int]:
        """Return the bytes at the peak of an evaluation; the sampled weights and all networks stay in memory."""
        plan, step = self.plan, self.plan.train.steps - 1
        sampled = {name: one for name, one in self.counted.networks.named.items() if not name.startswith("losses_")}
        weights = sum(one.numel() * one.element_size() for one in sampled.values())
        guides = {one.sampler.guidance.guide for one in protocol.conditions} - {None}
        frozen = [tower.bytes for name, (tower, _) in self.counted.towers.items() if name in ("text", "tokenizer")]
        held = {"weights": weights, "copies": self.exact.copies, "frozen networks": sum(frozen)}
        held["earlier weights"] = len(guides) * (weights + self.exact.copies)
        autoencoder = self._autoencoder()
        if plan.tuning is not None and autoencoder is not None:
            held["frozen networks"] += 4 * autoencoder.numbers
        work: dict[str, int] = {}
        for one in protocol.conditions:
            self._sampled(one, step, autoencoder, work)
        batch = min(protocol.sampler.batch, protocol.validation_count)
        work["validation loss"] = self._forward(batch, batch, step)
        encoders = dict.fromkeys(protocol.encoders)
        if plan.data.of_scenes:
            encoders = {SceneEncoderSettings(): None, **encoders}
        for encoder in encoders:
            outline = known_network(self.missing, f"encoder {encoder.title}", encoder.kind, encoder.outline)
            if outline is None:
                continue
            images = READ_TOGETHER if isinstance(encoder, SceneEncoderSettings) else BLOCK
            held[f"encoder {encoder.title}"] = outline.bytes
            work[f"encoding with {encoder.title}"] = images * forward_bytes(outline)
            work[f"distances by {encoder.title}"] = _distance_bytes(protocol, outline.features)
        return _with_largest(held, work)

    def _sampled(
        self, condition: Sampling, step: int, autoencoder: AutoencoderOutline | None, work: dict[str, int]
    ) -> None:
        sampler = condition.sampler
        batch = min(sampler.batch, condition.count or sampler.batch)
        guided = sampler.guidance.scale != 1
        key = f"sampling{' ' + condition.name if condition.name else ''}"
        # Classifier-free guidance computes both velocities in one batch. Their texts exist separately and joined.
        images = 2 * batch if guided and sampler.guidance.kind == "classifier-free" else batch
        work[key] = self._forward(images, 4 * batch if guided else batch, step)
        if autoencoder is not None:
            work["decoding"] = self._coded(autoencoder, step, batch, encode=False)
        if isinstance(self.plan.text, FrozenTextPart):
            work["text encoder at work"] = self._frozen_text_bytes(batch)
        if not is_built_in("guidances", sampler.guidance.kind) or not is_built_in("samplers", sampler.method):
            self.missing.append(f"sampling: what '{sampler.guidance.kind}' or '{sampler.method}' of a plugin holds")

    def _forward(self, images: int, texts: int, step: int) -> int:
        """Return the bytes of a pass without gradients. Every block keeps the keys and values of the texts."""
        plan = self.plan
        model, number = plan.model, 2 if self.bf16 else 4
        text = texts * 2 * model.width * text_tokens(plan) * model.depth * number
        latents = 6 * 4 * images * latent_input(plan, step).numel()
        if not self.fused:
            key = ("forward", model, plan.tokenizer.compression, grid_at(plan, step), plan.text, self.bf16)
            return text + latents + images * _known(repr(key), self._passes(step, grad=False))
        block = images * _block_bytes(plan, prod(grid_at(plan, step)))
        return text + latents + block * (2 if self._in_graph(images, step) else 1)

    # Host

    def shared_host(self) -> dict[str, int]:
        """Return the bytes of the teachers' tokens cached in the host's memory."""
        found = {}
        for loss in self.plan.losses:
            if not isinstance(loss, AlignmentPart) or loss.cache != "memory":
                continue
            data, grid = self.plan.data, self.plan.token_grid
            count = getattr(data, data.count_key, None) if hasattr(data, "count_key") else None
            if not isinstance(count, int):
                self.missing.append(f"{loss.kind}: the memory of its cache, since the number of images is not known")
                continue
            made_of = [loss.teacher.model_dump(mode="json"), data.content(), grid]
            name = hashlib.sha256(json.dumps(made_of, sort_keys=True, default=str).encode()).hexdigest()[:8]
            width = _width(loss, self.counted.networks.terms)
            found[f"tokens of {loss.teacher.kind} {name}"] = count * prod(grid) * width * 2
        return found


def _with_largest(held: Mapping[str, int], work: Mapping[str, int]) -> dict[str, int]:
    """Return the held parts, and the largest of the parts that run one after the other."""
    largest = max(work, key=lambda name: work[name])
    return {**{name: size for name, size in held.items() if size}, largest: work[largest]}


def _block_bytes(plan: Plan, tokens: int) -> int:
    """Return the bytes that tintype's kernels allocate for one image in one block."""
    return 2 * tokens * (12 * plan.model.width + 3 * plan.model.hidden)


def _fused_bytes(plan: Plan, step: int) -> int:
    """Return the activation bytes of an image: tensors that blocks keep, one block's gradients, and some vectors."""
    tokens = prod(grid_at(plan, step))
    outside = 2 * plan.model.width * tokens * (_OUTSIDE + (_ROUTED if plan.route else 0))
    return activation_bytes(plan, 1, step) + _block_bytes(plan, tokens) + outside


_lengths: dict[str, Tensor] = {}
"""Cached lengths of some captions, by all settings that determine the captions."""


def _caption_lengths(plan: Plan, encoder: WordsEncoder, step: int) -> Tensor:
    """Return the numbers of tokens of some scene captions, as training reads them at a step."""
    source = open_source(plan.data, "train", torch.device("cpu"))
    first = plan.train.images_before(step)
    ids = open_order(plan.seed, plan.data, plan.train, source).ids(first, _SAMPLED_CAPTIONS)
    draws = Draws(plan.seed, torch.arange(first, first + len(ids)))
    texts = captions_of(source.records(ids), plan.captions, draws, step, encoder).texts
    return torch.tensor([len(token_ids(text, encoder.settings)) for text in texts], dtype=torch.float64)


_counts: dict[str, int] = {}
"""Cached counts, by all settings that determine them. Many arms of a study have the same networks."""


def _known(key: str, count: Callable[[], int]) -> int:
    if key not in _counts:
        _counts[key] = count()
    return _counts[key]


def forward_bytes(outline: Outline) -> int:
    """Return the activation bytes of an image in a frozen network."""
    key = repr((type(outline.network).__name__, outline.numbers, outline.input_px))
    form = (3, *outline.input_px)
    whole = _known(key, lambda: peak_per_image(_without_gradient(outline.forward, form)))
    return whole * outline.number_bytes // 4 + 3 * 4 * prod(form)


def _without_gradient(run: Callable[[Tensor], object], form: Sequence[int]) -> Callable[[int], None]:
    def work(images: int) -> None:
        with torch.no_grad():
            run(torch.empty(images, *form, device=META))

    return work


@cache
def _text_bytes(source: str, tokens: int) -> int:
    """Return the activation bytes of a caption in a frozen text encoder, in fp32."""
    network = PUBLISHED[source]

    def encode(captions: int) -> None:
        ids = torch.zeros(captions, tokens, dtype=torch.long, device=META)
        with torch.no_grad():
            network.build()(input_ids=ids, **(network.text_inputs or {}))

    return peak_per_image(encode)


def _lpips(net: Net) -> Lpips:
    with META:
        return Lpips(net)


@cache
def _lpips_bytes(net: Net, side_px: int) -> int:
    """Return the activation bytes of an image and its prediction in LPIPS, in fp32 and with gradients."""
    network = _lpips(net)

    def compare(images: int) -> None:
        predicted, true = (torch.empty(images, 3, side_px, side_px, device=META) for _ in range(2))
        network(predicted.requires_grad_(), true).sum().backward()

    return peak_per_image(compare)


@cache
def _dino_pair_bytes(source: str, side_px: int) -> int:
    """Return the fp32 activation bytes in DINO of an image, and of its prediction with gradients."""
    network = PUBLISHED[source].build()

    def compare(images: int) -> None:
        predicted, true = (torch.empty(images, 3, side_px, side_px, device=META) for _ in range(2))
        tokens = network(pixel_values=predicted.requires_grad_()).last_hidden_state
        with torch.no_grad():
            wanted = network(pixel_values=true).last_hidden_state
        nn.functional.cosine_similarity(tokens, wanted, dim=-1).sum().backward()

    return peak_per_image(compare)


def _tensor(found: Untyped) -> Tensor:
    """Return the tensor in an autoencoder's output, which may be wrapped in an object."""
    for name in ("latent_dist", "mean", "sample", "latent", "mean_BCHW"):
        if not isinstance(found, Tensor) and hasattr(found, name):
            found = getattr(found, name)
    assert isinstance(found, Tensor)
    return found


def _width(loss: AlignmentPart, terms: Mapping[str, tuple[LossPart, object]]) -> int:
    """Return the width of a teacher's tokens; 0 if it is unknown."""
    part = terms[loss.kind][0] if loss.kind in terms else None
    return part.teacher.width() if isinstance(part, AlignmentPart) else 0


def _distance_bytes(protocol: Protocol, features: int) -> int:
    """Return the bytes of both sets' features in float64, the covariances, and the metrics' intermediate results."""
    images = protocol.reference_count + max([one.count or 0 for one in protocol.conditions], default=0)
    return 8 * (4 * images * features + 6 * features**2)
