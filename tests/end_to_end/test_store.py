"""From images on a disk to the report of a study on them, with the real commands."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from tests.end_to_end.test_study import ask
from tests.tiny import TINY
from tests.tiny_clip import write_clip
from tests.tiny_store import captioned
from tintype.study.lab import report_study

STUDY = """
question: Do short captions matter on our own images?
recipe: PLAN
set: ["data={kind: store, path: STORE, size_px: 16}"]
seeds: [0, 1]
arms:
  - techniques: [short-captions]
evaluation:
  count: 10
  also: [{name: short, prompts: short, count: 4, distances: false}]
  reference_count: 12
  validation_count: 4
  encoders: [{kind: clip, source: CLIP}]
  sampler: {steps: 2, batch: 8}
"""


def test_images_are_imported_trained_on_compared_and_reported(tmp_path: Path) -> None:
    store, out = tmp_path / "store", tmp_path / "out"
    source = captioned(tmp_path / "a.parquet", 50)
    shown = ask("data", "import", str(source), "--out", str(store), "--eval-share", "0.4", "--short-px", "16")
    assert "images/s" in shown and "captions long, short" in shown

    (tmp_path / "plan.yaml").write_text(TINY)
    text = STUDY.replace("PLAN", str(tmp_path / "plan.yaml")).replace("STORE", str(store))
    (tmp_path / "study.yaml").write_text(text.replace("CLIP", str(write_clip(tmp_path / "clip"))))
    ask("ablate", str(tmp_path / "study.yaml"), "--out", str(out))
    results = json.loads((out / "results.json").read_text())
    assert [metric["name"] for metric in results["metrics"] if metric["primary"]] == ["fd_clip"]
    assert set(results["arms"][1]["comparisons"]) == {metric["name"] for metric in results["metrics"]}
    assert len(results["real_previews"]) == 8 and results["prompts"][0].startswith("a long caption of number")
    report = (out / "report.html").read_text()
    assert "scene accuracy" not in report and "short-captions" in report

    shutil.rmtree(store)
    report_study(out)
    again = json.loads((out / "results.json").read_text())
    assert (again["prompts"], again["real_previews"]) == (results["prompts"], results["real_previews"])
