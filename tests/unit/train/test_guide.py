"""Autoguidance: sampling led away from earlier weights of the same run."""

from __future__ import annotations

import json
import shutil
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from PIL import Image
from safetensors.torch import load_file
from torch import Tensor
from typer.testing import CliRunner

from tests.tiny import tiny_plan
from tintype import cli
from tintype.config.strict import parse, read_yaml
from tintype.errors import UserError
from tintype.evaluation.protocol import Protocol
from tintype.evaluation.run import evaluate
from tintype.flow.guidance import AutoguidanceSettings, Guide
from tintype.flow.path import sampling_times
from tintype.runtime.interrupt import Interrupt
from tintype.sampling.generate import SamplerSettings, sample_latents
from tintype.seams import Draws
from tintype.study.study import load_study
from tintype.train.guide import guide_problem, guide_step, with_guides
from tintype.train.load import load_run
from tintype.train.loop import train
from tintype.train.parts import Model

CAPTIONS = ["a red ball", "a blue ring"]
STEPS, SCALE = 3, 2.5
POWER = "power-ema:snapshots=4"


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("guide") / "run"
    train(
        tiny_plan("train.steps=4", "optimizer.lr=3e-3", "run.keep_checkpoints=2", techniques=[POWER]),
        folder,
        Interrupt(),
    )
    return folder


def snapshot_model(run: Path, step: int, length: str) -> Model:
    """A model with the tensors of a snapshot's file, put in one by one."""
    model = load_run(run)[0]
    stored = load_file(run / "snapshots" / f"step-{step:09d}" / "state.safetensors")
    with torch.no_grad():
        for name, parameter in model.modules.named_parameters():
            parameter.copy_(stored[f"{length}/{name}"])
    return model


@torch.no_grad()
def by_hand(good: Model, bad: Model, scale: float) -> Tensor:
    """Euler's steps along v_bad + w (v_good - v_bad), each model with its own reading of the captions, in float64."""
    draws = Draws(5, torch.arange(len(CAPTIONS)))
    x = draws.normal("sample", (3, 16, 16)).double()
    times = sampling_times(STEPS, 1.0)
    texts = {id(one): one.text.encode(CAPTIONS) for one in (good, bad)}
    for now, then in pairwise(times):
        t_B = torch.full((len(CAPTIONS),), now)
        v_good, v_bad = (one.velocity(x.float(), t_B, texts[id(one)]).double() for one in (good, bad))
        x = x + (then - now) * (v_bad + scale * (v_good - v_bad))
    return x


def sampled(run: Path, guidance: AutoguidanceSettings) -> Tensor:
    parts, step = load_run(run)
    parts = with_guides(run, parts, step, [guidance.guide])
    draws = Draws(5, torch.arange(len(CAPTIONS)))
    return sample_latents(parts, CAPTIONS, SamplerSettings(steps=STEPS, guidance=guidance), draws, 16)


@pytest.mark.parametrize(("length", "stored"), [(None, "0.05"), (0.1, "0.1")])
def test_sampling_extrapolates_from_the_snapshots_velocity(trained: Path, length: float | None, stored: str) -> None:
    found = sampled(trained, AutoguidanceSettings(scale=SCALE, step=2, length=length))
    wanted = by_hand(load_run(trained)[0], snapshot_model(trained, 2, stored), SCALE)
    torch.testing.assert_close(found.double(), wanted, rtol=1e-4, atol=1e-4)
    assert float((found - sampled(trained, AutoguidanceSettings(scale=1.0))).abs().max()) > 1e-2


def test_a_length_that_was_not_tracked_is_made_of_the_snapshots_up_to_the_step(trained: Path) -> None:
    near, tracked = (sampled(trained, AutoguidanceSettings(step=3, length=length)) for length in (0.07, 0.05))
    assert not torch.equal(near, tracked)


def test_a_checkpoint_that_is_still_there_serves_too(trained: Path) -> None:
    """The average in a checkpoint is the guide of a run that has no snapshots."""
    found = sampled(trained, AutoguidanceSettings(scale=SCALE, step=2))
    copy = Path(shutil.copytree(trained, trained.parent / "no-snapshots"))
    shutil.rmtree(copy / "snapshots")
    assert torch.equal(sampled(copy, AutoguidanceSettings(scale=SCALE, step=2)), found)
    with pytest.raises(UserError, match=r"no weights of step 3\. Steps with a snapshot: none; with a checkpoint: 2, 4"):
        sampled(copy, AutoguidanceSettings(step=3))
    with pytest.raises(UserError, match=r"no average of length 0\.05 of step 2"):
        sampled(copy, AutoguidanceSettings(step=2, length=0.05))


