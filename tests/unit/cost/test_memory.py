"""The estimated peak of a run: above what is counted exactly and what was measured, with every part in it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

from tests.tiny import tiny_plan
from tintype.cost.live import WORKSPACE, peak_bytes, peak_per_image
from tintype.cost.memory import EXACT, Peak, peak_of, reserved
from tintype.cost.plan import Counted, memory_of
from tintype.evaluation.early import early_protocol
from tintype.evaluation.presets import default_protocol
from tintype.evaluation.protocol import Condition, Protocol
from tintype.flow.guidance import ClassifierFreeSettings
from tintype.library.studies import load_study
from tintype.losses.part import LossPart
from tintype.plan import Plan, read_plan
from tintype.recipes.packaged import names
from tintype.runtime.clock import Clock
from tintype.runtime.pools import CONTEXT_BYTES
from tintype.sampling.generate import SamplerSettings
from tintype.seams import LossContext, LossInputs, LossTerm
from tintype.techniques.apply import apply_techniques
from tintype.train.session import build_session
from tintype.train.update import micro_batch_losses
from tintype.vision.inception import InceptionSettings
from tintype.vision.part import EncoderPart
from tintype.vision.vgg import VggSettings

META = torch.device("meta")


def peak(*overrides: str, techniques: tuple[str, ...] = (), protocol: Protocol | None = None) -> Peak:
    return peak_of(tiny_plan(*overrides, techniques=techniques), protocol)


# Counting on networks without numbers


def test_live_bytes_are_those_that_are_there_at_a_time() -> None:
    x = torch.empty(256, device=META)
    assert peak_bytes(lambda: x + 1) == 1024
    assert peak_bytes(lambda: x.add_(1)) == 0, "in place"
    assert peak_bytes(lambda: ((x + 1) + 1) + 1) == 2048, "the first is gone when the third comes"
    kept = peak_bytes(lambda: torch.stack([x + 1 for _ in range(3)]))
    assert kept == 6 * 1024


def test_the_backward_pass_keeps_what_it_reads() -> None:
    layers = nn.Sequential(*(nn.Sequential(nn.Linear(64, 64), nn.GELU()) for _ in range(4))).to(META)

    def passes(grad: bool) -> int:
        def work(images: int) -> None:
            with torch.set_grad_enabled(grad):
                out = layers(torch.empty(images, 64, device=META))
            if grad:
                out.sum().backward()

        return peak_per_image(work)

    row = 4 * 64
    assert passes(False) <= 4 * row, "without gradient: the input, and one layer's tensors"
    assert passes(True) >= 8 * row, "every layer's product and activation, but for the first input"
    assert all(one.grad is not None for one in layers.parameters()), "whose bytes do not grow with the images"


def test_attention_has_no_matrix_of_all_pairs_and_convolutions_have_a_workspace() -> None:
    token = torch.empty(1, 1, 1000, 8, device=META)
    assert peak_bytes(lambda: scaled_dot_product_attention(token, token, token)) < 1000 * 1000
    image, weight = torch.empty(1, 3, 8, 8, device=META), torch.empty(3, 3, 1, 1, device=META)
    found = peak_bytes(lambda: nn.functional.conv2d(image, weight))
    assert found == (1 + 2 * WORKSPACE) * image.nbytes


def test_products_are_bf16_where_training_is() -> None:
    layer, x = nn.Linear(64, 64).to(META), torch.empty(1, 64, device=META)
    assert peak_bytes(lambda: layer(x), bf16=True) != peak_bytes(lambda: layer(x))
    out: list[Tensor] = []
    peak_bytes(lambda: out.append(layer(x)), bf16=True)
    assert out[0].dtype == torch.bfloat16


@pytest.mark.parametrize("compute", ["fp32", "bf16"])
@pytest.mark.parametrize("techniques", [(), ("tread",), ("swiglu",), ("value-residual",)])
def test_the_estimate_is_not_below_what_a_real_step_keeps(compute: str, techniques: tuple[str, ...]) -> None:
    plan = tiny_plan(f"precision.compute={compute}", "model.kernels=plain", techniques=techniques)
    parts = build_session(plan)
    parts.ready()
    weights = {one.untyped_storage().data_ptr() for one in parts.modules.parameters()}
    kept: dict[int, int] = {}

    def keep(one: Tensor) -> Tensor:
        storage = one.untyped_storage()
        if storage.data_ptr() not in weights:
            kept[storage.data_ptr()] = storage.nbytes()
        return one

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda one: one):
        losses = micro_batch_losses(parts, 0, plan.train.batch, 0, Clock(parts.device))
    assert losses.parts["loss"].requires_grad
    found = peak_of(plan).training
    assert found["forward and backward"] + found.get("copies", 0) >= sum(kept.values()) > 0


# Monotone, and never below what is exact


@pytest.mark.parametrize("kernels", ["auto", "plain"])
@pytest.mark.parametrize(
    ("small", "large"),
    [
        ("train.batch=4", "train.batch=8"),
        ("data.size_px=16", "data.size_px=32"),
        ("model.depth=3", "model.depth=5"),
        ("model.width=32", "model.width=64"),
        ("text.max_tokens=16", "text.max_tokens=32"),
        ("train.accumulate=2", "train.accumulate=1"),
    ],
)
def test_a_larger_run_takes_more(small: str, large: str, kernels: str) -> None:
    few, many = (
        peak("precision.compute=bf16", f"model.kernels={kernels}", one, protocol=Protocol()) for one in (small, large)
    )
    assert many.training_bytes > few.training_bytes and many.scoring_bytes >= few.scoring_bytes
    assert few.known and many.known


_LARGE = [pytest.param(one, marks=pytest.mark.slow) for one in ("prx-256", "prx-jit-1024")]


@pytest.mark.parametrize("recipe", ["mini", *_LARGE])
def test_the_estimate_has_all_that_is_exact(recipe: str) -> None:
    plan = read_plan(recipe)
    found, exact = peak_of(plan, default_protocol(plan)), memory_of(Counted(plan))
    for name in ("weights", "optimizer", "copies"):
        assert found.training[name] == getattr(exact, name)
    assert found.training.get("frozen networks", 0) == exact.towers
    assert found.training_bytes > exact.total
    assert found.bytes == max(found.training_bytes, found.scoring_bytes) > CONTEXT_BYTES
    assert sum(found.training.values()) < reserved(found.training) < 1.3 * sum(found.training.values())
    assert {"weights", "optimizer"} <= EXACT and found.known


@pytest.mark.parametrize(
    ("gib", "overrides", "techniques"),
    [
        (40.01, (), ("repa:teacher.kind=vgg16,teacher.arithmetic=tf32,hidden=768,cache=none",)),
        (7.09, ("train.batch=64",), ()),
        (20.87, ("model.patch=2", "train.batch=64"), ()),
        (15.06, ("precision.compute=fp32", "train.batch=128"), ()),
        (14.56, ("model.compile=false",), ()),
        (11.71, ("train.accumulate=2",), ()),
        (15.41, (), ("muon",)),
        (11.95, (), ("tread",)),
        (14.60, (), ()),
        (14.56, (), ("contrastive",)),
    ],
)
def test_the_estimate_is_between_the_measured_peak_and_half_as_much_again(
    gib: float, overrides: tuple[str, ...], techniques: tuple[str, ...]
) -> None:
    """Peaks of `max_memory_reserved` on an H200, of 30 steps of the recipe mini and their scoring."""
    plan = apply_techniques(read_plan("mini", ["train.steps=30", *overrides]), list(techniques))
    found = peak_of(plan, default_protocol(plan))
    measured = max(reserved(found.training), reserved(found.scoring)) / 2**30
    assert gib <= measured <= 1.5 * gib


# Each part


@pytest.mark.parametrize(
    ("overrides", "technique"),
    [
        ((), "ema"),
        ((), "repa:teacher=scenes,hidden=8"),
        ((), "repa:teacher.kind=vgg16,hidden=8"),
        ((), "dispersive"),
        ((), "contrastive"),
        (("data.size_px=32", "objective={kind: x-prediction}"), "lpips"),
        ((), "fp32"),
        ((), "registers"),
        (("ema={decay: 0.9}",), "self-alignment"),
    ],
)
def test_a_technique_takes_what_it_needs(overrides: tuple[str, ...], technique: str) -> None:
    base = ("precision.compute=bf16", "model.kernels=plain", *overrides)
    without, found = peak(*base), peak(*base, techniques=(technique,))
    assert found.training_bytes > without.training_bytes and found.known


def test_a_graph_has_its_pool_beside_the_pass_of_another_number_of_text_tokens() -> None:
    short, long = (peak_of(read_plan("mini", [f"train.batch={batch}"])).training for batch in (64, 4096))
    assert short["graphs"] > short["forward and backward"] > 0, "its captions come to several numbers of rows"
    assert long["graphs"] < long["forward and backward"], "the pass of the text encoder alone"
    one = peak_of(read_plan("mini")).training
    assert one["graphs"] > 10 * one["forward and backward"] and "gradients" not in one, "one number: no pass beside it"


def test_images_that_stay_on_the_gpu_are_counted_in_every_size_up_to_their_limit() -> None:
    def images(*overrides: str) -> int:
        return peak(*overrides).training.get("images on the GPU", 0)

    assert images("data.count=100") == 100 * 3 * 16 * 16
    assert images("data.size_px=32", "data.count=64", "train.stages=[{size_px: 16, until: 2}]") == 64 * 3 * (1024 + 256)
    assert images("data.count=2000000") == 0, "more than a GiB is rendered again"
    store = ("data.kind=store", "data.path=DIR", "data.size_px=32")
    assert images(*store, "data.limit=10") == 10 * 3 * 1024
    assert images(*store) == 2 << 30, "how many there are is not known: the most that stay"


def test_a_cached_teacher_sees_few_images_and_its_tokens_are_the_hosts() -> None:
    base = ("train.batch=256", "data.count=512")
    none, cached = (
        peak(*base, techniques=(f"repa:teacher.kind=vgg16,hidden=8,cache={cache}",)) for cache in ("none", "memory")
    )
    assert "repa: teacher at work" in none.training and none.training_bytes > cached.training_bytes
    grid = tiny_plan().token_grid
    assert list(cached.shared_host.values()) == [512 * grid[0] * grid[1] * 512 * 2] and not none.shared_host
    again = peak(*base, techniques=("repa:teacher.kind=vgg16,hidden=16,cache=memory",))
    assert cached.shared_host == again.shared_host, "arms with the same tokens share them"
    other = peak("train.batch=256", "data.count=256", techniques=("repa:teacher.kind=vgg16,hidden=8,cache=memory",))
    assert other.shared_host.keys() != cached.shared_host.keys()


@pytest.mark.slow
def test_frozen_text_tokenizer_and_the_tuning_of_one_are_counted() -> None:
    plan = read_plan("prx-256", ["run.text_embeddings=live"])
    text, disk = peak_of(plan), peak_of(read_plan("prx-256", ["train.batch=8192", "run.text_embeddings=live"]))
    assert text.training["frozen networks"] > 5e9 and disk.training_bytes > text.training_bytes
    large = peak_of(read_plan("prx-256", ["data.size_px=512"]), Protocol(sampler=SamplerSettings(batch=8)))
    assert large.scoring_bytes > peak_of(plan, Protocol(sampler=SamplerSettings(batch=8))).scoring_bytes
    trainable = read_plan("prx-256", ["tokenizer.compute=fp32", "tokenizer.posterior=mean"])
    tuned = peak_of(apply_techniques(trainable, ["repa-e:teacher.kind=dinov2,perceptual=lpips"]))
    assert "tuned tokenizer" in tuned.training and tuned.training_bytes > text.training_bytes
    assert "tokenizer's training" in tuned.training and tuned.known


def test_scoring_counts_samplings_encoders_and_scores_along_training() -> None:
    plan = read_plan("mini")

    def scoring(**settings: object) -> Mapping[str, int]:
        return peak_of(plan, Protocol(**settings)).scoring  # type: ignore[arg-type]

    def gib(parts: Mapping[str, int]) -> int:
        return sum(parts.values())

    plain, guided = (
        scoring(sampler=SamplerSettings(batch=256, guidance=ClassifierFreeSettings(scale=scale)), count=512, also=())
        for scale in (1.0, 3.0)
    )
    assert gib(guided) > gib(plain), "guidance doubles the batch"
    also = (Condition(name="more", prompts="short", guidance=ClassifierFreeSettings(scale=3.0), distances=False),)
    unguided = SamplerSettings(batch=256, guidance=ClassifierFreeSettings(scale=1.0))
    assert gib(scoring(sampler=unguided, count=512, also=also)) == pytest.approx(gib(guided), rel=0.01)
    few = SamplerSettings(batch=1)
    for encoder in (InceptionSettings(), VggSettings()):
        found = scoring(sampler=few, encoders=(encoder,), also=())
        assert f"encoder {encoder.kind}" in found and f"encoding with {encoder.kind}" in found
    along = early_protocol(Protocol(), [])
    assert peak_of(plan, None, along).scoring == peak_of(plan, along).scoring


# Unknown parts


class OwnEncoder(EncoderPart):
    kind: Literal["own"] = "own"


class OwnTerm(LossTerm):
    def loss(self, inputs: LossInputs) -> Tensor:
        return inputs.velocity_BCHW.mean((1, 2, 3))


class OwnLoss(LossPart):
    kind: Literal["own-loss"] = "own-loss"

    def build(self, context: LossContext) -> OwnTerm:
        return OwnTerm()


def test_parts_of_a_plugin_are_named_as_missing() -> None:
    protocol = Protocol().model_copy(update={"encoders": (OwnEncoder(),)})
    found = peak_of(tiny_plan(), protocol)
    assert not found.known and found.missing == ("encoder own: the sizes of 'own' are not known",)
    plan: Plan = tiny_plan().model_copy(update={"losses": (OwnLoss(),)})
    assert peak_of(plan).missing == ("own-loss: its memory, since it is of a plugin",)


def test_a_teacher_of_unknown_size_is_named() -> None:
    found = peak(techniques=("repa:teacher.kind=dinov2,teacher.source=someone/else,hidden=8",))
    assert not found.known and any("someone/else" in text or "dinov2" in text for text in found.missing)


@pytest.mark.slow
@pytest.mark.parametrize("study", sorted(names("studies")))
def test_every_arm_of_a_packaged_study_has_a_known_peak(study: str) -> None:
    found = load_study(study)
    for arm in found.arms:
        plan = arm.plans[0]
        along = found.along(plan)
        one = peak_of(plan, found.settings.evaluation, along.protocol if along else None)
        assert one.known and one.training_bytes > CONTEXT_BYTES < one.scoring_bytes, (arm.label, one.missing)
