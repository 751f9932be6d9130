"""The cost of a plan: what is exact against formulas and real runs, and what is an estimate says so."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from tests.offline import NAMES, with_technique
from tests.tiny import tiny_plan
from tintype.cli import app
from tintype.cost.plan import (
    GPUS,
    UTILISATION,
    Counted,
    PlanCost,
    activation_bytes,
    cost_of_plan,
    denoiser_flops,
    estimated_speed,
    measured_speed,
)
from tintype.errors import UserError
from tintype.plan import Plan, read_plan
from tintype.pretrained.published import PUBLISHED
from tintype.runtime.clock import Clock
from tintype.techniques.apply import apply_techniques
from tintype.train.session import build_session
from tintype.train.state import new_state
from tintype.train.update import update

SPEED = estimated_speed("h200")


def cost(plan: Plan, gpus: int = 1) -> PlanCost:
    return cost_of_plan(plan, SPEED, gpus)


# Parameters


@pytest.mark.parametrize(
    ("recipe", "count"),
    [
        *(("prx-256", 1_170_691_648), ("prx-jit-1024", 1_177_215_744), ("prx-7b", 6_985_046_080)),
        ("prxpixel-7b", 7_010_156_800),
    ],
)
def test_the_denoisers_have_the_published_numbers_of_parameters(recipe: str, count: int) -> None:
    found = cost(read_plan(recipe))
    assert found.parameters == {"denoiser": count} and found.trained == count and not found.missing


@pytest.mark.parametrize(
    ("source", "millions"),
    [
        ("google/t5gemma-2b-2b-ul2", 2614.3),  # Gemma 2 2B without its cross-attention
        ("Qwen/Qwen3-VL-2B-Instruct", 1720.6),  # Qwen3-1.7B, whose language tower it has
        ("black-forest-labs/FLUX.1-schnell", 83.8),
        ("black-forest-labs/FLUX.2-klein-4B", 84.0),
        ("facebook/dinov2-base", 86.6),
        ("facebook/dinov2-large", 304.4),
        ("facebook/dinov3-vitl16-pretrain-lvd1689m", 303.1),
        ("sentence-transformers/all-MiniLM-L6-v2", 22.7),
    ],
)
def test_frozen_networks_have_the_published_numbers_of_parameters(source: str, millions: float) -> None:
    pytest.importorskip("transformers")
    pytest.importorskip("diffusers")
    network = PUBLISHED[source].build()
    assert sum(one.numel() for one in network.parameters()) / 1e6 == pytest.approx(millions, abs=0.06)
    assert all(one.is_meta for one in network.parameters()), "nothing is loaded"


# Operations


def linear(rows: int, size_in: int, size_out: int, input_has_gradient: bool = True) -> int:
    """Return the operations of a layer: forward, gradient of the weight, and gradient of the input if there is one."""
    return 2 * rows * size_in * size_out * (3 if input_has_gradient else 2)


def block(width: int, hidden: int, image: int, text: int) -> int:
    """A block written out: adaLN, QKV, text KV, two products of the attention, output, and the gated MLP."""
    attention = 2 * 2 * image * (text + image) * width * 3
    return (
        linear(1, width, 6 * width)
        + linear(image, width, 3 * width)
        + linear(text, width, 2 * width)
        + attention
        + linear(image, width, width)
        + 2 * linear(image, width, hidden)
        + linear(image, hidden, width)
    )


def written_out(plan: Plan, text_width: int, text: int, sparse: dict[int, int]) -> int:
    """Return the operations of a training image, by hand. `sparse` has the tokens of blocks that see only some."""
    model, channels = plan.model, plan.tokenizer.compression.channels
    image, width = plan.token_grid[0] * plan.token_grid[1], model.width
    patch = channels * model.patch**2
    begin = linear(image, patch, width, False) if model.bottleneck is None else 0
    if model.bottleneck is not None:
        begin = linear(image, patch, model.bottleneck, False) + linear(image, model.bottleneck, width)
    time = linear(1, 256, width, False) + linear(1, width, width)
    blocks = sum(block(width, model.hidden, sparse.get(index, image), text) for index in range(model.depth))
    end = linear(1, width, 2 * width) + linear(image, width, patch)
    return begin + time + linear(text, text_width, width, False) + blocks + end


@pytest.mark.parametrize("recipe", ["prx-256", "prx-jit-1024"])
def test_the_operations_of_an_image_are_those_of_the_formula(recipe: str) -> None:
    plan = read_plan(recipe)
    counted = cost(plan).phases[0].flops["denoiser"]
    assert counted == written_out(plan, 2304, 256, {})


def test_tokens_that_skip_blocks_cost_nothing_there() -> None:
    plan = apply_techniques(read_plan("prx-256"), ["tread"])
    (phase,) = cost(plan).phases
    assert phase.flops["denoiser"] == written_out(plan, 2304, 256, dict.fromkeys(range(2, 13), 128))


def test_a_text_encoder_that_is_trained_is_counted_with_its_gradient() -> None:
    """Its last layer's input has a gradient, and the denoiser's first layer on texts passes one on."""
    plan = tiny_plan("text.depth=0")
    counted = denoiser_flops(Counted(plan), 0)
    assert counted == written_out(plan, 16, 24, {}) + 2 * 24 * 16 * 32
    assert denoiser_flops(Counted(plan), 0, alone=True) == written_out(plan, 16, 24, {}), "as a measurement runs it"


def test_a_loss_that_learns_from_the_average_costs_its_forward_pass_and_a_head() -> None:
    plan = tiny_plan("text.depth=0", techniques=["ema", "self-alignment:block=1,teacher_block=2"])
    usual, aligned = (cost(one).phases[0].flops for one in (tiny_plan("text.depth=0"), plan))
    model, image, text = plan.model, plan.token_grid[0] * plan.token_grid[1], 24
    width = model.width
    head = linear(image, width, 2 * width) + linear(image, 2 * width, width)
    assert aligned["denoiser"] - usual["denoiser"] == head
    begin = 2 * image * 3 * model.patch**2 * width
    time = 2 * (256 * width + width * width)
    two_blocks = 2 * block(width, model.hidden, image, text) // 3  # all of its terms are forward and twice that back
    assert model.depth > 2 and aligned["self-alignment"] == begin + time + 2 * text * 16 * width + two_blocks
    stopped = cost(tiny_plan(techniques=["ema", "self-alignment:schedule.kind=until,schedule.end=2"]))
    assert ["self-alignment" in one.flops for one in stopped.phases] == [True, False]


def test_a_teacher_of_attention_is_counted_beside_that_of_tokens() -> None:
    found = cost(apply_techniques(read_plan("prx-256"), ["haste"]))
    assert found.towers["attention"] == found.towers["repa"]
    assert found.phases[0].flops["attention"] == found.phases[0].flops["repa"] > 0
    assert found.missing == ("attention: its own matrix products",)


def test_the_operations_of_the_optimizer_are_counted_once_a_step() -> None:
    adamw, muon = cost(tiny_plan()), cost(tiny_plan(techniques=["muon"]))
    assert adamw.optimizer_flops == 0 < muon.optimizer_flops
    assert muon.step_flops - adamw.step_flops == pytest.approx(muon.optimizer_flops)


def test_parts_of_the_run_that_cost_other_amounts_are_counted_apart() -> None:
    stages = cost(tiny_plan("data.size_px=32", techniques=["resolution-stages:until=[2]"]))
    assert [(one.first, one.end, one.size_px) for one in stages.phases] == [(0, 2, 16), (2, 6, 32)]
    assert stages.phases[0].image_flops < stages.phases[1].image_flops
    assert stages.run_flops == pytest.approx(4 * (2 * stages.phases[0].image_flops + 4 * stages.phases[1].image_flops))
    live = read_plan("prx-256", ["run.text_embeddings=live"])
    burnt = cost(apply_techniques(live, ["repa-burn-in:teacher.kind=dinov3,hidden=1024,share=0.5"]))
    assert [sorted({*one.flops} - {"denoiser"}) for one in burnt.phases] == [
        ["repa", "text", "tokenizer"],
        ["text", "tokenizer"],
    ]
    dense = [one.flops["denoiser"] for one in burnt.phases]
    projector = 3 * 2 * 256 * (1792 * 1024 + 2 * 1024 * 1024)
    assert dense[0] - dense[1] == projector


def test_a_stage_costs_what_its_own_batch_does() -> None:
    few, many = (
        cost(tiny_plan("data.size_px=32", f"train.stages=[{{size_px: 16, until: 3{batch}}}]"))
        for batch in ("", ", batch: 16")
    )
    first, last = many.phases
    assert [one.batch for one in many.phases] == [16, 4] and [one.batch for one in few.phases] == [4, 4]
    assert many.run_flops == pytest.approx(3 * 16 * first.image_flops + 3 * 4 * last.image_flops)
    assert many.flops_until(2) == pytest.approx(2 * 16 * first.image_flops) == 4 * few.flops_until(2)
    assert many.images_per_s * many.gpu_hours * 3600 == pytest.approx(3 * 16 + 3 * 4)
    assert (few.largest_micro_batch, many.largest_micro_batch) == (4, 16)
    larger = cost(tiny_plan("data.size_px=32", "train.stages=[{size_px: 16, until: 3, batch: 64}]"))
    plan = tiny_plan("data.size_px=16")
    assert larger.memory.activations == activation_bytes(plan, 64) > few.memory.activations
    store = ["data.kind=store", "data.path=DIR", "data.size_px=32", "data.buckets=[[32,32],[24,40]]"]
    shaped = cost(tiny_plan(*store, "train.stages=[{size_px: 16, until: 2, batch: 16}]"))
    assert [(one.size_px, one.batch, one.image_flops) for one in shaped.phases] == [
        (one.size_px, one.batch, one.image_flops) for one in many.phases
    ], "as squares, which no shape of their stage exceeds"
    assert shaped.missing == ("data.buckets: images are counted as squares, of data.size_px or of the stage's size_px",)
    with pytest.raises(UserError, match="--gpus 4: a micro-batch has 6 images"):
        cost(tiny_plan("data.size_px=32", "train.stages=[{size_px: 16, until: 3, batch: 6}]"), 4)


def test_what_is_cached_or_not_known_is_not_counted_and_named() -> None:
    cached = cost(read_plan("prx-256", ["run.latents=disk", "run.text_embeddings=disk"]))
    assert set(cached.phases[0].flops) == {"denoiser"}
    own = cost(tiny_plan(techniques=["repa:teacher=scenes,hidden=8"]))
    assert "losses_repa" in own.parameters and own.towers["repa"].parameters > 100_000 and not own.missing
    assert cost(tiny_plan(techniques=["dispersive"])).missing == ("dispersive: its own matrix products",)
    assert not cost(tiny_plan(techniques=["contrastive"])).missing
    perceptual = cost(tiny_plan("data.size_px=32", techniques=["x-prediction", "lpips"]))
    assert perceptual.missing == ("lpips: the memory of its activations",)


@pytest.mark.parametrize(("kind", "channels", "stride_px"), [("rae", 768, 16), ("small-vae", 4, 4)])
def test_a_tokenizer_of_unknown_size_is_named(kind: str, channels: int, stride_px: int) -> None:
    tokenizer = f"{{kind: {kind}, folder: somewhere, channels: {channels}, stride_px: {stride_px}}}"
    found = cost(tiny_plan("data.size_px=64", "model.patch=1", f"tokenizer={tokenizer}", "run.latents=none"))
    assert found.missing == (f"tokenizer: the sizes of '{kind}' are not known",)


# Memory


@pytest.mark.parametrize(
    "techniques",
    [
        (),
        ("muon",),
        ("ema",),
        ("power-ema",),
        ("ema", "self-alignment"),
        ("sprint",),
        ("repa:teacher=scenes,hidden=8",),
        ("bf16-storage:rounding=kahan", "ema"),
    ],
)
def test_the_memory_of_weights_gradients_optimizer_and_averages_is_exact(techniques: tuple[str, ...]) -> None:
    """Against the tensors of a run after a step."""
    plan = tiny_plan("precision.compute=bf16", techniques=techniques)
    parts = build_session(plan)
    parts.ready()
    state = new_state(parts)
    update(parts, state, Clock(parts.device))

    def size(tensors: Iterable[torch.Tensor]) -> int:
        return sum(one.numel() * one.element_size() for one in tensors)

    parameters = list(parts.modules.parameters())
    memory = cost(plan).memory
    assert memory.weights == size(parameters)
    assert memory.gradients == size(parameters), "a gradient has the type of its weight"
    assert memory.optimizer == size(value for slots in state.optimizer.state.values() for value in slots.values())
    assert memory.averages == (size(state.ema.tensors().values()) if state.ema else 0)
    assert cost(plan).trained == sum(one.numel() for one in parameters)


@pytest.mark.slow
def test_frozen_networks_take_the_bytes_of_what_they_compute_in() -> None:
    towers = cost(read_plan("prx-256")).towers
    assert {name: tower.bytes / tower.parameters for name, tower in towers.items()} == {"text": 2, "tokenizer": 2}
    for arithmetic, size in (("auto", 2), ("tf32", 4)):
        plan = apply_techniques(read_plan("prx-256"), [f"repa:teacher.kind=dinov2,teacher.arithmetic={arithmetic}"])
        tower = cost(plan).towers["repa"]
        assert tower.bytes == size * tower.parameters, "auto is bf16 on a GPU"
    fp32 = cost(read_plan("prx-256", ["tokenizer.compute=fp32"])).towers["tokenizer"]
    assert fp32.bytes == 4 * fp32.parameters
    for compute, size in (("fp32", 4), ("bf16", 2)):
        plan = apply_techniques(read_plan("prx-jit-1024"), [f"perceptual-dino:compute={compute}"])
        tower = cost(plan).towers["perceptual-dino"]
        assert tower.bytes == size * tower.parameters


def test_sharded_weights_are_divided_and_replicated_ones_are_not() -> None:
    alone, sharded = (cost(read_plan("prx-7b"), gpus).memory for gpus in (1, 32))
    for part in ("weights", "gradients", "optimizer"):
        assert getattr(sharded, part) == getattr(alone, part) // 32
    assert sharded.towers == alone.towers and sharded.activations == alone.activations / 32
    replicated = cost(read_plan("prx-256"), 8).memory
    assert replicated.weights == cost(read_plan("prx-256")).memory.weights
    assert sharded.total < GPUS["h200"].memory_gb * 1e9 < alone.total


def test_activations_grow_with_images_and_shrink_by_routes_and_checkpointing() -> None:
    plan = read_plan("prx-256")
    assert activation_bytes(plan, 64) == 2 * activation_bytes(plan, 32)
    assert activation_bytes(apply_techniques(plan, ["tread"]), 32) < activation_bytes(plan, 32)
    recomputed = read_plan("prx-256", ["model.activation_checkpointing=true"])
    assert activation_bytes(recomputed, 32) < activation_bytes(plan, 32) / 5
    assert activation_bytes(read_plan("prx-256", ["precision.compute=fp32"]), 32) == 2 * activation_bytes(plan, 32)


@pytest.mark.parametrize("name", NAMES)
def test_every_technique_has_a_cost(name: str) -> None:
    """A study prints it before it starts, so no plan may fail there."""
    plan = with_technique(name)
    found = cost(plan)
    assert found.trained > 0 and found.step_flops > 0 and found.memory.total > found.memory.weights
    if plan.tuning is None and "fp8" not in name:
        assert found.trained == sum(one.numel() for one in build_session(plan).modules.parameters())


# Time


def test_time_follows_from_operations_and_speed() -> None:
    one, eight = cost(read_plan("prx-256")), cost(read_plan("prx-256"), 8)
    assert one.gpu_hours == pytest.approx(one.run_flops / (UTILISATION * 989e12) / 3600) == eight.gpu_hours
    assert eight.days == pytest.approx(one.days / 8) and eight.images_per_s == pytest.approx(8 * one.images_per_s)
    assert one.images_per_s * one.gpu_hours * 3600 == pytest.approx(100_000 * 256)
    assert not SPEED.measured and "an estimate" in SPEED.words


def test_a_measured_speed_says_so() -> None:
    plan = tiny_plan(techniques=["tread", "repa:teacher.kind=dinov2,hidden=8"])
    speed = measured_speed(plan, torch.device("cpu"), 2)
    assert speed.measured and speed.flop_per_s > 0 and speed.words.startswith("measured on cpu")
    assert speed.words.endswith("; frozen networks are taken to be as fast")


def test_what_cannot_be_is_refused() -> None:
    with pytest.raises(UserError, match="--gpu h300: unknown kind; known: a100, h100, h200"):
        estimated_speed("h300")
    with pytest.raises(UserError, match=r"--gpus 3: a micro-batch has 32 images .* cannot be split evenly"):
        cost(read_plan("prx-256"), 3)


# Commands


def test_the_command_prints_json_that_keeps_estimates_apart() -> None:
    shown = CliRunner().invoke(app, ["plan", "cost", "prx-256", "--gpus", "8", "--gpu", "b200", "--json"])
    content = json.loads(shown.output)
    assert content["trained_parameters"] == {"denoiser": 1_170_691_648}
    assert set(content["memory_bytes"]) == {"weights", "gradients", "optimizer", "averages", "towers"}
    assert set(content["memory_bytes_estimated"]) == {"copies", "activations"}
    assert content["peak_bytes"]["training"] > sum(content["memory_bytes"].values())
    assert content["peak_bytes"]["scoring"] > 0 and content["peak_bytes"]["known"]
    assert content["caption_tokens_at_most"] == 256
    assert content["speed"]["measured"] is False and content["gpus"] == 8


def test_the_command_calls_estimates_by_their_name() -> None:
    shown = CliRunner().invoke(app, ["plan", "cost", "prx-7b", "--gpu", "h200"]).output
    assert "6,985,046,080" in shown and "exact" in shown and "estimate" in shown
    assert "note: the h200 has 141 GB" in shown
    assert "a caption counts as 256 tokens (text.max_tokens), an upper bound" in shown


@pytest.mark.parametrize(("recipe", "short"), [("pocket", True), ("mini", False)])
def test_a_step_that_would_wait_for_the_host_is_noted(recipe: str, short: bool) -> None:
    shown = CliRunner().invoke(app, ["plan", "cost", recipe, "--gpu", "h200"]).output
    assert ("steps this short wait for the CPU" in " ".join(shown.split())) == short


@pytest.mark.slow
def test_a_study_prints_the_cost_of_its_arms_before_it_starts(tmp_path: Path) -> None:
    out = ["--dry-run", "--out", f"{tmp_path}/out"]
    shown = CliRunner().invoke(app, ["ablate", "routing-mini", "--arm", "tread", *out]).output
    assert "Estimated cost of a run on one h200" in shown and "all 20 runs" in shown
    assert "a caption counts as text.max_tokens tokens, an upper bound" in shown
    assert "images/s" in shown and "memory of a GPU, baseline" in shown and "forward and backward" in shown
    assert "train" in shown and "score" in shown and "GiB" in shown
    small = CliRunner().invoke(app, ["ablate", "pocket", *out]).output
    assert "a run of the baseline: 686 k trained parameters" in small.replace("\u00a0", " ")


def test_lpips_in_bf16_takes_half_of_the_bytes_but_for_its_last_weights() -> None:
    plans = [
        apply_techniques(tiny_plan("data.size_px=32"), ["x-prediction", f"lpips:compute={compute}"])
        for compute in ("fp32", "bf16")
    ]
    fp32, bf16 = (cost(plan).towers["lpips"] for plan in plans)
    heads = sum((64, 128, 256, 512, 512)) + 2 * 3
    assert fp32.bytes == 4 * fp32.parameters and fp32.parameters == bf16.parameters
    assert bf16.bytes == 2 * (bf16.parameters - heads) + 4 * heads
