"""A study whose arms work on the latents of several tokenizers."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.studies import run_study
from tests.tiny import TINY, tiny_plan
from tests.tiny_autoencoders import CHANNELS, FOLDER, STRIDE_PX, option, write_autoencoder
from tests.tiny_store import image_file, imported, parquet_of
from tests.tiny_tuning import BASELINE, NO_PERCEPTUAL, tuned_plan, write_small_vae
from tests.tiny_vae import write_tiny_vae
from tintype.data.store.importing import ImportOptions
from tintype.errors import UserError
from tintype.evaluation.protocol import definitions
from tintype.losses.repa_e.settings import TuningSettings
from tintype.plan import plan_from_folder
from tintype.runtime.files import read_json
from tintype.study.compare import read_at_looks
from tintype.study.contrasts import another_space, asked_of, incomparable, trend_key
from tintype.study.lab import _check_latents_folder, report_study
from tintype.study.results import Run, Trend, read_results_file
from tintype.study.runs import check_identities, metric_infos
from tintype.study.stats.contrast import Key
from tintype.study.stats.family import counts_of
from tintype.study.study import Study, load_study

STUDY = """
question: Are latents better?
recipe: PLAN
seeds: [0]
arms:
  - {name: latents, techniques: ["LATENTS"]}
primary: [scene_accuracy, validation_loss]
evaluation: {count: 8, also: [], reference_count: 8, validation_count: 2, metrics: [fd], sampler: {steps: 1}}
"""


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("study")
    write_autoencoder("flux1")
    (folder / "plan.yaml").write_text(TINY.replace("steps: 6", "steps: 2"))
    text = STUDY.replace("PLAN", str(folder / "plan.yaml")).replace("LATENTS", option("flux1"))
    (folder / "study.yaml").write_text(text)
    assert not run_study(load_study(str(folder / "study.yaml")), folder / "out", 1).failed
    return folder / "out"


def test_results_have_the_latents_of_each_run(study: Path) -> None:
    baseline, latents = read_results_file(study / "results.json").arms
    pixels, found = baseline.runs[0].tokenizer, latents.runs[0].tokenizer
    assert pixels is not None and found is not None
    assert (pixels.kind, pixels.channels, pixels.stride_px, pixels.identity) == ("pixels", 3, 1, "")
    assert (found.kind, found.channels, found.stride_px) == ("flux1", CHANNELS, STRIDE_PX)
    assert found.settings["posterior"] == "mean"
    run = study / latents.runs[0].folder
    stored = read_json(run / "latents.json")
    assert (found.images, found.mean, found.std) == (stored["images"], stored["mean"], stored["std"])
    assert len(found.mean) == CHANNELS
    assert found.identity == read_json(run / "loaded.json")["tokenizer"]


def test_the_validation_loss_of_another_space_is_not_compared(study: Path) -> None:
    results = read_results_file(study / "results.json")
    _, latents = results.arms
    assert "validation_loss" not in latents.comparisons and "scene_accuracy" in latents.comparisons
    assert list(latents.incomparable) == ["validation_loss"]
    reason = "it is measured in the latents of the run's own tokenizer, flux1 here and pixels in the baseline"
    assert latents.incomparable["validation_loss"] == f"another space: {reason}"
    assert "validation_loss" in latents.runs[0].metrics  # as it was measured
    html = (study / "report.html").read_text(encoding="utf-8").replace("&#39;", "'")
    markdown = (study / "report.md").read_text(encoding="utf-8")
    assert reason in html and reason in markdown and reason in results.method


def test_a_report_can_be_made_where_the_small_vae_is_not(tmp_path: Path) -> None:
    vae, out = write_tiny_vae(tmp_path / "vae"), tmp_path / "out"
    (tmp_path / "plan.yaml").write_text(TINY.replace("steps: 6", "steps: 1"))
    text = STUDY.replace("PLAN", str(tmp_path / "plan.yaml"))
    (tmp_path / "study.yaml").write_text(text.replace("LATENTS", f"tokenizer:to.kind=small-vae,to.folder={vae}"))
    assert not run_study(load_study(str(tmp_path / "study.yaml")), out, 1).failed
    results = (out / "results.json").read_text(encoding="utf-8")
    shutil.rmtree(vae)
    with pytest.raises(UserError, match="has no trained small-vae"):
        load_study(str(tmp_path / "study.yaml"))  # which would train
    report_study(out)
    assert (out / "results.json").read_text(encoding="utf-8") == results
    (run,) = read_results_file(out / "results.json").arms[1].runs
    with pytest.raises(UserError, match="has no trained small-vae"):
        plan_from_folder(out / run.folder).tokenizer.build(torch.device("cpu"))
    (out / "results.json").write_text(results.replace('"channels"', '"canals"'))
    with pytest.raises(UserError, match="has no trained small-vae"):
        report_study(out)


def test_one_folder_for_latents_of_several_tokenizers_is_refused_before_training(tmp_path: Path) -> None:
    vae, other = write_tiny_vae(tmp_path / "vae"), write_tiny_vae(tmp_path / "other", seed=1)
    overrides = ["run.latents=disk", f"run.latents_folder={tmp_path / 'mine'}"]
    one = f"tokenizer:to.kind=small-vae,to.folder={vae}"
    plans = [tiny_plan(*overrides), tiny_plan(*overrides, techniques=[one])]
    _check_latents_folder([*plans, plans[1].model_copy(update={"seed": 1})])  # pixels have none
    plans.append(tiny_plan(*overrides, techniques=[f"tokenizer:to.kind=small-vae,to.folder={other}"]))
    with pytest.raises(
        UserError,
        match=r"folder is .*mine for all arms, but the arms have several tokenizers.*leave run.latents_folder out",
    ):
        _check_latents_folder(plans)


def _study_of(tmp_path: Path, *settings: str, technique: str) -> Study:
    (tmp_path / "plan.yaml").write_text(TINY)
    text = STUDY.replace("PLAN", str(tmp_path / "plan.yaml")).replace("LATENTS", technique)
    (tmp_path / "study.yaml").write_text(text)
    return load_study(str(tmp_path / "study.yaml"), settings)


def test_what_a_tuning_needs_is_looked_for_before_the_first_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def absent(self: TuningSettings, grid: tuple[int, int]) -> None:
        raise UserError("there are no weights of lpips")

    monkeypatch.setattr(TuningSettings, "fetch", absent)
    write_small_vae()
    study = _study_of(tmp_path, f"set={json.dumps(BASELINE)}", "primary=[scene_accuracy]", technique=NO_PERCEPTUAL)
    with pytest.raises(UserError, match="no weights of lpips"):
        run_study(study, tmp_path / "out", 1)
    assert not list((tmp_path / "out").glob("runs/*"))


def test_captions_that_an_arm_reads_are_looked_for_before_the_first_run(tmp_path: Path) -> None:
    images, texts = [image_file(index) for index in range(60)], [f"number {index}" for index in range(60)]
    imported(parquet_of(tmp_path / "a.parquet", images, text=texts), tmp_path / "s", ImportOptions(eval_share=0.4))
    data = json.dumps([f"data={{kind: store, path: {tmp_path / 's'}, size_px: 16}}"])
    settings = (f"set={data}", "primary=[validation_loss]", "evaluation.encoders=[]", "evaluation.metrics=[]")
    study = _study_of(tmp_path, *settings, technique="short-captions")
    with pytest.raises(UserError, match="no caption column 'short'; its caption columns are long"):
        run_study(study, tmp_path / "out", 1)
    assert not list((tmp_path / "out").glob("runs/*"))


def test_a_tuned_tokenizer_has_a_space_of_its_own() -> None:
    plan, tuned = tuned_plan(techniques=()), tuned_plan()
    for new, old in ((tuned, plan), (plan, tuned), (tuned, tuned)):
        assert "trained with the run is like no other" in another_space(new, old)
    assert another_space(plan, plan) == ""


def test_a_tokenizer_that_changed_between_runs_is_refused(study: Path) -> None:
    baseline, latents = (arm.runs[0] for arm in read_results_file(study / "results.json").arms)
    check_identities({"baseline": [baseline], "one": [latents], "two": [latents]})
    runs = {"one": [latents], "two": [latents.model_copy(update={"tokenizer": _other_weights(latents)})]}
    with pytest.raises(
        UserError, match=r"the tokenizer 'flux1' had the identity .* for 'one', seed 0, but cdcdcdcdcdcd for 'two'"
    ):
        check_identities(runs)


def _other_weights(run: Run) -> Any:
    assert run.tokenizer is not None
    return run.tokenizer.model_copy(update={"identity": "cd" * 32})


@pytest.mark.parametrize(
    ("change", "apart"),
    [
        ("", False),
        (",to.compute=bf16", False),
        (",to.posterior=sample", True),
        (",to.scale=0.5", True),
        (",to.weights=elsewhere", True),
    ],
)
def test_a_space_is_what_decides_the_latents(change: str, apart: bool) -> None:
    one = tiny_plan(techniques=[option("flux1")])
    options = option("flux1").replace(f",to.weights={FOLDER / 'flux1'}", "") if "weights" in change else option("flux1")
    other = tiny_plan("optimizer.lr=1e-4", techniques=[options + change])
    assert bool(another_space(other, one)) == bool(another_space(one, other)) == apart
    if apart:
        assert "flux1 here and with other settings or weights in the baseline" in another_space(other, one)
    assert "flux1 here and pixels" in another_space(other, tiny_plan())


SEVERAL = """
question: Are latents better with more tokens?
recipe: PLAN
seeds: [0, 1, 2]
control_seeds: [7, 8, 9]
resolutions: [{name: coarse}, {name: fine, set: [data.size_px=32]}]
arms:
  - {name: latents, techniques: ["LATENTS"]}
  - {name: x, techniques: [x-prediction]}
