"""The bias of a run's loss terms, and what `unbias` makes of it in the real sampler."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from typer.testing import CliRunner

from tests.bounds import distance, rounding_bound
from tests.tiny import tiny_plan
from tintype.cli import app
from tintype.data.order import ids_at
from tintype.errors import UserError
from tintype.flow.guidance import ClassifierFreeSettings
from tintype.plan import Plan
from tintype.runtime.interrupt import Interrupt
from tintype.sampling import velocity_bias as module
from tintype.sampling.generate import SamplerSettings, generate
from tintype.sampling.velocity_bias import mean_target, velocity_bias
from tintype.seams import Draws
from tintype.tokenizers.pixels import Pixels
from tintype.train.loop import train
from tintype.train.parts import Model, build_model
from tintype.train.session import Session, build_session

PROMPTS = ["a red ball", "a blue ring"]
PLAIN = SamplerSettings(steps=1, guidance=ClassifierFreeSettings(scale=2.0))
UNBIAS = SamplerSettings(steps=1, guidance=ClassifierFreeSettings(scale=2.0, unbias=True))


class FloatPixels(Pixels):
    """Leaves the sampler's result as it is."""

    def decode(self, z_BCHW: Tensor) -> Tensor:
        return z_BCHW


def parts_of(plan: Plan) -> Model:
    """A model whose every weight matters."""
    built = replace(build_model(plan), tokenizer=FloatPixels())
    generator = torch.Generator().manual_seed(0)
    for parameter in built.modules.parameters():
        nn.init.normal_(parameter, std=0.15, generator=generator)
    return built


def images(plan: Plan, settings: SamplerSettings, size_px: int = 16) -> Tensor:
    return generate(parts_of(plan), PROMPTS, settings, seed=3, size_px=size_px)


def encoded(parts: Session, ids: list[int]) -> Tensor:
    return parts.tokenizer.encode(parts.source.images(ids), Draws(0, torch.tensor(ids))).double()


def test_of_phases_it_is_that_of_the_last() -> None:
    phases = ["synthetic-then-real:first.style=render,first.count=8,at=0.34"]
    parts = build_session(tiny_plan("data.style=photo", "data.count=8", techniques=phases))
    assert sorted(parts.order.ids(8, 16)) == sorted([*range(8), *range(8)]), "the last 16 are the 8 real ones, twice"
    expected = -encoded(parts, list(range(8))).mean(0)
    assert distance(mean_target(parts, 16).double(), expected) < rounding_bound(24, 1.0)


def test_the_mean_target_of_a_velocity_is_the_negative_mean_of_the_data() -> None:
    parts = build_session(tiny_plan())
    expected = -encoded(parts, list(range(24))).mean(0)
    assert distance(mean_target(parts, 16).double(), expected) < rounding_bound(24, 1.0)


def test_the_mean_target_of_x_prediction_has_its_clamp() -> None:
    plan = tiny_plan("time.kind=uniform", techniques=["x-prediction:clamp=0.5"])
    parts = build_session(plan)
    t = plan.time.draw(Draws(plan.seed, torch.arange(24))).double()[:, None, None, None]
    x = encoded(parts, ids_at(plan.seed, 0, 24, 24).tolist())
    expected = -(x * t / t.clamp_min(0.5)).mean(0)
    assert torch.allclose(mean_target(parts, 16).double(), expected, atol=1e-5)
    assert float((expected + x.mean(0)).abs().max()) > 0.05


def test_of_much_data_the_first_images_of_training_are_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_IMAGES", 10)
    monkeypatch.setattr(module, "_BATCH", 4)
    parts = build_session(tiny_plan("seed=5"))
    expected = -encoded(parts, ids_at(5, 0, 10, 24).tolist()).mean(0)
    assert distance(mean_target(parts, 16).double(), expected) < rounding_bound(24, 1.0)


