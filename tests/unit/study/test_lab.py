from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import torch
import transformers
from typer.testing import CliRunner

import tintype
from tests.edit_checked import edit_json
from tests.studies import run_study
from tests.tiny import TINY, tiny_plan
from tests.tiny_clip import write, write_clip
from tests.tiny_dino import write_dino
from tintype.cli import app
from tintype.errors import UserError
from tintype.evaluation.run import evaluate
from tintype.plan import plan_from_folder
from tintype.runtime.files import write_checked
from tintype.runtime.interrupt import Interrupt
from tintype.study import lab
from tintype.study.folder import claim_folder, stored_study
from tintype.study.lab import report_study
from tintype.study.results import FORMAT, read_results_file
from tintype.study.study import Study, load_study
from tintype.train.loop import train
from tintype.train.record import RunRecord
from tintype.train.session import Session
from tintype.train.speed import images_per_s

STUDY = """
question: Does it follow a benchmark's prompts?
recipe: PLAN
seeds: [0]
evaluation:
  count: 8
  reference_count: 8
  validation_count: 2
  metrics: [fd]
  encoders: [scenes, {kind: clip, source: CLIP}]
  sampler: {steps: 1}
  also: [{name: mine, prompts: mine.jsonl}]
"""


def test_a_study_keeps_its_prompt_files(tmp_path: Path) -> None:
    """They are looked for beside the study's file, and its report can be made again without them."""
    file, prompts, out = tmp_path / "study.yaml", tmp_path / "mine.jsonl", tmp_path / "out"
    (tmp_path / "plan.yaml").write_text(TINY)
    prompts.write_text('{"prompt": "a red ball", "tag": "one"}\n{"prompt": "blue grass", "tag": "two"}\n')
    clip = write_clip(tmp_path / "clip")
    file.write_text(STUDY.replace("PLAN", str(tmp_path / "plan.yaml")).replace("CLIP", str(clip)))
    assert not run_study(load_study(str(file)), out, 1).failed
    file.unlink()
    prompts.unlink()
    out.rename(tmp_path / "moved")
    report_study(tmp_path / "moved")
    (copy,) = (tmp_path / "moved" / "prompts").glob("*/mine.jsonl")
    before = copy.read_text()
    copy.write_text(before.replace("red", "tan"))
    with pytest.raises(UserError, match=r"mine.jsonl is damaged .*`tintype ablate"):
        report_study(tmp_path / "moved")
    copy.write_text(before)
    results = read_results_file(tmp_path / "moved" / "results.json")
    assert results.arms[0].runs[0].state == "done"
    assert set(results.arms[0].runs[0].details["clip_score_clip_mine"]) == {"tag: one", "tag: two"}
    assert results.encoders["clip"].text


ALIGNED = """
question: Does alignment help?
recipe: PLAN
seeds: [0]
arms: [{techniques: ["repa:teacher.kind=KIND,teacher.source=TEACHER,hidden=8"], name: repa}]
evaluation: {count: 8, also: [], reference_count: 8, validation_count: 2, metrics: [fd], sampler: {steps: 1}}
"""


def aligned(folder: Path, teacher: Path, kind: str) -> str:
    (folder / "plan.yaml").write_text(TINY)
    text = ALIGNED.replace("PLAN", str(folder / "plan.yaml")).replace("TEACHER", str(teacher)).replace("KIND", kind)
    (folder / "study.yaml").write_text(text)
    return str(folder / "study.yaml")


def test_a_teacher_that_does_not_fit_is_found_before_any_run_begins(tmp_path: Path) -> None:
    config = transformers.Aimv2VisionConfig(
        hidden_size=16, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2, image_size=28, patch_size=14
    )
    processor = {"image_mean": [0.5] * 3, "image_std": [0.5] * 3, "size": {"height": 28, "width": 28}}
    fixed = write(tmp_path / "fixed", transformers.Aimv2VisionModel(config), processor)
    study = load_study(aligned(tmp_path, fixed, "transformers"))
    with pytest.raises(UserError, match="cannot be the teacher for a grid of 4 × 4 tokens"):
        run_study(study, tmp_path / "out", 1)
    assert not (tmp_path / "out" / "runs").exists()


def test_a_study_that_is_done_needs_its_teacher_no_more(tmp_path: Path) -> None:
    teacher = write_dino(tmp_path / "dino")
    study = load_study(aligned(tmp_path, teacher, "dinov2"))
    assert not run_study(study, tmp_path / "out", 1).failed
    teacher.rename(tmp_path / "gone")
    assert not run_study(study, tmp_path / "out", 1).failed


