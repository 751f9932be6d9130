"""A study whose arms read captions with a frozen encoder, and share what it says of them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from tests.tiny import TINY
from tests.tiny_text import option, write_text_encoder
from tintype.errors import UserError
from tintype.study.compare import _check_texts
from tintype.study.lab import run_study
from tintype.study.report import read_results
from tintype.study.results import Run
from tintype.study.study import load_study
from tintype.train.folder import read_json

STUDY = """
question: Who reads best?
recipe: PLAN
seeds: [0]
arms:
  - {name: read, techniques: ["TEXT"]}
  - {name: both, techniques: ["TEXT", x-prediction]}
primary: [scene_accuracy, validation_loss]
evaluation: {count: 8, also: [], reference_count: 8, validation_count: 2, metrics: [fd], sampler: {steps: 1}}
"""


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("study")
    write_text_encoder("minilm")
    plan = TINY.replace("steps: 6", "steps: 2").replace("run: {", "run: {text_embeddings: disk, ")
    (folder / "plan.yaml").write_text(plan)
    (folder / "study.yaml").write_text(STUDY.replace("PLAN", str(folder / "plan.yaml")).replace("TEXT", option()))
    before = os.environ["TINTYPE_CACHE"]
    os.environ["TINTYPE_CACHE"] = str(folder / "cache")
    try:
        assert run_study(load_study(str(folder / "study.yaml")), folder / "out", 1, Console(quiet=True)) == 0
    finally:
        os.environ["TINTYPE_CACHE"] = before
    return folder


def test_results_say_what_read_the_captions(study: Path) -> None:
    baseline, read, both = read_results(study / "out").arms
    assert [arm.runs[0].text.kind for arm in (baseline, read, both) if arm.runs[0].text] == [
        "words",
        "minilm",
        "minilm",
    ]
    found = read.runs[0].text
    assert found is not None and baseline.runs[0].text is not None and baseline.runs[0].text.identity == ""
    assert found.identity == read_json(study / "out" / read.runs[0].folder / "loaded.json")["text"]


def test_arms_share_one_folder_of_embeddings(study: Path) -> None:
    (folder,) = (study / "cache" / "text").iterdir()
    records = b"".join(file.read_bytes() for file in folder.glob("*.index"))
    keys = [records[first : first + 16] for first in range(0, len(records), 32)]
    assert len(keys) == len(set(keys)) > 8


def test_an_encoder_that_changed_between_runs_is_refused(study: Path) -> None:
    baseline, read, both = (arm.runs[0] for arm in read_results(study / "out").arms)
    _check_texts({"baseline": [baseline], "read": [read], "both": [both]})
    with pytest.raises(
        UserError, match=r"the text encoder 'minilm' was .* for 'read', seed 0 and cdcdcdcdcdcd for 'b'"
    ):
        _check_texts({"read": [read], "b": [both.model_copy(update={"text": _other_weights(both)})]})


def _other_weights(run: Run) -> Any:
    assert run.text is not None
    return run.text.model_copy(update={"identity": "cd" * 32})
