"""The published study as files: each row is found by its name, is the same in every file, and runs at pocket size."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.studies import run_study
from tests.tiny_autoencoders import CHANNELS, STRIDE_PX, chosen
from tests.tiny_text import MAX_TOKENS, write_text_encoder
from tintype.errors import UserError
from tintype.evaluation.presets import protocol_of
from tintype.evaluation.protocol import definitions
from tintype.plan import read_plan
from tintype.recipes import packaged
from tintype.study.study import ArmPlan, Study, load_study

ROWS = {
    "repa-dinov3": "prx-repa",
    "repa-dinov2": "prx-repa",
    "repa-burn-in": "prx-repa",
    "irepa-dinov3": "prx-repa",
    "irepa-dinov2": "prx-repa",
    "repa-e-vae": "prx-tokenizers",
    "repa-e-vae + repa": "prx-tokenizers",
    "flux2": "prx-tokenizers",
    "contrastive": "prx-objectives",
    "x-prediction": "prx-objectives",
    "min-snr": "prx-objectives",
    "jit": "prx-objectives",
    "tread": "prx-routing",
    "sprint": "prx-routing",
    "short-captions": "prx-captions",
    "real-images": "prx-data",
    "sft": "prx-data",
    "muon": "prx-optimizers",
    "bf16-storage": "prx-optimizers",
}
"""The study beside prx-rows that has a row."""
STUDIES = ("prx-rows", *dict.fromkeys(ROWS.values()))


def arms(name: str) -> dict[str, ArmPlan]:
    """Return the arms by name, of a study of several resolutions those with the fewest tokens."""
    return {arm.name: arm for arm in load_study(name).by_resolution()[0] if arm.role == "arm"}


def test_all_rows_are_in_one_study_and_in_its_twin() -> None:
    assert list(arms("prx-rows")) == list(arms("prx-rows-mini")) == list(ROWS)


@pytest.mark.parametrize("name", sorted(set(ROWS.values())))
def test_a_row_is_the_same_run_in_every_study_that_has_it(name: str) -> None:
    whole, family = arms("prx-rows"), arms(name)
    for row in (row for row, study in ROWS.items() if study == name):
        assert [plan.hash for plan in family[row].plans] == [plan.hash for plan in whole[row].plans], row


def test_every_study_has_a_twin_for_one_gpu() -> None:
    of_prx = {name for name in packaged.names("studies") if name.startswith("prx-")}
    assert of_prx == {*STUDIES, *(f"{name}-mini" for name in STUDIES)}
    for name in STUDIES:
        whole, twin = load_study(name), load_study(f"{name}-mini")
        of_all, of_twin = whole.arms[0].plans[0], twin.arms[0].plans[0]
        assert of_all.train.steps * of_all.train.batch > 50 * of_twin.train.steps * of_twin.train.batch
        assert len(twin.arms[0].plans) == 5 and len(twin.by_resolution()) == len(whole.by_resolution())
        assert _rows(name) == _rows(f"{name}-mini")


def _rows(name: str) -> list[str]:
    """Return the names of the arms, without learning rates, which are those of the recipe."""
    return [arm.split(" ")[0] if arm.startswith("muon ") else arm for arm in arms(name)]


WITHOUT_TEACHERS = ("prx-objectives", "prx-routing", "prx-captions", "prx-data", "prx-optimizers")


@pytest.mark.parametrize("name", WITHOUT_TEACHERS)
def test_a_row_on_one_gpu_is_that_of_the_study_with_all_rows(name: str) -> None:
    whole, family = arms("prx-rows-mini"), arms(f"{name}-mini")
    for row in (row for row, study in ROWS.items() if study == name):
        assert [plan.hash for plan in family[row].plans] == [plan.hash for plan in whole[row].plans], row


def test_the_second_resolution_of_routing_is_the_jit_recipe() -> None:
    pixels = next(arm for arm in load_study("prx-routing").arms if arm.label == "baseline @ pixels-1024").plans[0]
    assert pixels.hash == read_plan("prx-jit-1024", ["data.evaluate_style=photo"]).hash


def test_the_baseline_learns_from_synthetic_images_and_is_scored_against_photographs() -> None:
    """As in PRX: the row of real images changes what is learnt from, and not what is scored against."""
    for name in ("prx-rows", "prx-data", "prx-rows-mini", "prx-data-mini"):
        baseline, real = load_study(name).arms[0].plans[0], arms(name)["real-images"].plans[0]
        assert (baseline.data.model_dump()["style"], real.data.model_dump()["style"]) == ("render", "photo")
        assert baseline.data.held_out(8) == real.data.held_out(8)
        assert baseline.data.scored.model_dump()["style"] == "photo"


def test_with_stores_the_rows_of_data_take_public_sets_by_their_names() -> None:
    own = "set=[data.kind=store,data.path=midjourney-v6,data.evaluate_path=unsplash]"
    study = load_study("prx-rows", [own])
    paths = {arm.name: arm.plans[0].data.model_dump()["path"] for arm in study.arms}
    assert {name: path for name, path in paths.items() if path != "midjourney-v6"} == {
        "real-images": "pexels",
        "sft": "alchemist",
    }
    assert {*paths.values(), "unsplash"} <= set(packaged.names("data"))
    assert {arm.plans[0].data.scored.model_dump()["path"] for arm in study.arms} == {"unsplash"}


def test_muons_adamw_has_prxs_eps() -> None:
    optimizer = arms("prx-rows")["muon"].plans[0].optimizer.model_dump()
    prx = {"lr": 1e-4, "momentum": 0.95, "nesterov": True, "newton_schulz_steps": 5, "weight_decay": 0.0}
    assert {key: optimizer[key] for key in prx} == prx
    adam = {"lr": 1e-4, "beta1": 0.9, "beta2": 0.95, "eps": 1e-8, "weight_decay": 0.0}
    assert optimizer["adamw"] == {"kind": "adamw", **adam}


def test_irepa_has_both_teachers_of_prx() -> None:
    sources = {
        name: arms("prx-rows")[name].plans[0].losses[0].model_dump()["teacher"]["source"]
        for name in ("repa-dinov2", "repa-dinov3", "irepa-dinov2", "irepa-dinov3")
    }
    assert sources["irepa-dinov2"] == sources["repa-dinov2"] == "facebook/dinov2-with-registers-large"
    assert sources["irepa-dinov3"] == sources["repa-dinov3"] == "facebook/dinov3-vitl16-pretrain-lvd1689m"


# The protocol


def test_the_preset_is_prxs_evaluation() -> None:
    study = load_study("prx-rows")
    protocol = study.settings.evaluation
    assert (protocol.count, protocol.sampler.method, protocol.sampler.steps) == (10_000, "euler", 50)
    assert protocol.sampler.guidance.model_dump()["scale"] == 3.5 and protocol.also == ()
    labels = [definitions(protocol)[name].label for name in study.settings.primary]
    assert labels == ["FID", "CMMD (processor's crop)", "DINO-MMD"]
    assert load_study("prx-repa").settings.evaluation == protocol_of(["preset=prx"])
    assert protocol == protocol_of(["preset=prx", "metrics=[fd,mmd_published,memorised,memorised_own]"])


def test_settings_beside_a_preset_replace_its_own() -> None:
    protocol = load_study("prx-captions").settings.evaluation
    assert [one.name for one in protocol.conditions] == ["", "short"] and protocol.count == 10_000
    assert load_study("prx-repa", ["evaluation.count=64"]).settings.evaluation.count == 64
    named = load_study("captions-mini", ["evaluation=prx", "primary=[fd_inception]"]).settings.evaluation
    assert named == protocol_of(["preset=prx"])
    for given in (["preset=prx", "count=64"], ["count=64", "preset=prx"]):
        assert (protocol_of(given).count, protocol_of(given).sampler.steps) == (64, 50)


def test_an_unknown_preset_is_refused_with_its_place(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="preset=pxr: unknown evaluation preset 'pxr'; did you mean 'prx'"):
        protocol_of(["preset=pxr"])
    file = tmp_path / "study.yaml"
    file.write_text("question: q\nrecipe: pocket\nseeds: [0]\narms: [{techniques: [min-snr]}]\nevaluation: pxr\n")
    with pytest.raises(UserError, match=r"study\.yaml.*unknown evaluation preset 'pxr'"):
        load_study(str(file))


# At pocket size


def smaller(text: str) -> str:
    """Return the text of an arm with tiny networks and counts in the place of the published ones."""
    size = f"channels={CHANNELS},to.stride_px={STRIDE_PX}"
    dinov2 = "teacher.kind=dinov2,teacher.source=facebook/dinov2-with-registers-large,hidden=1024"
    for old, new in {
        dinov2: "teacher=scenes,hidden=12",
        dinov2.removesuffix(",hidden=1024"): "teacher=scenes,alpha=0.5",
        "teacher.kind=dinov3": "teacher=scenes",
        "hidden=1024": "hidden=8",
        "to.kind=e2e-flux,to.compute=bf16": f"to.kind=e2e-flux,to.weights={chosen('e2e-flux')['weights']},to.{size}",
        "to.kind=flux2,to.compute=bf16": f"to.kind=flux2,to.weights={chosen('flux2')['weights']},to.{size}",
        "model.bottleneck=256": "model.bottleneck=4",
        "data.size_px=256": "data.size_px=16",
        "data.size_px=1024": "data.size_px=32",
        "model.patch=32": "model.patch=4",
        "data.size_px=64": "data.size_px=16",
        "data.size_px=128": "data.size_px=32",
        "model.bottleneck=64": "model.bottleneck=4",
        "steps=200,data.style=photo,data.count=1024": "steps=2,warmup_steps=1,data.count=4",
        "steps=20000,data.style=photo,data.count=3350": "steps=2,warmup_steps=1,data.count=4",
    }.items():
        text = text.replace(old, new)
    return text


def pocket(name: str, folder: Path) -> Study:
    """Return a study with all of its arms; only sizes, weights, and numbers of steps and images are others."""
    document = packaged.find("studies", name).data
    given = document["evaluation"]
    also = given.get("also", []) if isinstance(given, dict) else []
    for resolution in document.get("resolutions", []):
        resolution["set"] = [smaller(one) for one in resolution["set"]]
    for arm in document["arms"]:
        arm["set"] = [smaller(one) for one in arm.get("set", [])]
        arm["techniques"] = [smaller(one) for one in arm["techniques"]]
    text = {"kind": "t5gemma", "weights": str(write_text_encoder("t5gemma")), "max_tokens": MAX_TOKENS}
    document["set"] += [
        *("data.size_px=16", "data.count=24", f"text={json.dumps(text)}", f"tokenizer={json.dumps(chosen('flux1'))}"),
        *("model.depth=3", "model.width=32", "model.heads=2", "model.patch=1", "model.compile=false"),
        *("train.steps=4", "train.batch=4", "train.accumulate=2", "train.warmup_steps=1", "run.device=cpu"),
    ]
    document["seeds"] = [0]
    document["primary"] = ["validation_loss"]
    document["evaluation"] = {
        "count": 8,
        "also": [{**one, "count": 8} for one in also],
        "reference_count": 8,
        "validation_count": 4,
        "encoders": ["scenes"],
        "metrics": ["fd", *(["memorised", "memorised_own"] if "memorised" in str(given) else [])],
        "memorisation": {"captions": 4, "guidance": [3.0]},
        "sampler": {"steps": 2, "batch": 8},
    }
    (folder / "study.json").write_text(json.dumps(document))
    return load_study(str(folder / "study.json"))


@pytest.mark.slow
@pytest.mark.parametrize("name", [*STUDIES, *(f"{name}-mini" for name in WITHOUT_TEACHERS)])
def test_every_row_is_trained_and_scored_at_pocket_size(name: str, tmp_path: Path) -> None:
    study = pocket(name, tmp_path)
    assert [arm.label for arm in study.arms] == [arm.label for arm in load_study(name).arms]
    outcome = run_study(study, tmp_path / "out", 1)
    assert not outcome.failed and outcome.done == outcome.total == len(study.arms)
    assert outcome.report is not None
    wanted = ["validation_loss", *(f"{kind}_scenes" for kind in study.settings.evaluation.metrics)]
    for arm in outcome.report.results.arms:
        assert all(arm.runs[0].metrics[metric] is not None for metric in wanted), arm.name
