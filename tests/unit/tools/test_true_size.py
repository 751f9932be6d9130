from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from tintype.cost.plan import cost_of_plan, estimated_speed
from tintype.plan import Plan, read_plan
from tintype.pretrained.published import PUBLISHED
from tintype.techniques.apply import apply_techniques
from tintype.train.session import build_session
from tools.speed import true_size

pytest.importorskip("transformers")
pytest.importorskip("diffusers")

SOURCES = {
    "t5gemma": "google/t5gemma-2b-2b-ul2",
    "flux1": "black-forest-labs/FLUX.1-schnell",
    "dinov2": "facebook/dinov2-base",
}


def run(out: Path, *options: str) -> dict[str, Any]:
    true_size.main([str(out), "--tiny", "--steps", "4", *options])
    found: dict[str, Any] = json.loads(out.read_text())
    return found


@pytest.mark.slow
def test_every_run_takes_real_steps_with_all_of_its_towers(tmp_path: Path) -> None:
    towers = ("--towers", str(tmp_path / "towers"))
    written = run(tmp_path / "towers.json", *towers, "--only-towers")
    report = run(tmp_path / "out.json", *towers)
    assert report["towers"] == written["towers"], "they are not written anew"
    assert report["towers"].keys() == SOURCES.keys() and written["runs"] == {}
    runs = report["runs"]
    assert list(runs) == list(true_size.RUNS) and [one["failed"] for one in runs.values()] == [None] * 4
    for one in runs.values():
        assert len(one["steps_s"]) == len(set(one["loss"])) == 4, "steps on the same numbers would have one loss"
        assert one["skipped_steps"] == 0 and one["images_per_s"] == pytest.approx(one["batch"] / one["step_s"])
        split = one["time_split"]
        assert sum(split.values()) == pytest.approx(1) and min(split["text"], split["forward"]) > 0
        assert one["published"]["batches_per_s"] in (3.95, 3.66, 1.33)
    assert max(runs, key=lambda name: runs[name]["parts_s"]["teacher"]) == "prx-256, repa", "other runs have none"
    words, letters = (runs[name]["caption_tokens"] for name in ("prx-256", "prx-256, captions of letters"))
    assert words["mean"] < letters["mean"] <= letters["cut_at"]
    assert runs["prx-256, repa"]["trained_parameters"].keys() == {"denoiser", "losses_repa"}


def test_a_run_that_fails_says_why_and_the_next_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out, written = tmp_path / "out.json", list[dict[str, Any]]()

    def too_large(plan: Plan) -> Any:
        if plan.tokenizer.kind == "flux1":
            raise torch.OutOfMemoryError("97 GiB are missing")
        written.append(json.loads(out.read_text())["runs"])
        return build_session(plan)

    monkeypatch.setattr(true_size, "build_session", too_large)
    runs = run(out, "--only", "prx-256", "prx-jit-1024", "--set", "run.deterministic=false")["runs"]
    assert runs["prx-256"]["failed"] == "OutOfMemoryError: 97 GiB are missing"
    assert runs["prx-jit-1024"]["failed"] is None and runs["prx-jit-1024"]["images_per_s"] > 0
    assert not runs["prx-jit-1024"]["deterministic"]
    assert written == [{"prx-256": runs["prx-256"]}], "the file has a run that failed before the next begins"


def test_a_gpu_that_a_run_left_broken_is_a_failure_of_the_next(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> None:
        raise RuntimeError("CUDA error")

    monkeypatch.setattr(true_size, "_free", broken)
    runs = run(tmp_path / "out.json", "--only", "prx-256", "prx-jit-1024")["runs"]
    assert [one["failed"] for one in runs.values()] == ["RuntimeError: CUDA error"] * 2


def test_towers_of_other_sizes_are_not_taken_for_the_true_ones(tmp_path: Path) -> None:
    folder = tmp_path / "towers"
    run(tmp_path / "towers.json", "--towers", str(folder), "--only-towers", "--only", "prx-jit-1024")
    found = true_size.measure(true_size.RUNS["prx-jit-1024"], folder, true_size.TRUE, [])
    assert "where 2614341888 are needed; name another folder" in str(found["failed"])


def test_the_true_sizes_are_the_published_ones() -> None:
    """Tensor by tensor those of the networks that costs are counted on, and in all those that `plan cost` says."""
    plan = apply_techniques(read_plan("prx-256"), ["repa:teacher=dinov2"])
    towers = cost_of_plan(plan, estimated_speed("h200")).towers
    counted = sorted(tower.parameters for tower in towers.values())
    networks = {name: true_size.without_numbers(name, true_size.TRUE) for name in SOURCES}
    assert counted == sorted(sum(one.numel() for one in network.parameters()) for network in networks.values())
    assert counted == [83_819_683, 86_580_480, 2_614_341_888]
    for name, source in SOURCES.items():
        own = networks[name].encoder if name == "t5gemma" else networks[name]
        shapes, wanted = (
            {key: one.shape for key, one in net.state_dict().items()} for net in (own, PUBLISHED[source].build())
        )
        assert shapes == wanted
    assert networks["flux1"].config.scaling_factor == 0.3611 and networks["flux1"].config.shift_factor == 0.1159


@pytest.mark.parametrize("name", ["prx-256", "prx-jit-1024"])
def test_all_but_the_towers_and_the_data_is_the_recipe(name: str) -> None:
    plan, recipe = true_size.RUNS[name].plan(Path("towers"), ["train.steps=10"], tiny=False), read_plan(name)
    assert (plan.train.batch, plan.train.accumulate) == (256, 8)
    changed = {
        "train": recipe.train.model_copy(update={"steps": 10}),
        "text": recipe.text.model_copy(update={"weights": "towers/t5gemma"}),
        "data": plan.data,
        "run": recipe.run.model_copy(update={"text_embeddings": "live"}),
    }
    if name == "prx-256":
        changed["tokenizer"] = recipe.tokenizer.model_copy(update={"weights": "towers/flux1", "revision": None})
    assert plan == recipe.model_copy(update=changed)
    assert plan.data.size_px == recipe.data.size_px
