from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.edit_checked import edit_json, edit_text, write_plan
from tests.tiny import tiny_plan
from tests.tiny_export import latent_plan, pixel_plan, text_settings, write_run
from tests.tiny_tuning import tuned_plan
from tintype.errors import UserError
from tintype.export.contract import check_single_file, pipeline_for
from tintype.export.pipeline_folder import export_pipeline
from tintype.export.trained import ExportOptions
from tintype.plan import Plan
from tintype.techniques.apply import apply_techniques

pytest.importorskip("diffusers")
pytest.importorskip("transformers")


REFUSED: dict[str, tuple[Callable[[], Plan], str]] = {
    "words": (lambda: tiny_plan("objective.kind=x-prediction"), "encoder 'words' is trained with the run"),
    "sprint": (lambda: apply_techniques(pixel_plan("t5"), ["sprint"]), "joins two streams"),
    "pixel velocity": (lambda: tiny_plan(*text_settings("t5")), "needs x_t and t"),
    "clamp": (lambda: pixel_plan("t5", "objective.clamp=0.02"), "clamp is 0.02"),
    "latent x": (lambda: latent_plan("t5", "flux1", "objective.kind=x-prediction"), "predicts clean latents"),
    "flux2": (lambda: latent_plan("t5", "flux2"), "batch-norm statistics"),
    "taef1": (lambda: latent_plan("t5", "taef1"), "AutoencoderTiny"),
    "small-vae": (lambda: tuned_plan(*text_settings("t5"), techniques=[]), "tintype's own network"),
    "layers": (lambda: latent_plan("t5", "flux1", "text.skip_layers=1"), "last layer after its norm"),
}


@pytest.mark.parametrize("case", list(REFUSED))
def test_what_a_pipeline_cannot_hold_is_refused_with_the_reason(case: str) -> None:
    plan, reason = REFUSED[case]
    with pytest.raises(UserError, match=reason):
        pipeline_for(plan())


def test_all_reasons_are_given_at_once() -> None:
    plan = latent_plan("t5", "flux2", "objective.kind=x-prediction", "text.skip_layers=1")
    with pytest.raises(UserError) as error:
        pipeline_for(plan)
    reasons, ways = str(error.value).split("What works:")
    assert reasons.count("\n- ") == 3
    assert "--to tintype" in ways and "tintype train" not in ways, "no option makes FLUX.2's latents fit"


def test_tread_samples_densely_and_is_held() -> None:
    assert pipeline_for(apply_techniques(pixel_plan("t5"), ["tread"])) == "PRXPixelPipeline"


@pytest.mark.parametrize("case", ["words", "sprint"])
def test_a_single_file_is_refused_where_its_model_could_not_be_used(case: str) -> None:
    plan, reason = REFUSED[case]
    with pytest.raises(UserError, match=reason):
        check_single_file(plan())


def test_a_shift_of_dc_ae_cannot_be_held_and_nothing_is_left_behind(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", latent_plan("t5", "dc-ae", "tokenizer.shift=0.3"))
    with pytest.raises(UserError, match="no shift"):
        export_pipeline(run, tmp_path / "out")
    assert [entry.name for entry in tmp_path.iterdir()] == ["run"]


def test_a_run_without_a_checkpoint(tmp_path: Path) -> None:
    write_plan(tmp_path, pixel_plan("t5"))
    with pytest.raises(UserError, match="never trained"):
        export_pipeline(tmp_path, tmp_path / "out")


def test_a_plan_that_was_changed_after_training(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", pixel_plan("t5"))
    edit_text(run / "plan.yaml", "shift: 3.0", "shift: 2.0")
    with pytest.raises(UserError, match="put back the plan"):
        export_pipeline(run, tmp_path / "out")


def test_a_plan_of_another_shape_in_a_run_that_did_not_note_its_hash(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", pixel_plan("t5"))
    (run / "environment.json").unlink()
    edit_text(run / "plan.yaml", "depth: 3", "depth: 4")
    with pytest.raises(UserError, match=r"does not fit its plan.yaml.*missing: denoiser.blocks.3"):
        export_pipeline(run, tmp_path / "out")


def test_another_text_encoder_than_the_runs(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", pixel_plan("t5"))
    edit_json(run / "loaded.json", lambda loaded: loaded.update(text="0" * 64))
    with pytest.raises(UserError, match="identity of 'text'"):
        export_pipeline(run, tmp_path / "out")


def test_an_average_that_a_run_does_not_keep(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", pixel_plan("t5"))
    with pytest.raises(UserError, match="has no average"):
        export_pipeline(run, tmp_path / "out", ExportOptions("average"))


@pytest.mark.parametrize("what", ["file", "folder"])
def test_nothing_is_written_over(tmp_path: Path, what: str) -> None:
    out = tmp_path / "out"
    if what == "file":
        out.write_text("mine")
    else:
        out.mkdir()
        (out / "half").write_text("mine")
    with pytest.raises(UserError, match="exists already"):
        export_pipeline(tmp_path / "run", out)
    assert (out if what == "file" else out / "half").read_text() == "mine"