primary: [scene_accuracy, validation_loss]
evaluation: {count: 8, also: [], reference_count: 8, validation_count: 2, metrics: [fd], sampler: {steps: 1}}
"""


@pytest.fixture
def several(tmp_path: Path) -> Study:
    (tmp_path / "plan.yaml").write_text(TINY)
    text = SEVERAL.replace("PLAN", str(tmp_path / "plan.yaml")).replace("LATENTS", option("flux1"))
    (tmp_path / "study.yaml").write_text(text)
    return load_study(str(tmp_path / "study.yaml"))


def _made_up(study: Study) -> dict[str, list[Run]]:
    """Every arm has every metric; that of the validation loss of latents is far from the baseline's, without spread."""
    names = definitions(study.settings.evaluation)

    def run(label: str, seed: int) -> Run:
        metrics = {name: 1 + 0.01 * ((7 * seed + len(name)) % 5) for name in names}
        if label.startswith("latents"):
            metrics["validation_loss"] = 100 + 0.001 * seed
        return Run(seed=seed, hash="", folder="", state="done", metrics=metrics)

    return {arm.label: [run(arm.label, plan.seed) for plan in arm.plans] for arm in study.arms}


def test_what_cannot_be_compared_is_not_corrected_for(several: Study) -> None:
    meanings = definitions(several.settings.evaluation)
    planned = asked_of(several, meanings)
    apart = {Key("latents", "validation_loss", where) for where in ("coarse", "fine")}
    assert set(incomparable(several)) == apart
    assert not apart & set(planned)
    assert trend_key("latents", "validation_loss") not in planned
    assert trend_key("latents", "scene_accuracy") in planned and trend_key("x", "validation_loss") in planned
    counts = counts_of(planned, several.settings.primary)
    assert counts.primary == 2 * 3 * 2 - 2 + 2 * 2 - 1
    assert counts.others == 2 * 3 * (len(meanings) - 2) + 2


def test_no_verdict_comes_of_another_space_however_clear_it_looks(several: Study) -> None:
    reading = read_at_looks(several, _made_up(several), metric_infos(several), [])
    assert not [key for key in reading.rows if (key.arm, key.metric) == ("latents", "validation_loss")]
    for name, kind in (("x", "arm"), ("control", "control")):
        assert Key(name, "validation_loss", "fine", kind) in reading.rows  # type: ignore[arg-type]
    trends: list[Trend] = reading.verdicts()["trends"]
    (trend,) = (one for one in trends if (one.arm, one.metric) == ("latents", "validation_loss"))
    assert trend.undefined.startswith("another space") and not trend.effects and trend.comparison is None
