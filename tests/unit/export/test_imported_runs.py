"""An imported model is a run like any other: it is sampled, scored, started from and exported again."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from tests.tiny_export import pixel_plan, write_run
from tintype.cli import app
from tintype.config.strict import parse, read_yaml
from tintype.errors import UserError
from tintype.evaluation.protocol import Protocol
from tintype.evaluation.run import evaluate
from tintype.export.import_run import ImportedModel, import_model
from tintype.export.model_card import CardOptions, make_card
from tintype.export.pipeline_folder import export_pipeline
from tintype.export.trained import ExportOptions
from tintype.runtime.files import read_json
from tintype.runtime.interrupt import Interrupt
from tintype.study.runner import tasks_of
from tintype.study.study import read_settings, resolve
from tintype.techniques.apply import apply_techniques
from tintype.train.load import load_run
from tintype.train.loop import train

pytest.importorskip("diffusers")
pytest.importorskip("transformers")

EVALUATION = "{count: 8, also: [], reference_count: 8, validation_count: 2, metrics: [fd], sampler: {steps: 1}}"
SETTINGS = ["train.steps=2", "train.batch=2", "train.warmup_steps=0", "precision.compute=fp32", "run.device=cpu"]
STUDY = f"""
question: Does it help?
recipe: PLAN
seeds: [3]
arms: [{{name: tuned, techniques: ["sft:from=IMPORTED,steps=1"]}}]
evaluation: {EVALUATION}
"""


@pytest.fixture(scope="module")
def imported(tmp_path_factory: pytest.TempPathFactory) -> ImportedModel:
    """Address of a folder that lies where huggingface_hub keeps what it has fetched."""
    folder = tmp_path_factory.mktemp("secret-place")
    fetched = folder / "models--me--old" / "snapshots" / ("ab" * 20)
    export_pipeline(write_run(folder / "first", pixel_plan("t5")), fetched)
    return import_model(fetched, folder / "run", [*SETTINGS, "data.count=8", "data.max_objects=2"])


def test_it_is_sampled_and_scored_and_its_card_claims_no_training(imported: ImportedModel, tmp_path: Path) -> None:
    words = ["sample", str(imported.path), "a ball", "--out", str(tmp_path / "samples"), "--steps", "1"]
    sampled = CliRunner().invoke(app, words)
    assert sampled.exception is None, sampled.output
    assert list((tmp_path / "samples").glob("*.png"))
    result = evaluate(imported.path, parse(Protocol, read_yaml(EVALUATION, "protocol")))
    assert result.step == 0
    text = make_card(imported.path).text
    assert "tintype has not trained it" in text and "base_model: me/old" in text
    assert f"an imported model: me/old at {'ab' * 20}" in text
    for wrong in (
        "random weights",
        "## Cost of training",
        "## Data\n",
        "drawn scenes only",
        "One seed",
        "secret-place",
    ):
        assert wrong not in text
    assert "## Samples" in text and f"{result.metrics['validation_loss']:.4g}" in text


def test_another_run_starts_from_it_and_says_so_and_is_exported(imported: ImportedModel, tmp_path: Path) -> None:
    plan = apply_techniques(imported.plan, [f"sft:from={imported.path},steps=1,data.style=photo"])
    train(plan, tmp_path / "tuned", Interrupt())
    lineage = read_json(tmp_path / "tuned" / "lineage.json")
    assert lineage["at_step"] == 0 and lineage["imported"] == imported.record
    before, after = (load_run(run, "cpu")[0].denoiser.state_dict() for run in (imported.path, tmp_path / "tuned"))
    moved = max(float((after[name] - tensor).abs().max()) for name, tensor in before.items())
    assert 0 < moved < 1e-2

    second = apply_techniques(imported.plan, [f"sft:from={tmp_path / 'tuned'},steps=1"])
    train(second, tmp_path / "again", Interrupt())
    exported = export_pipeline(tmp_path / "again", tmp_path / "out", ExportOptions(card=CardOptions(license="mit")))
    text = (exported.path / "README.md").read_text(encoding="utf-8")
    lines = text.splitlines()
    (first,) = [index for index, line in enumerate(lines) if line.startswith("| Started from")]
    assert f"the raw weights of the run {plan.hash}, seed 0, at step 1 of 1" in lines[first]
    assert f"the run {imported.plan.hash}" in lines[first + 1]
    assert "an imported model: me/old" in lines[first + 2] and lineage["imported"]["sha256"]
    assert "random weights" not in text and "base_model: me/old" in text and "secret-place" not in text
    assert "weights: raw" in text and "| start run" not in text, "the plan's start is no checkpoint of others"
    assert "drawn scenes only" not in text, "what the imported model has seen is not known"


def test_it_starts_an_arm(imported: ImportedModel, tmp_path: Path) -> None:
    settings = STUDY.replace("PLAN", str(imported.path / "plan.yaml")).replace("IMPORTED", str(imported.path))
    study = resolve("test", read_settings(read_yaml(settings, "study"), Path()))
    (arm,) = [task for task in tasks_of(study, tmp_path) if task.key == ("tuned", 3)]
    train(arm.plan, tmp_path / "arm", Interrupt())
    assert read_json(tmp_path / "arm" / "lineage.json")["imported"] == imported.record
    assert evaluate(tmp_path / "arm", study.settings.evaluation).step == 1


def test_the_card_of_a_folder_elsewhere_names_no_base_model(imported: ImportedModel, tmp_path: Path) -> None:
    moved = import_model(export_pipeline(imported.path, tmp_path / "out").path, tmp_path / "run", SETTINGS)
    text = make_card(moved.path).text
    assert "base_model" not in text and "an imported model: (a local file or folder), an export of the run" in text
    assert "base_model: a/b" in make_card(moved.path, CardOptions(base_model="a/b")).text
    with pytest.raises(UserError, match="starts from another run"):
        import_model(tmp_path / "out", tmp_path / "x", ["start={kind: run, folder: y}"])
