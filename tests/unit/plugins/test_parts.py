"""The example of every part that a plugin can add trains, samples, scores, imports and launches."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from typer.testing import CliRunner

from tests.plugin_files import EVERY_PART, only_these_plugins, write_plugin
from tests.stopping import stop_and_go_on
from tests.tiny import tiny_plan
from tintype.cli import app
from tintype.contract.technique import losses
from tintype.cost.plan import cost_of_plan, estimated_speed
from tintype.data.importers import open_importer
from tintype.errors import UserError
from tintype.evaluation.protocol import Condition, ImageProtocol, Protocol
from tintype.export.contract import obstacles
from tintype.flow.objective import mean_square
from tintype.flow.path import sampling_times
from tintype.flow.sampler import SAMPLERS
from tintype.metrics.pair import FeaturePair
from tintype.metrics.table import FEATURE_METRICS
from tintype.plan import Plan, diff, parts_of, plan_from_yaml, short_diff
from tintype.plugins.load import forget, load_files, loaded
from tintype.plugins.record import record_of
from tintype.plugins.registry import GROUPS, is_built_in, known
from tintype.runtime.interrupt import Interrupt
from tintype.sampling.generate import SamplerSettings
from tintype.sampling.sample import sample_run
from tintype.seams import Draws
from tintype.settings import ExportForm
from tintype.study.launch.choose import choose_launcher
from tintype.study.launch.launcher import Crew
from tintype.techniques import TECHNIQUES
from tintype.tokenizer_lab.report import read_tokenizer
from tintype.train.loop import train
from tintype.train.record import RunRecord

SEAMS = ["pseudo-huber", "preconditioned", "middle", "kumaraswamy", "every-second"]
"""Techniques of the example, each with a part of its own in a section of the plan."""
CFG_ZERO: Any = {"kind": "cfg-zero"}


@pytest.fixture(autouse=True)
def every_part() -> Iterator[None]:
    with only_these_plugins(EVERY_PART):
        yield


def test_the_example_has_a_part_of_every_group() -> None:
    assert all(known(group) for group in GROUPS)


def test_its_parts_train_resume_and_sample_together(tmp_path: Path) -> None:
    parts = ("text={kind: letters, width: 16, max_tokens: 24}", "tokenizer=unshuffle", "model.patch=2")
    plan = tiny_plan(*parts, techniques=["edges", "sign-steps:beta=0.8", *SEAMS])
    of_plugin = [(group, name) for group, name in parts_of(plan) if not is_built_in(group, name)]
    assert of_plugin == [
        ("text_encoders", "letters"),
        ("tokenizers", "unshuffle"),
        ("objectives", "preconditioned"),
        ("time_densities", "kumaraswamy"),
        ("main_losses", "pseudo-huber"),
        ("weightings", "middle"),
        ("routers", "every-second"),
        ("losses", "edges"),
        ("optimizers", "lion"),
    ]
    assert set(record_of(of_plugin)) == {"every_part.py"}
    assert train(plan, tmp_path / "whole", Interrupt()).finished
    stop_and_go_on(plan, tmp_path / "stopped", 3)
    losses = [[line["loss"] for line in RunRecord(tmp_path / name).lines] for name in ("whole", "stopped")]
    assert losses[0] == losses[1] and losses[0][-1] < losses[0][0]
    settings = SamplerSettings(steps=2, method="adams-bashforth", guidance=CFG_ZERO)
    asked = ["a red ball"]
    written = sample_run(tmp_path / "whole", asked, None, tmp_path / "out", settings, count=1, seed=0, size_px=None)
    with Image.open(written[0]) as image:
        made_with = json.loads(image.info["tintype"])
        assert image.size == (16, 16) and made_with["method"] == "adams-bashforth"
        assert made_with["plugins"] == {"every_part.py": {"sha256": loaded()["every_part.py"].sha256}}
    forget(loaded()[EVERY_PART.name])
    with pytest.raises(UserError, match=r"was made with the plugin every_part\.py .*, but this plugin is not loaded"):
        sample_run(tmp_path / "whole", asked, None, tmp_path / "out", SamplerSettings(), count=1, seed=0, size_px=None)


@pytest.mark.parametrize("name", SEAMS)
def test_a_part_of_each_seam_has_words_a_hash_and_a_schema(name: str) -> None:
    plan, section = tiny_plan(techniques=[name]), TECHNIQUES[name].seam
    assert plan.hash != tiny_plan().hash and plan_from_yaml(plan.to_yaml(), "again") == plan
    (words,) = short_diff(tiny_plan(), plan).values()
    assert str(words[1]).split(" (")[0] == name
    assert diff(tiny_plan(), plan)[f"{section}.kind"][1] == name
    assert f"'{name}'" in str(Plan.model_json_schema())
    with pytest.raises(UserError, match=f"did you mean '{name}'"):
        tiny_plan(f"{section}.kind={name}x")


def test_the_pseudo_huber_loss_is_the_square_of_small_errors_and_linear_in_large_ones() -> None:
    loss, t_B = tiny_plan(techniques=["pseudo-huber:c=0.5"]).main_loss.build(), torch.zeros(2)
    target = torch.zeros(2, 3, 4, 4, dtype=torch.float64)
    small, large = torch.full_like(target, 1e-3), torch.full_like(target, 1e4)
    assert torch.allclose(loss(small, target, t_B), mean_square(small, target), rtol=1e-5)
    assert torch.allclose(loss(large, target, t_B), 2 * 0.5 * large[:, 0, 0, 0], rtol=1e-3)


def test_the_main_loss_is_what_is_logged_and_weighted() -> None:
    """With c far above every error, its losses are those of squares."""
    assert losses(tiny_plan(techniques=["pseudo-huber:c=100", "min-snr"])) == pytest.approx(
        losses(tiny_plan(techniques=["min-snr"])), rel=1e-2
    )
    assert losses(tiny_plan(techniques=["pseudo-huber:c=0.1"]))[0] < 0.7 * losses(tiny_plan())[0]


@pytest.mark.parametrize("other", ["contrastive", "loss-space"])
def test_what_rests_on_squares_is_refused_beside_another_main_loss(other: str) -> None:
    with pytest.raises(UserError, match=f"'pseudo-huber' and '{other}' applied.*main_loss.kind is 'pseudo-huber'"):
        tiny_plan(techniques=["pseudo-huber", other])


def test_the_preconditioned_velocity_is_that_of_edms_x() -> None:
    """x = c_skip x_t + c_out F and v = (x_t - x) / t, with EDM's factors at σ = t n / (1 - t) on x_t / (1 - t)."""
    objective = tiny_plan("objective.noise_scale=2.0", techniques=["preconditioned"]).objective
    built = objective.build(tiny_plan().time_density)
    t_B = torch.tensor([0.1, 0.5, 0.9], dtype=torch.float64)
    prediction, x_t = torch.randn(2, 3, 1, 2, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    t = t_B.view(-1, 1, 1, 1)
    sigma, data = 2 * t / (1 - t), 0.5
    skip, out = data**2 / (sigma**2 + data**2), sigma * data / (sigma**2 + data**2) ** 0.5
    x = skip * x_t / (1 - t) + out * prediction
    assert torch.allclose(built.velocity(prediction, x_t, t_B), (x_t - x) / t)


def test_the_time_density_has_the_distribution_that_it_states() -> None:
    time = tiny_plan("time.lowest=0.0", techniques=["kumaraswamy"]).time
    drawn = time.draw(Draws(0, torch.arange(4096)))
    for t in (0.2, 0.5, 0.8):
        assert float((drawn < t).double().mean()) == pytest.approx(1 - (1 - t**2) ** 2, abs=0.03)


def test_the_weighting_has_the_mean_one() -> None:
    plan = tiny_plan(techniques=["middle"])
    assert plan.weighting
    weight = plan.weighting.build(plan.time_density, plan.objective.build(plan.time_density))
    drawn = plan.time.draw(Draws(0, torch.arange(4096)))
    assert float(weight(drawn).mean()) == pytest.approx(1, abs=0.03)


def test_the_sampler_is_of_second_order() -> None:
    def error(steps: int) -> float:
        noise = torch.ones(1, 1, 1, 1, dtype=torch.float64)
        draws = Draws(0, torch.arange(1))
        end = SAMPLERS["adams-bashforth"](lambda x, t: -x, noise, sampling_times(steps, 1.0), draws, lambda: None)
        return abs(float(end) - math.e)

    assert error(50) / error(100) > 3.5


def test_the_router_counts_in_the_cost_of_a_plan() -> None:
    speed, plan = estimated_speed("h200"), tiny_plan()
    routed = tiny_plan(techniques=["every-second"])
    assert cost_of_plan(routed, speed).step_flops < cost_of_plan(plan, speed).step_flops


@pytest.mark.parametrize("form", ["PRXPipeline", "PRXPixelPipeline", "safetensors"])
def test_an_export_refuses_an_objective_of_a_plugin_in_words(form: ExportForm) -> None:
    reasons = [one.reason for one in obstacles(tiny_plan(techniques=["preconditioned"]), form)]
    assert any("'preconditioned' is of a plugin" in reason for reason in reasons)
    trained = tiny_plan(techniques=["pseudo-huber", "middle", "kumaraswamy", "every-second"])
    assert [one.reason for one in obstacles(trained, form)] == [one.reason for one in obstacles(tiny_plan(), form)]


def test_samplers_and_guidances_count_in_the_hash_of_a_protocol_and_in_the_record(tmp_path: Path) -> None:
    main = Protocol(sampler=SamplerSettings(method="adams-bashforth"))
    also = Protocol(also=(Condition(name="zero", guidance=CFG_ZERO, distances=False),))
    assert set(record_of(main.parts)) == set(record_of(also.parts)) == {"every_part.py"}
    before = main.hash, also.hash, Protocol().hash
    forget(loaded()[EVERY_PART.name])
    load_files([write_plugin(tmp_path, EVERY_PART.read_text() + "# changed\n", EVERY_PART.name)])
    assert (main.model_copy().hash != before[0], also.model_copy().hash != before[1], Protocol().hash == before[2]) == (
        True,
        True,
        True,
    )


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--method", "adams-bashfort"], "--method adams-bashfort: .*did you mean 'adams-bashforth'"),
        (["--guidance-kind", "cfg-zer"], "--guidance-kind cfg-zer .*did you mean 'cfg-zero'"),
    ],
)
def test_a_misspelt_sampler_or_guidance_is_named(options: list[str], words: str, tmp_path: Path) -> None:
    train(tiny_plan("train.steps=1", "train.warmup_steps=1"), tmp_path, Interrupt())
    result = CliRunner().invoke(app, ["sample", str(tmp_path), "a red ball", *options])
    assert result.exit_code != 0 and re.search(words, str(result.exception or result.output))


