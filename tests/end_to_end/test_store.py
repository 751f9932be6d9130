"""From images on a disk to the report of a study on them, with the real commands."""

from __future__ import annotations

import json
import shlex
import shutil
from pathlib import Path

import pytest
from PIL import Image

from tests.end_to_end.test_study import ask
from tests.tiny import TINY
from tests.tiny_clip import write_clip
from tests.tiny_store import captioned
from tintype.errors import UserError
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
    (shown,) = results["resolutions"]
    assert len(shown["real_previews"]) == 8 and shown["prompts"][0].startswith("a long caption of number")
    report = (out / "report.html").read_text()
    assert "scene accuracy" not in report and "short-captions" in report

    shutil.rmtree(store)
    report_study(out)
    assert json.loads((out / "results.json").read_text())["resolutions"] == [shown]


@pytest.mark.parametrize(
    ("side", "caption", "shown"),
    [
        (64, (), "data.size_px=32"),
        (20, ("--caption", "short=txt"), "data.size_px=16 --set captions.column=short"),
        (12, (), "data.size_px=16 --set 'data.where=min(width, height) >= 16'"),
    ],
)
def test_an_import_ends_with_commands_that_work(
    side: int, caption: tuple[str, ...], shown: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("photos").mkdir()
    for index in range(8):
        large = max(side, 16 * (index % 2))
        Image.new("RGB", (large + 4, large), (30 * index, 255 - 30 * index, 60 * (index % 4))).save(
            f"photos/{index}.png"
        )
        Path(f"photos/{index}.txt").write_text(f"number {index}")
    last = ask("data", "import", "photos", "--out", "my store", "--eval-share", "0", *caption).splitlines()[-1]
    assert last.startswith("next: tintype data inspect") and shown in last
    inspect, train = (shlex.split(one)[1:] for one in last.removeprefix("next: ").split(", or "))
    ask(*inspect)
    ask(*train, "--set", "train.steps=1", "--set", "train.batch=2", "--set", "train.warmup_steps=1")
    assert Path("my store.html").is_file() and Path("runs/my store/plan.yaml").is_file()


def test_images_without_captions_are_told_where_captions_go(tmp_path: Path) -> None:
    (tmp_path / "photos" / "dogs").mkdir(parents=True)
    image = tmp_path / "photos" / "a.png"
    Image.new("RGB", (16, 16)).save(image)
    asked = ("data", "import", str(tmp_path / "photos"), "--out", str(tmp_path / "store"))
    with pytest.raises(UserError, match=r"photos: no \.txt beside the images; write the caption of a\.png to a\.txt$"):
        ask(*asked)
    image.rename(tmp_path / "photos" / "dogs" / "a.png")
    with pytest.raises(UserError, match=r"a\.txt, or name another column \(folder\): --caption long=folder$"):
        ask(*asked)
    assert "captions long" in ask(*asked, "--caption", "long=folder", "--eval-share", "0")
