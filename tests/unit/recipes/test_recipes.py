"""The named plans that stand for published training runs: what they say, and that they run when scaled down."""

from __future__ import annotations

import re
from importlib import resources
from pathlib import Path

import pytest
import torch
from torch import nn

from tests.tiny_dino import FOLDER, SIZE_PX, write_dino
from tintype.data.captions import NULL_CAPTION
from tintype.evaluation.presets import protocol_of
from tintype.flow.guidance import ClassifierFreeSettings
from tintype.model import Transformer
from tintype.plan import Plan, diff, plan_from_document
from tintype.recipes import packaged
from tintype.runtime.interrupt import Interrupt
from tintype.sampling.generate import SamplerSettings, generate
from tintype.seams import Draws, TextTokens
from tintype.train.loop import train
from tintype.train.parts import build_model
from tintype.train.update import lr_factor

PRX_TEXT_DIM = 2304
QWEN_TEXT_DIM = 2048
SMALL = (
    *("data.size_px=64", "data.count=16", "text={kind: words, width: 16, depth: 1, heads: 2, max_tokens: 80}"),
    *("model.depth=2", "model.width=32", "model.heads=2", "model.bottleneck=12", "model.compile=false"),
    *("train.steps=3", "train.batch=8", "run.device=cpu", "run.log_every_steps=1"),
)
"""The settings stay; the sizes are a CPU's. 64 px in patches of 32 make 2 × 2 tokens."""


def jit_1024(*assignments: str) -> Plan:
    return plan_from_document(packaged.find("plans", "prx-jit-1024"), assignments)


