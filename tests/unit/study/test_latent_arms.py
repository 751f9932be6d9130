"""A study whose arms work on the latents of several tokenizers."""

from __future__ import annotations

from pathlib import Path

import pytest
from rich.console import Console

from tests.tiny import TINY
from tests.tiny_autoencoders import CHANNELS, STRIDE_PX, option, write_autoencoder
from tintype.study.lab import run_study
from tintype.study.report import read_results
from tintype.study.study import load_study
from tintype.train.folder import read_json

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
    assert run_study(load_study(str(folder / "study.yaml")), folder / "out", 1, Console(quiet=True)) == 0
    return folder / "out"


def test_results_have_the_latents_of_each_run(study: Path) -> None:
    baseline, latents = read_results(study).arms
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
