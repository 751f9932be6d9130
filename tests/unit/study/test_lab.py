from __future__ import annotations

from pathlib import Path

from rich.console import Console

from tests.tiny import TINY
from tests.tiny_clip import write_clip
from tintype.study.lab import report_study, run_study
from tintype.study.report import read_results
from tintype.study.study import load_study

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