def test_a_share_is_the_first_snapshot_that_is_not_before_it() -> None:
    plan = tiny_plan("train.steps=100", techniques=["power-ema:snapshots=16"])
    assert [guide_step(plan, Guide(share, None)) for share in (0.0625, 0.07, 0.5)] == [7, 7, 50]
    assert guide_step(plan, Guide(9, None)) == 9
    assert guide_step(tiny_plan("train.steps=100"), Guide(0.25, None)) == 25


def test_weights_that_are_not_earlier_are_refused(trained: Path) -> None:
    with pytest.raises(UserError, match="step 4 is not before step 4, the step of the sampled weights"):
        sampled(trained, AutoguidanceSettings(step=4))
    with pytest.raises(UserError, match="needs the folder of a run"):
        parts = load_run(trained)[0]
        settings = SamplerSettings(steps=1, guidance=AutoguidanceSettings())
        sample_latents(parts, CAPTIONS, settings, Draws(0, torch.arange(2)), 16)


def test_the_guide_shares_what_is_frozen_and_owns_what_is_trained(trained: Path) -> None:
    parts, step = load_run(trained)
    guide = Guide(2, None)
    twin = with_guides(trained, parts, step, [guide, None]).guides[guide]
    assert twin.tokenizer is parts.tokenizer and twin.objective is parts.objective and twin.trained_steps == 2
    mine, theirs = ({id(one) for one in model.modules.parameters()} for model in (parts, twin))
    assert not mine & theirs and not any(module.training for module in twin.modules.modules())
    assert with_guides(trained, parts, step, [None]) is parts


def test_an_evaluation_takes_it_for_one_of_its_samplings(trained: Path, tmp_path: Path) -> None:
    run = Path(shutil.copytree(trained, tmp_path / "run"))
    text = (
        "{count: 8, reference_count: 8, validation_count: 4, metrics: [fd], sampler: {steps: 1},"
        " also: [{name: auto, guidance: {kind: autoguidance, step: 0.25, scale: 3}}]}"
    )
    result = evaluate(run, parse(Protocol, read_yaml(text, "p")))
    images = [load_file(next((run / folder).glob("images-*"))) for folder in result.samples.values()]
    assert result.samples.keys() == {"", "auto"}
    assert any(not torch.equal(images[0][name], images[1][name]) for name in images[0])
    assert "fd_scenes_auto" in result.metrics


def written(path: Path) -> dict[str, object]:
    """The guidance in the settings of an image."""
    with Image.open(path) as image:
        guidance: dict[str, object] = json.loads(image.info["tintype"])["guidance"]
        return guidance


def test_the_command(trained: Path, tmp_path: Path) -> None:
    def ask(*options: str) -> None:
        words = ["sample", str(trained), "a red ball", "--out", str(tmp_path), "--steps", "2", *options]
        assert CliRunner().invoke(cli.app, words, catch_exceptions=False).exit_code == 0

    auto = ("--guidance-kind", "autoguidance", "--guide-length", "0.1", "--guide-step")
    ask(*auto, "2")
    ask(*auto, "0.25")
    first, second = (written(tmp_path / name) for name in ("0000.png", "0001.png"))
    assert first == {**second, "step": 2} and second["step"] == 0.25 and second["length"] == 0.1
    with pytest.raises(UserError, match="apply only to --guidance-kind autoguidance"):
        ask("--guide-step", "2")


def test_a_study_is_refused_before_it_begins_where_arms_will_lack_the_weights(tmp_path: Path) -> None:
    text = """
question: does it guide?
recipe: pocket
seeds: [0]
arms: [{techniques: [contrastive]}]
evaluation: {sampler: {guidance: {kind: autoguidance, step: 0.25}}}
"""
    file = tmp_path / "study.yaml"
    file.write_text(text)
    with pytest.raises(UserError, match=r"arm 'baseline': autoguidance needs the weights of step .* power-ema"):
        load_study(str(file))
    plan = tiny_plan("train.steps=100", techniques=["power-ema"])
    assert guide_problem(plan, Guide(0.25, None)) is None
    assert "is scored at step 10" in str(guide_problem(plan, Guide(0.25, None), [10, 50]))
    assert "keeps no snapshot of that step" in str(guide_problem(plan, Guide(26, None)))