def test_the_jit_recipe_is_prxs() -> None:
    plan = jit_1024()
    assert (plan.data.size_px, plan.tokenizer.kind) == (1024, "pixels")
    assert (plan.model.depth, plan.model.width, plan.model.heads, plan.model.mlp_ratio) == (16, 1792, 28, 3.5)
    assert (plan.model.patch, plan.model.bottleneck) == (32, 256)
    assert plan.objective.model_dump() == {"kind": "x-prediction", "clamp": 0.05, "noise_scale": 1.0}
    assert (plan.time.kind, plan.time.shift, plan.time.uniform_share, plan.time.lowest) == ("mixture", 3.0, 0.1, 0.001)
    adamw = {"lr": 1e-4, "beta1": 0.9, "beta2": 0.95, "eps": 1e-15, "weight_decay": 0.0}
    assert plan.optimizer.model_dump() == {"kind": "adamw", **adamw}
    assert (plan.train.steps, plan.train.batch, plan.train.batch // plan.train.accumulate) == (100_000, 256, 32)
    assert (plan.train.clip_norm, plan.precision.compute, plan.captions.dropout) == (0.2, "bf16", 0.1)
    assert (plan.ema, plan.losses, plan.route, plan.weighting) == (None, (), None, None)
    text = plan.text.model_dump()
    assert (text["kind"], text["weights"], text["max_tokens"]) == ("t5gemma", "google/t5gemma-2b-2b-ul2", 256)
    assert [lr_factor(plan, step) for step in (0, 499, 999, 99_999)] == [0.001, 0.5, 1.0, 1.0]


def test_its_denoiser_has_the_published_number_of_parameters() -> None:
    with torch.device("meta"):
        model = Transformer(jit_1024("model.compile=false").model, 3, PRX_TEXT_DIM)
    assert sum(parameter.numel() for parameter in model.parameters()) == 1_177_215_744


def test_scaled_down_it_equals_diffusers() -> None:
    """Patch 32 of three channels through the bottleneck, as diffusers has it."""
    diffusers = pytest.importorskip("diffusers")
    settings = jit_1024(*SMALL).model
    generator = torch.Generator().manual_seed(0)
    ours = Transformer(settings, 3, 12)
    for parameter in ours.parameters():
        nn.init.normal_(parameter, std=0.2, generator=generator)
    theirs = diffusers.PRXTransformer2DModel(
        in_channels=3,
        patch_size=settings.patch,
        context_in_dim=12,
        hidden_size=settings.width,
        mlp_ratio=settings.mlp_ratio,
        num_heads=settings.heads,
        depth=settings.depth,
        axes_dim=[8, 8],
        bottleneck_size=settings.bottleneck,
    )
    theirs.load_state_dict(ours.state_dict())
    x, tokens = torch.randn(2, 3, 64, 96, generator=generator), torch.randn(2, 5, 12, generator=generator)
    mask = torch.arange(5)[None, :] < torch.tensor([[5], [2]])
    t = torch.tensor([0.2, 0.8])
    with torch.no_grad():
        found = ours(x, t, TextTokens(tokens, mask)).prediction_BCHW
        wanted = theirs(x, t, tokens, mask).sample
    assert float((found - wanted).abs().max()) < 1e-4 * float(wanted.abs().max())


def test_scaled_down_it_trains(tmp_path: Path) -> None:
    plan = jit_1024(*SMALL)
    assert train(plan, tmp_path, Interrupt()).finished
    assert len((tmp_path / "metrics.jsonl").read_text().splitlines()) == 3


def test_its_samples_follow_the_shifted_grid_and_the_clamp() -> None:
    """The integration written out. With 100 steps the last time but one, 0.03, is below the clamp."""
    parts = build_model(jit_1024(*SMALL, "precision.compute=fp32"))
    for parameter in parts.modules.parameters():
        nn.init.normal_(parameter, std=0.05, generator=torch.Generator().manual_seed(parameter.numel()))
    sampler = SamplerSettings(steps=100, guidance=ClassifierFreeSettings(scale=1.0))
    image = generate(parts, [NULL_CAPTION] * 2, sampler, seed=5, size_px=64)
    x = Draws(5, torch.arange(2)).normal("sample", (3, 64, 64))
    text = parts.text.encode([NULL_CAPTION] * 2)
    with torch.no_grad():
        for step in range(100, 0, -1):
            now, then = (3 * u / (1 + 2 * u) for u in (step / 100, (step - 1) / 100))
            predicted = parts.denoiser(x, torch.full((2,), now), text).prediction_BCHW
            x = x + (then - now) * (x - predicted) / max(now, 0.05)
    wanted = ((x + 1) * 127.5).round().clamp(0, 255)
    assert float((image - wanted).abs().max()) <= 1
    assert float(image.float().std()) > 10


# The other plans


def named(name: str, *assignments: str) -> Plan:
    return plan_from_document(packaged.find("plans", name), assignments)


def denoiser_parameters(plan: Plan, text_dim: int = PRX_TEXT_DIM) -> int:
    with torch.device("meta"):
        settings = plan.model.model_copy(update={"compile": False})
        model = Transformer(settings, plan.tokenizer.compression.channels, text_dim)
    return sum(parameter.numel() for parameter in model.parameters())


def test_prx_256_is_the_published_baseline() -> None:
    """It differs from the JiT recipe in what PRX's two baselines differ in, and in nothing else."""
    plan = named("prx-256")
    changes = diff(plan, jit_1024())
    assert {key.split(".")[0] for key in changes} == {"data", "tokenizer", "model", "objective", "time", "sampling"}
    assert (plan.data.size_px, plan.tokenizer.kind, plan.model.patch) == (256, "flux1", 2)
    assert (plan.objective.kind, plan.time.shift, plan.sampling.shift) == ("velocity", 1.0, 1.0)
    assert (plan.token_grid, plan.model.bottleneck) == ((16, 16), None)
    assert denoiser_parameters(plan) == 1_170_691_648


def test_the_shapes_in_the_comment_of_prx_256_are_prxs() -> None:
    prx = pytest.importorskip("diffusers.pipelines.prx.pipeline_prx")
    text = resources.files("tintype.recipes").joinpath("plans", "prx-256.yaml").read_text()
    given = re.findall(r'--set "?(data\.[^ "]*)', text)
    plan = named("prx-256", *given)
    assert plan.data.model_dump()["fit"] == "resize" and plan.data.scored.model_dump()["path"] == "unsplash"
    assert plan.data.shapes == tuple(tuple(shape) for shape in prx.ASPECT_RATIO_256_BIN.values())


def test_prx_7b_has_prxs_sizes_and_is_sharded() -> None:
    plan = named("prx-7b")
    assert denoiser_parameters(plan) == 6_985_046_080
    assert (plan.run.distribution.kind, plan.run.text_embeddings) == ("fsdp", "disk")
    assert set(diff(named("prx-256"), plan)) == {"model.depth", "model.width", "train.accumulate"}


def test_prxpixel_7b_is_prxs_pixel_model() -> None:
    """Its shape is that of diffusers' PRXPixelPipeline; what is not published is as in the JiT recipe."""
    plan = named("prxpixel-7b")
    changed = set(diff(jit_1024(), plan))
    assert {key for key in changed if not key.startswith("text.")} == {
        *("model.depth", "model.width", "model.resolution_embeds", "objective.noise_scale", "train.accumulate"),
    }
    text = plan.text.model_dump()
    assert (text["kind"], text["max_tokens"], text["clean"]) == ("qwen3-vl", 256, "prx-pixel")
    assert (plan.token_grid, plan.tokenizer.kind, plan.objective.noise_scale) == ((32, 32), "pixels", 2.0)
    assert plan.run.distribution.kind == "fsdp"
    assert denoiser_parameters(plan, QWEN_TEXT_DIM) == 7_010_156_800
    without = named("prxpixel-7b", "model.resolution_embeds=false")
    assert denoiser_parameters(without, QWEN_TEXT_DIM) == 6_996_387_072, "as PRX's own code counts it"


def test_scaled_down_prxpixel_trains_and_is_what_diffusers_opens(tmp_path: Path) -> None:
    plan = named("prxpixel-7b", *SMALL, "run.distribution.kind=ddp")
    assert train(plan, tmp_path, Interrupt()).finished
    assert list(plan.objective.obstacles("PRXPixelPipeline")) == []


def test_the_speedrun_is_prxs_recipe_in_two_stages() -> None:
    plan = named("prx-speedrun")
    (first,) = plan.train.stages
    assert (first.size_px, first.until, first.batch) == (512, 100_000, 1024)
    assert (plan.data.size_px, plan.train.steps, plan.train.batch) == (1024, 120_000, 512)
    weights = {loss.kind: loss.weight for loss in plan.losses}
    assert weights == {"repa": 0.5, "lpips": 0.1, "perceptual-dino": 0.01}
    assert [loss.model_dump()["compute"] for loss in plan.losses[1:]] == ["bf16", "bf16"], "as PRX's"
    later = [loss.kind for loss in plan.losses if loss.weight_at(100_000)]
    assert later == ["lpips", "perceptual-dino"], "REPA is off in the second stage"
    optimizer = plan.optimizer.model_dump()
    assert (optimizer["kind"], optimizer["lr"], optimizer["momentum"]) == ("muon", 1e-4, 0.95)
    assert (optimizer["newton_schulz_steps"], optimizer["adamw"]["eps"]) == (5, 1e-8)
    assert plan.ema is not None and plan.ema.model_dump() == {"decay": 0.999, "ramp": False, "every": 10}
    assert plan.route is not None and list(plan.route.sparse_blocks(0)) == list(range(1, 15)), "2nd to penultimate"
    assert set(plan.token_grids) == {(16, 16), (32, 32)}
    assert denoiser_parameters(plan) == 1_177_215_744
    guidance = protocol_of(["preset=prx-speedrun"]).sampler.guidance
    assert plan.sampling.guidance == guidance.kind == "self"
    usual = protocol_of(["preset=prx"])
    assert guidance.scale == usual.sampler.guidance.scale and guidance.model_dump()["share"] == 0.5
    alike = usual.sampler.model_copy(update={"guidance": guidance})
    assert protocol_of(["preset=prx-speedrun"]) == usual.model_copy(update={"sampler": alike})


def test_every_recipe_of_prx_is_scored_by_prxs_evaluation() -> None:
    protocols = {name: named(name).run.protocol for name in packaged.names("plans") if name.startswith("prx")}
    assert protocols.pop("prx-speedrun") == "prx-speedrun" and set(protocols.values()) == {"prx"}


def test_scaled_down_both_stages_of_the_speedrun_train(tmp_path: Path) -> None:
    """With a teacher and perceptual networks that need no download."""
    write_dino()
    losses = (
        "losses=[{kind: repa, block: 2, hidden: 8, teacher: scenes, schedule: {kind: until, end: 1}}, "
        f"{{kind: perceptual-dino, weight: 0.01, source: {FOLDER}, size_px: {SIZE_PX}}}]"
    )
    small = (*SMALL, "model.depth=4", "train.batch=2", "train.accumulate=1", "route.last=3", "ema.every=1")
    stages = ("data.size_px=128", "train.stages=[{size_px: 64, until: 1, batch: 4}]")
    assert train(named("prx-speedrun", *small, *stages, losses), tmp_path / "run", Interrupt()).finished