def test_a_step_with_unbias_is_undone_by_the_weight_and_the_mean() -> None:
    plan = tiny_plan(techniques=["contrastive:weight=0.25"])
    noise = Draws(3, torch.arange(2)).normal("sample", (3, 16, 16))
    velocity = noise - images(plan, PLAIN)
    expected = 0.75 * velocity + 0.25 * mean_target(build_session(plan), 16)
    assert torch.allclose(noise - images(plan, UNBIAS), expected, atol=1e-5)
    assert float((velocity - expected).abs().max()) > 0.1


@pytest.mark.parametrize("techniques", [[], ["contrastive:schedule.kind=until,schedule.end=5"]])
def test_without_a_bias_at_the_end_unbias_changes_no_bit(techniques: list[str]) -> None:
    plan = tiny_plan(techniques=techniques)
    assert torch.equal(images(plan, UNBIAS), images(plan, PLAIN))
    assert torch.equal(images(plan, UNBIAS, size_px=20), images(plan, PLAIN, size_px=20))


def test_the_strength_is_that_of_the_last_step() -> None:
    for schedule, strength in (("until,schedule.end=6", 0.2), ("ramp,schedule.end=12", 0.1)):
        plan = tiny_plan(techniques=[f"contrastive:weight=0.2,schedule.kind={schedule}"])
        found = velocity_bias(build_session(plan), 16)
        assert found is not None and found.strength == pytest.approx(strength)


def test_of_a_run_that_stopped_early_it_is_that_of_the_step_it_reached() -> None:
    parts = build_session(tiny_plan(techniques=["contrastive:weight=0.2,schedule.kind=until,schedule.end=5"]))
    assert velocity_bias(parts, 16) is None
    stopped = velocity_bias(replace(parts, trained_steps=5), 16)
    assert stopped is not None and stopped.strength == pytest.approx(0.2)


def test_another_size_than_that_of_training_is_refused() -> None:
    with pytest.raises(UserError, match=r"unbias.* 16 px, not for 20 px"):
        images(tiny_plan(techniques=["contrastive"]), UNBIAS, size_px=20)
    staged = tiny_plan("data.size_px=32", techniques=["contrastive", "resolution-stages:sizes=[16,24]"])
    with pytest.raises(UserError, match=r"unbias.* 16 and 24 and 32 px, not for 16 × 24 px"):
        generate(parts_of(staged), PROMPTS, UNBIAS, seed=3, size_px=(16, 24))


def test_the_mean_is_taken_once_for_all_that_share_it(monkeypatch: pytest.MonkeyPatch) -> None:
    taken = []

    def counted(parts: Session, size_px: int) -> Tensor:
        taken.append(parts.plan)
        return mean_target(parts, 16)

    monkeypatch.setattr(module, "mean_target", counted)
    monkeypatch.setattr(module, "_cached", {})
    plan = tiny_plan(techniques=["contrastive"])
    others = [
        tiny_plan("seed=1", techniques=["contrastive"]),
        tiny_plan("data.seed=1", techniques=["contrastive"]),
        tiny_plan(techniques=["contrastive", "x-prediction"]),
        tiny_plan("time.shift=2.0", techniques=["contrastive"]),
        tiny_plan("precision.compute=bf16", techniques=["contrastive"]),
    ]
    longer = tiny_plan("train.steps=9", techniques=["contrastive:weight=0.1"])
    for one in (plan, plan, longer):
        velocity_bias(build_session(one), 16)
    assert taken == [plan]
    for one in others:
        velocity_bias(build_session(one), 16)
    assert taken == [plan, *others]


def test_the_command_line_asks_for_it(tmp_path: Path) -> None:
    plan = tiny_plan("optimizer.lr=1e-2", techniques=["contrastive:weight=0.4"])
    train(plan, tmp_path / "run", Interrupt())
    made = []
    for extra in ([], ["--unbias"]):
        out = tmp_path / f"pictures{len(extra)}"
        words = ["sample", str(tmp_path / "run"), "a red ball", "--steps", "2", "--out", str(out), *extra]
        done = CliRunner().invoke(app, words)
        assert done.exit_code == 0, done.output
        made.append(sorted(out.glob("*.png"))[0].read_bytes())
    assert made[0] != made[1]
