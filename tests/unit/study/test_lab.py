from __future__ import annotations

from pathlib import Path

import pytest
import transformers
from rich.console import Console

from tests.tiny import TINY
from tests.tiny_clip import write, write_clip
from tests.tiny_dino import write_dino
from tintype.errors import UserError
from tintype.study.lab import _claim, _stored_study, report_study, run_study
from tintype.study.report import read_results
from tintype.study.study import Study, load_study

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
    assert run_study(load_study(str(file)), out, 1, Console(quiet=True)) == 0
    file.unlink()
    prompts.unlink()
    out.rename(tmp_path / "moved")
    report_study(tmp_path / "moved", Console(quiet=True))
    results = read_results(tmp_path / "moved")
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
    with pytest.raises(UserError, match="cannot be the teacher of a grid of 4 × 4 tokens"):
        run_study(study, tmp_path / "out", 1, Console(quiet=True))
    assert not (tmp_path / "out" / "runs").exists()


def test_a_study_that_is_done_needs_its_teacher_no_more(tmp_path: Path) -> None:
    teacher = write_dino(tmp_path / "dino")
    study = load_study(aligned(tmp_path, teacher, "dinov2"))
    assert run_study(study, tmp_path / "out", 1, Console(quiet=True)) == 0
    teacher.rename(tmp_path / "gone")
    assert run_study(study, tmp_path / "out", 1, Console(quiet=True)) == 0


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
    _claim(study, out)
    scaled(tmp_path, plan=TINY.replace("depth: 3", "depth: 4"))  # the recipe changes later
    there = _stored_study(out)
    assert there.baselines == study.baselines and [*there.baselines] == ["coarse", "fine"]
    assert [arm.label for arm in there.arms] == [arm.label for arm in study.arms]
    assert [arm.plans for arm in there.arms] == [arm.plans for arm in study.arms]


def test_a_study_may_grow_arms_seeds_and_resolutions(tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    _claim(load_study(str(scaled_alone(tmp_path))), out)
    _claim(scaled(tmp_path), out)  # the baseline as it was is now called 'coarse'
    places = "{name: fine, set: [model.patch=2]}, {name: coarse}, {name: finest, set: [model.patch=1]}"
    grown = scaled(tmp_path, f"resolutions=[{places}]", "seeds=[0,1,2]", "arms=[{techniques: [ema]}]")
    _claim(grown, out)
    assert _stored_study(out).baselines == grown.baselines
    assert [*grown.baselines] == ["coarse", "fine", "finest"]


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
        ("set=[train.batch=2]", "study of another baseline at the resolution coarse"),
        ("resolutions=[{name: a, set: [model.patch=1]}, {name: b, set: [model.patch=8]}]", "another baseline \\("),
    ],
)
def test_another_baseline_of_one_resolution_may_not_move_in(tmp_path: Path, change: str, message: str) -> None:
    out = tmp_path / "out"
    out.mkdir()
    _claim(scaled(tmp_path), out)
    with pytest.raises(UserError, match=message):
        _claim(scaled(tmp_path, change), out)
