"""Commands of the tutorials run: those that are cheap as they are, those that train with fewer steps and images."""

from __future__ import annotations

import re
import shlex
import shutil
from pathlib import Path

import pytest

from tests.contract.test_commands_in_text import commands_in
from tests.end_to_end.test_study import ask
from tests.slow import slow_unless
from tintype.data.scenes.render import render
from tintype.data.scenes.scene import draw_batch
from tintype.sampling.sample import save_png

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
TUTORIALS = ("first-study", "your-own-data", "from-small-to-large", "cluster")
STUDY = "studies/2026-11-15_captions-mini/results.json"
CHEAP = ("plan show", "plan diff", "power", "data import", "data show", "data inspect")
"""Commands that are run as they stand, beside those with `--dry-run`."""
FEWER = {
    "train": ("train.steps=4", "train.warmup_steps=1", "run.save_every_steps=2"),
    "evaluate": ("count=8", "reference_count=16", "validation_count=2", "also=[]", "sampler.steps=2"),
}
"""Overrides with which a command takes seconds."""


def files_of(text: str) -> dict[str, str]:
    """Return the files that a page tells its reader to save."""
    return dict(re.findall(r"[Ss]ave this as `([\w.-]+)`:\n\n```yaml\n(.*?)^```", text, re.MULTILINE | re.DOTALL))


def is_cheap(command: str) -> bool:
    return "--dry-run" in command or command.startswith(tuple(f"tintype {name}" for name in CHEAP))


def write_photos(folder: Path) -> None:
    folder.mkdir()
    for index, image in enumerate(render(draw_batch(0, range(24), "train"), 64, 0, range(24))):
        save_png(image, folder / f"{index}.png")
        (folder / f"{index}.txt").write_text(f"The image number {index}.")


@pytest.mark.parametrize("name", slow_unless(lambda name: name in TUTORIALS[:2], TUTORIALS))
def test_cheap_commands_of_a_tutorial_run(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    text = (DOCS / "tutorials" / f"{name}.md").read_text(encoding="utf-8")
    for file, content in files_of(text).items():
        Path(file).write_text(content)
    if "tintype data import photos" in text:
        write_photos(Path("photos"))
    run = [command for command in commands_in(text) if is_cheap(command)]
    assert run
    for command in run:
        if command.startswith("tintype power studies/mine"):  # what the study of the tutorial would have left
            Path("studies/mine").mkdir(parents=True)
            shutil.copy(ROOT / STUDY, "studies/mine/results.json")
        ask(*shlex.split(command)[1:])


@pytest.mark.slow
def test_the_page_on_own_data_runs_from_top_to_bottom_on_a_cpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All but what needs a server, a GPU or images of the reader's own."""
    monkeypatch.chdir(tmp_path)
    text = (DOCS / "tutorials" / "your-own-data.md").read_text(encoding="utf-8")
    for file, content in files_of(text).items():
        Path(file).write_text(content.replace("train.steps=200", "train.steps=2, train.warmup_steps=1"))
    write_photos(Path("photos"))
    blocks = re.findall(r"^```sh\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    run = [line for block in blocks for line in block.splitlines()]
    run = [line for line in run if not re.search(r"recaption|--images", line)]
    assert len(run) >= 9 and not any(" mini " in line for line in run)
    for command in run:
        words = shlex.split(command)[1:]
        ask(*words, *(word for one in FEWER.get(words[0], ()) if words[0] == "train" for word in ("--set", one)))
    assert Path("studies/captions/report.html").is_file() and list(Path("samples").glob("*.png"))


@pytest.mark.slow
def test_the_first_page_runs_from_top_to_bottom(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    text = (DOCS / "start.md").read_text(encoding="utf-8")
    blocks = re.findall(r"^```sh\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    run = [line for block in blocks for line in block.splitlines() if line.startswith("tintype ")]
    assert len(run) > 8
    for command in run:
        words = shlex.split(command)[1:]
        ask(*words, *(word for one in FEWER.get(words[0], ()) for word in ("--set", one)))
