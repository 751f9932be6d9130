"""`prx-256` field by field beside PRX's own configs and code (Photoroom/PRX, main of 2026-08-10).

What the recipe sets is either PRX's value, or stands under `Differs:` in its file.
"""

from __future__ import annotations

from importlib import resources

import pytest

from tintype.plan import Plan, read_plan, settings_by_key

PRX: dict[str, object] = {
    # configs: model/prx_small.yaml
    "model.depth": 16,
    "model.width": 1792,
    "model.heads": 28,
    "model.mlp_ratio": 3.5,
    "model.patch": 2,
    "model.bottleneck": None,
    "model.rope_theta": 10000,
    "model.time_factor": 1000.0,
    "model.time_max_period": 10000,
    "model.resolution_embeds": False,
    "model.gate": "gelu",
    "model.qk_norm": True,
    "model.compile": True,
    # vae/flux_dev.yaml; the posterior is sampled in models/vae_tower.py
    "tokenizer.kind": "flux1",
    "tokenizer.compute": "bf16",
    "tokenizer.channels": 16,
    "tokenizer.stride_px": 8,
    "tokenizer.posterior": "sample",
    # text_tower/t5gemma2b_256_bf16.yaml; embeddings are read from the shards
    "text.kind": "t5gemma",
    "text.weights": "google/t5gemma-2b-2b-ul2",
    "text.compute": "bf16",
    "text.max_tokens": 256,
    "text.clean": "prx",
    "text.skip_layers": 0,
    "run.text_embeddings": "disk",
    "run.protocol": "prx",
    # dataset/train_small.yaml: long captions, a tenth of them dropped (model.p_drop_caption)
    "captions.kind": "column",
    "captions.column": "long",
    "captions.dropout": 0.1,
    "data.size_px": 256,
    "data.count": 1_000_000,
    # scheduler/euler_flow_matching.yaml, schedulers/scheduler.py
    "objective.kind": "velocity",
    "objective.noise_scale": 1.0,
    "time.kind": "mixture",
    "time.uniform_share": 0.1,
    "time.mean": 0.0,
    "time.std": 1.0,
    "time.lowest": 0.001,
    "time.shift": 1.0,
    "sampling.shift": 1.0,
    # optimizer/adamw.yaml, and the trainer of Flux-Baseline.yaml
    "optimizer.kind": "adamw",
    "optimizer.lr": 1e-4,
    "optimizer.beta1": 0.9,
    "optimizer.beta2": 0.95,
    "optimizer.eps": 1e-15,
    "optimizer.weight_decay": 0.0,
    "train.steps": 100_000,
    "train.batch": 256,
    "train.accumulate": 8,
    "train.warmup_steps": 1000,
    "train.schedule": "constant",
    "train.clip_norm": 0.2,
    "precision.storage": "fp32",
    "precision.compute": "bf16",
    "ema": None,
    "route": None,
    "weighting": None,
    "losses": [],
}
"""Key of the plan -> PRX's value, in tintype's words. 8 micro-batches are PRX's 32 images on one GPU."""
DIFFERS: dict[str, tuple[object, object]] = {
    "seed": (0, 42),
    "data.kind": ("scenes", "shards of images"),
    "tokenizer.weights": ("black-forest-labs/FLUX.1-schnell", "black-forest-labs/FLUX.1-dev"),
    "precision.islands.rope": ("fp32", "bf16"),
    "precision.islands.timestep": ("fp32", "bf16"),
    "run.save_every_steps": (1000, 10_000),
    "run.distribution.kind": ("ddp", "fsdp"),
}
"""Key of the plan -> (ours, PRX's)."""
NOT_PRXS = {"run.log_every_steps", "text.subfolder", "tokenizer.revision", "tokenizer.subfolder"}
"""How often a line is logged, and where published weights lie in their repository."""


def fields(plan: Plan) -> dict[str, object]:
    found = dict(settings_by_key(plan))
    for name in ("ema", "route", "weighting"):
        found[name] = getattr(plan, name)
    return found | {"losses": list(plan.losses)}


@pytest.mark.parametrize("key", PRX)
def test_a_field_has_prxs_value(key: str) -> None:
    found = fields(read_plan("prx-256"))
    assert key in found and found[key] == PRX[key]


@pytest.mark.parametrize("key", DIFFERS)
def test_a_field_that_differs_stands_under_differs(key: str) -> None:
    ours, prxs = DIFFERS[key]
    assert fields(read_plan("prx-256"))[key] == ours != prxs
    text = resources.files("tintype.recipes").joinpath("plans", "prx-256.yaml").read_text().partition("# Differs:")[2]
    names = [line.removeprefix("# - ").partition(":")[0] for line in text.splitlines() if line.startswith("# - ")]
    assert any(key == name or key.startswith(f"{name}.") for name in names), f"{key} is not under Differs:"


def test_all_that_the_recipe_sets_is_in_the_table() -> None:
    plan, usual = fields(read_plan("prx-256")), fields(Plan())
    chosen = {key for key, value in plan.items() if usual.get(key) != value and not key.startswith("data.objects")}
    assert chosen - {key for key, value in plan.items() if value is None} <= {*PRX, *DIFFERS, *NOT_PRXS}