def test_its_parts_are_named_where_the_cost_does_not_count_them(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = tiny_plan("text={kind: letters, width: 16, max_tokens: 24}", "tokenizer=unshuffle", "model.patch=2")
    speed = estimated_speed("h200")
    found = cost_of_plan(plan, speed)
    assert found.parameters["text"] == (258 + 24) * 16 and found.step_flops > 0
    assert [one.split(":")[0] for one in found.missing] == ["text", "tokenizer"] and "'letters'" in found.missing[0]
    with (
        monkeypatch.context() as changed,
        pytest.raises(UserError, match="'letters' is a frozen encoder from a plugin"),
    ):
        changed.setattr(type(plan.text), "is_frozen", True)
        cost_of_plan(plan, speed)
    with (
        monkeypatch.context() as changed,
        pytest.raises(UserError, match="'letters' cannot be built on the meta device of torch"),
    ):
        changed.setattr(type(plan.text), "build", lambda self, device: torch.zeros(1, device=device).item())
        cost_of_plan(plan, speed)


def test_its_metric_is_one_of_the_protocols_and_counts_in_their_hash() -> None:
    pair = FeaturePair(torch.ones(4, 3), torch.zeros(5, 3))
    assert FEATURE_METRICS["mean-shift"].measure(pair).value == pytest.approx(3**0.5)
    assert Protocol(metrics=("fd", "mean-shift")).hash != Protocol(metrics=("fd",)).hash
    assert "mean-shift" not in ImageProtocol().metrics, "a default does not depend on what is loaded"


def test_a_metric_of_another_file_content_is_another_protocol(tmp_path: Path) -> None:
    before = Protocol(metrics=("mean-shift",)).hash
    forget(loaded()[EVERY_PART.name])
    load_files([write_plugin(tmp_path, EVERY_PART.read_text() + "# changed\n", EVERY_PART.name)])
    assert Protocol(metrics=("mean-shift",)).hash != before


def test_its_importer_opens_its_format(tmp_path: Path) -> None:
    Image.new("RGB", (4, 4)).save(tmp_path / "a.png")
    (tmp_path / "set.pairs").write_text("a.png\ta red ball\ngone.png\tnothing\n../a.png\tinside all the same\n")
    found = open_importer(tmp_path / "set.pairs")
    items = list(found.items(["caption"], 0))
    assert found.count == 3 and found.usual_captions == {"long": "caption"}
    assert items[0].content == (tmp_path / "a.png").read_bytes() and items[0].values == {"caption": "a red ball"}
    assert items[1].content is None and "gone.png" in items[1].problem


def test_its_launcher_is_chosen_by_name(tmp_path: Path) -> None:
    (said,) = choose_launcher("script:big").launch(Crew(tmp_path, 2))
    script = (tmp_path / "launch" / "start.sh").read_text()
    assert said.endswith("start.sh for big") and script.count(f"--plugin {EVERY_PART} work {tmp_path}") == 2
    with pytest.raises(UserError, match="valid: slurm, ray and ssh:HOST,HOST, script"):
        choose_launcher("pbs")


def test_its_tokenizer_is_known_to_the_report_of_tokenizers() -> None:
    assert read_tokenizer("unshuffle").compression.channels == 12