FINISHED = """
question: How fast is it?
recipe: PLAN
seeds: [0]
evaluation: {count: 8, also: [], reference_count: 8, validation_count: 2, metrics: [fd], sampler: {steps: 1}}
"""


@pytest.fixture(scope="module")
def once(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("once")
    (folder / "plan.yaml").write_text(TINY)
    (folder / "study.yaml").write_text(FINISHED.replace("PLAN", str(folder / "plan.yaml")))
    assert not run_study(load_study(str(folder / "study.yaml")), folder / "out", 1).failed
    return folder / "out"


@pytest.fixture
def finished(once: Path, tmp_path: Path) -> Path:
    """A study of one run, that a test may change."""
    return Path(shutil.copytree(once, tmp_path / "out"))


@pytest.fixture
def four_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(4)
    yield
    torch.set_num_threads(before)


def trained(folder: Path) -> bytes:
    return (folder / "checkpoints" / "step-000000006" / "state.safetensors").read_bytes()


def scores(folder: Path) -> dict[str, float]:
    (file,) = folder.glob("evaluation/*/result.json")
    return {name: value for name, value in json.loads(file.read_text())["metrics"].items() if name != "images_per_s"}


@pytest.mark.slow
@pytest.mark.usefixtures("four_threads")
def test_the_number_of_jobs_changes_no_bit_of_a_run(once: Path, tmp_path: Path) -> None:
    """Nor do the threads that torch takes by itself. With other numbers of threads most tensors of this plan differ."""
    study = load_study(str(once.parent / "study.yaml"), ["seeds=[0,1]"])
    assert not lab.run_study(study, tmp_path / "out", 2).failed
    (alone,) = (once / "runs").iterdir()
    beside = tmp_path / "out" / "runs" / alone.name
    assert trained(beside) == trained(alone) and scores(beside) == scores(alone)
    assert json.loads((beside / "environment.json").read_text())["threads"] == 1


@pytest.mark.usefixtures("four_threads")
def test_a_plan_trained_and_scored_alone_has_the_bits_of_the_run_of_a_study(once: Path, tmp_path: Path) -> None:
    (run,) = (once / "runs").iterdir()
    train(plan_from_folder(run), tmp_path / "run", Interrupt())
    evaluate(tmp_path / "run", stored_study(once).settings.evaluation)
    assert trained(tmp_path / "run") == trained(run) and scores(tmp_path / "run") == scores(run)
    assert torch.get_num_threads() == 4, "the caller's number is back"


@pytest.mark.usefixtures("four_threads")
def test_a_run_computes_with_the_threads_of_its_plan(tmp_path: Path) -> None:
    one, three = tiny_plan("train.steps=2"), tiny_plan("train.steps=2", "run.threads=3")
    assert one.hash == three.hash, "it is housekeeping: a run may resume with another number"
    seen: list[int] = []

    def probe(parts: Session, step: int) -> dict[str, float]:
        seen.append(torch.get_num_threads())
        return {}

    train(three, tmp_path, Interrupt(), probe=probe)
    assert seen == [3]


def test_a_report_can_leave_the_data_out(finished: Path) -> None:
    """Images and captions of the data may have a licence that the models' samples do not have."""
    report_study(finished)
    prompts = read_results_file(finished / "results.json").resolution.prompts
    assert all(prompt in (finished / "report.html").read_text() for prompt in prompts)
    shown = CliRunner().invoke(app, ["report", str(finished), "--without-data"]).stdout
    assert (
        f"{finished / 'runs'} still contain images and captions, study.yaml and the baselines still contain paths"
        in shown
    )
    found = read_results_file(finished / "results.json").resolution
    assert found.prompts == [f"prompt {number}" for number in range(1, len(prompts) + 1)] and not found.real_previews
    for file in ("report.html", "report.md", "results.json"):
        text = (finished / file).read_text()
        assert not any(prompt in text for prompt in prompts), file
    assert 'alt="real image' not in (finished / "report.html").read_text()


def test_a_study_records_the_commands_that_worked_on_it(finished: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Once each: a command that is repeated resumes the study. A report made later has them too."""
    assert read_results_file(finished / "results.json").commands == []  # it was not started by a command line
    monkeypatch.setattr("tintype.study.lab.run_tasks", lambda *arguments: {})  # nothing is left to run
    first, second = (["tintype", "ablate", "a study.yaml"], ["tintype", "ablate", "a study.yaml", "--jobs", "2"])
    for argv in (first, second, first):
        assert not run_study(stored_study(finished), finished, 1, argv=argv).failed
    report_study(finished)
    commands = read_results_file(finished / "results.json").commands
    assert [command.argv for command in commands] == [first, second]
    assert abs(datetime.fromisoformat(commands[0].date) - datetime.now(UTC)) < timedelta(hours=1)


def test_metrics_have_the_range_of_their_definition(finished: Path) -> None:
    ranges = {metric.name: metric.range for metric in read_results_file(finished / "results.json").metrics}
    assert ranges["scene_accuracy"] == (None, None) and ranges["fd_scenes"] == (0.0, None)


def test_the_throughput_is_that_of_the_runs_own_lines(finished: Path) -> None:
    """An older version may have stored another one, by another definition."""
    (stored,) = finished.glob("runs/*/evaluation/*/result.json")
    edit_json(stored, lambda result: result["metrics"].update(images_per_s=1e9))
    result = json.loads(stored.read_text())
    report_study(finished)
    (run,) = read_results_file(finished / "results.json").arms[0].runs
    assert run.metrics == {
        **result["metrics"],
        "images_per_s": images_per_s(RunRecord(finished / run.folder).lines),
    }


def contents(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_report_does_not_replace_finished_runs_by_none(finished: Path) -> None:
    (finished / "runs").rename(finished.parent / "elsewhere")
    (finished / "runs").mkdir()
    shutil.rmtree(finished / "real")
    before = contents(finished)
    with pytest.raises(UserError) as refused:
        report_study(finished)
    assert "1 finished runs" in str(refused.value) and f"in {finished / 'runs'}" in str(refused.value)
    assert contents(finished) == before
    (finished / "runs").rmdir()
    (finished.parent / "elsewhere").rename(finished / "runs")
    report_study(finished)
    assert (finished / "real" / "preview-0.png").exists()


def test_a_report_without_the_runs_is_written_from_the_stored_results(finished: Path) -> None:
    """Results and the page, whose images are of the runs, stay; `--without-data` still takes the data out."""
    shutil.rmtree(finished / "runs")
    prompts = read_results_file(finished / "results.json").resolution.prompts
    before = contents(finished)
    (finished / "report.md").unlink()
    shown = CliRunner().invoke(app, ["report", str(finished)]).stdout
    assert contents(finished) == before and "Sketch: one seed, no verdicts" in shown
    report_study(finished, without_data=True)
    assert not any(prompts[0] in (finished / name).read_text() for name in ("report.html", "results.json"))


def test_a_study_without_any_finished_run_keeps_the_results_of_before(
    finished: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = (finished / "results.json").read_bytes()
    shutil.rmtree(finished / "runs")
    monkeypatch.setattr("tintype.study.lab.run_tasks", lambda *arguments: {})
    with pytest.raises(UserError, match="1 finished runs, and none of the study's 1 runs was found"):
        tintype.run_study(stored_study(finished), finished)
    assert (finished / "results.json").read_bytes() == before


@pytest.mark.parametrize("text", ["{", "[]"])
def test_damaged_results_are_not_replaced_by_none(finished: Path, text: str) -> None:
    shutil.rmtree(finished / "runs")
    (finished / "results.json").write_text(text)
    with pytest.raises(UserError, match=r"results.json is damaged .* where the study's runs are"):
        report_study(finished)
    assert (finished / "results.json").read_text() == text


@pytest.mark.parametrize("content", [{"arms": 3}, {"arms": [{"runs": [{"state": "missing"}]}]}])
def test_results_without_finished_runs_are_replaced(finished: Path, content: dict[str, object]) -> None:
    shutil.rmtree(finished / "runs")
    write_checked(finished / "results.json", content, FORMAT)
    report_study(finished)
    assert read_results_file(finished / "results.json").arms[0].runs[0].state == "missing"


def test_results_of_an_earlier_format_are_written_again_from_the_runs_only(finished: Path) -> None:
    before = read_results_file(finished / "results.json")
    edit_json(finished / "results.json", lambda content: content.update(format=1))
    report_study(finished)
    assert read_results_file(finished / "results.json") == before
    edit_json(finished / "results.json", lambda content: content.update(format=1))
    shutil.rmtree(finished / "runs")
    with pytest.raises(UserError, match=r"written in format 1; .*tintype report"):
        report_study(finished)


SCALED = """
question: Does it help more with more tokens?
recipe: PLAN
set: [train.batch=4]
seeds: [0, 1]
arms: [{techniques: [x-prediction]}]
resolutions: [{name: fine, set: [model.patch=2]}, {name: coarse}]
"""


def scaled(folder: Path, *assignments: str, plan: str = TINY) -> Study:
    (folder / "plan.yaml").write_text(plan)
    (folder / "scaled.yaml").write_text(SCALED.replace("PLAN", str(folder / "plan.yaml")))
    return load_study(str(folder / "scaled.yaml"), assignments)


def test_a_study_keeps_the_baseline_of_each_resolution(tmp_path: Path) -> None:
    study, out = scaled(tmp_path), tmp_path / "out"
    out.mkdir()
    claim_folder(study, out)
    scaled(tmp_path, plan=TINY.replace("depth: 3", "depth: 4"))  # the recipe changes later
    there = stored_study(out)
    assert there.baselines == study.baselines and [*there.baselines] == ["coarse", "fine"]
    assert [arm.label for arm in there.arms] == [arm.label for arm in study.arms]
    assert [arm.plans for arm in there.arms] == [arm.plans for arm in study.arms]


def test_a_study_may_grow_arms_seeds_and_resolutions(tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    claim_folder(load_study(str(scaled_alone(tmp_path))), out)
    claim_folder(scaled(tmp_path), out)  # the baseline as it was is now called 'coarse'
    places = "{name: fine, set: [model.patch=2]}, {name: coarse}, {name: finest, set: [model.patch=1]}"
    grown = scaled(tmp_path, f"resolutions=[{places}]", "seeds=[0,1,2]", "arms=[{techniques: [ema]}]")
    claim_folder(grown, out)
    assert stored_study(out).baselines == grown.baselines
    assert [*grown.baselines] == ["coarse", "fine", "finest"]


def claimed(study: Study, out: Path) -> list[str]:
    """Return the folder after a claim and the images of a report."""
    claim_folder(study, out)
    for resolution in study.baselines:
        (out / "real" / resolution).mkdir(parents=True, exist_ok=True)
        (out / "real" / resolution / "preview-0.png").touch()
    return sorted(
        str(path.relative_to(out)) for path in out.rglob("*") if path.name not in ("study.yaml", "version.json")
    )


def test_what_a_study_of_other_resolutions_left_is_removed(tmp_path: Path) -> None:
    out, alone = tmp_path / "out", load_study(str(scaled_alone(tmp_path)))
    out.mkdir()
    claimed(alone, out)
    (out / "real" / "mine.png").touch()
    one = ["baseline.yaml", "real", "real/mine.png", "real/preview-0.png"]
    assert claimed(alone, out) == one
    two = ["real", "real/coarse", "real/coarse/preview-0.png", "real/fine", "real/fine/preview-0.png", "real/mine.png"]
    assert claimed(scaled(tmp_path), out) == ["baselines", "baselines/coarse.yaml", "baselines/fine.yaml", *two]
    (out / "real" / "coarse" / "preview-0.png").write_text("kept")
    other = scaled(tmp_path, "resolutions=[{name: finest, set: [model.patch=1]}, {name: coarse}]")
    assert claimed(other, out)[:3] == ["baselines", "baselines/coarse.yaml", "baselines/finest.yaml"]
    assert not (out / "real" / "fine").exists()
    assert (out / "real" / "coarse" / "preview-0.png").read_text() == "kept"
    assert claimed(alone, out) == one


def scaled_alone(folder: Path) -> Path:
    scaled(folder)
    alone = folder / "alone.yaml"
    lines = (folder / "scaled.yaml").read_text().splitlines()
    alone.write_text("\n".join(line for line in lines if not line.startswith("resolutions")))
    return alone


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("resolutions=[{name: fine, set: [model.patch=1]}, {name: coarse}]", "baseline at the resolution fine"),
        ("set=[train.batch=2]", "with another baseline at the resolution coarse"),
        ("resolutions=[{name: a, set: [model.patch=1]}, {name: b, set: [model.patch=8]}]", "another baseline"),
    ],
)
def test_another_baseline_of_one_resolution_may_not_move_in(tmp_path: Path, change: str, message: str) -> None:
    out = tmp_path / "out"
    out.mkdir()
    claim_folder(scaled(tmp_path), out)
    with pytest.raises(UserError, match=message):
        claim_folder(scaled(tmp_path, change), out)


LATENT = """
question: Do latents help?
recipe: PLAN
seeds: [0]
arms: [{techniques: ["tokenizer:to.kind=taef2,to.weights=WEIGHTS,patch=1"], name: latents}]
evaluation: {count: 8, also: [], reference_count: 8, validation_count: 2, metrics: [fd], sampler: {steps: 1}}
"""


def test_a_missing_tokenizer_is_found_before_the_first_step(tmp_path: Path) -> None:
    file, out = tmp_path / "study.yaml", tmp_path / "out"
    (tmp_path / "plan.yaml").write_text(TINY)
    text = LATENT.replace("PLAN", str(tmp_path / "plan.yaml")).replace("WEIGHTS", str(tmp_path / "nothing"))
    file.write_text(text)
    with pytest.raises(UserError, match=r"there is no folder .*nothing"):
        run_study(load_study(str(file)), out, 1)
    assert not list(out.glob("runs/*/metrics.jsonl"))
