"""Scores of weights from an earlier stage, with the images of that stage."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

from tests.tiny import tiny_plan
from tests.tiny_clip import write_clip
from tests.tiny_store import image_file, imported, parquet_of
from tintype.data.sources import forget_sources
from tintype.data.store.importing import ImportOptions
from tintype.evaluation.protocol import Protocol
from tintype.evaluation.reference import held_out, scored_data
from tintype.evaluation.results import EvaluationResult, read_result
from tintype.evaluation.run import evaluate
from tintype.plan import Plan
from tintype.runtime.interrupt import Interrupt
from tintype.sampling.generate import SamplerSettings
from tintype.sampling.velocity_bias import velocity_bias
from tintype.study.runner import _probe
from tintype.train.load import load_run
from tintype.train.loop import train
from tintype.train.session import build_session
from tintype.vision.clip import ClipSettings

STAGE = "resolution-stages:sizes=[16],until=[3]"
PROTOCOL = Protocol(
    count=8,
    also=(),
    reference_count=16,
    validation_count=4,
    sampler=SamplerSettings(steps=2, batch=8),
    metrics=("fd", "memorised"),
    training_count=24,
    size="stage",
)
AT_DATA = PROTOCOL.model_copy(update={"size": "data"})


def staged(*more: str, techniques: Sequence[str] = ()) -> Plan:
    return tiny_plan("data.size_px=32", *more, techniques=[STAGE, *techniques])


def trained(plan: Plan, folder: Path) -> Path:
    train(plan, folder, Interrupt(), keep_at=(2, 3, 4))
    return folder


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return trained(staged(techniques=["contrastive:weight=0.25"]), tmp_path_factory.mktemp("stages") / "run")


def numbers(result: EvaluationResult) -> dict[str, float]:
    return {name: value for name, value in result.metrics.items() if name != "images_per_s"}


@pytest.mark.parametrize("step", [2, 3])
def test_weights_of_a_stage_get_the_scores_of_a_run_that_has_no_other_size(
    run: Path, tmp_path: Path, step: int
) -> None:
    """Up to its end, a stage of 16 px is a training with data of 16 px: all scores must be the same."""
    found = evaluate(run, PROTOCOL, kept_step=step)
    small = trained(tiny_plan("data.size_px=16", techniques=["contrastive:weight=0.25"]), tmp_path / "small")
    wanted = evaluate(small, AT_DATA, kept_step=step)
    assert numbers(found) == numbers(wanted) and len(numbers(found)) > 3
    assert (found.real, found.details) == (wanted.real, wanted.details)
    assert found.size_px == 16 and wanted.size_px is None
    assert numbers(evaluate(run, AT_DATA, kept_step=step)) != numbers(found), "at 32 px they have other scores"


def test_after_the_stage_they_are_those_at_the_size_of_the_data(run: Path) -> None:
    for step in (4, None):
        found, wanted = (evaluate(run, one, kept_step=step) for one in (PROTOCOL, AT_DATA))
        assert numbers(found) == numbers(wanted)
        assert (found.size_px, found.samples) == (32, wanted.samples), "the samples are made once"


def test_a_result_names_its_size_and_others_are_as_before(run: Path) -> None:
    at_stage, at_data = evaluate(run, PROTOCOL, kept_step=2), evaluate(run, AT_DATA, kept_step=2)
    assert at_stage.scale == f"{PROTOCOL.hash} at 16 px" and at_data.scale == AT_DATA.hash
    stored = {
        one.protocol_hash: one for one in map(read_result, (run / "evaluation").glob("*-step-000000002/result.json"))
    }
    assert stored == {PROTOCOL.hash: at_stage, AT_DATA.hash: at_data}
    assert "size_px" in at_stage.dump() and "size_px" not in at_data.dump()
    assert json.loads((run / at_stage.samples[""] / "samples.json").read_text())["size_px"] == 16
    assert Protocol().hash == "94cf733a10ce" == Protocol(size="data").hash  # from before there was a choice
    assert Protocol(size="stage").hash != Protocol().hash


def test_the_mean_velocity_of_a_stage_is_that_of_its_images(run: Path) -> None:
    parts, _ = load_run(run, kept_step=3)
    small = build_session(tiny_plan("data.size_px=16", techniques=["contrastive:weight=0.25"]))
    for size_px, wanted in ((16, small), (32, parts)):
        found, same = velocity_bias(parts, size_px), velocity_bias(wanted, size_px)
        assert found is not None and same is not None and torch.equal(found.mean_CHW, same.mean_CHW)
        assert found.mean_CHW.shape[-1] == size_px


def test_the_validation_loss_while_training_has_the_size_of_the_step() -> None:
    parts, small = build_session(staged()), build_session(tiny_plan("data.size_px=16"))
    large = build_session(tiny_plan("data.size_px=32"))
    assert _probe(PROTOCOL, parts, 3) == _probe(AT_DATA, small, 3) != _probe(AT_DATA, parts, 3)
    assert _probe(PROTOCOL, parts, 4) == _probe(AT_DATA, large, 4) == _probe(AT_DATA, parts, 3)


AT_16 = {(32, 32): (16, 16), (28, 36): (12, 16), (48, 16): (24, 8)}
"""Buckets, and what they are in a stage of 16 px. Of those, an image of 35 × 40 px would be nearer to the square."""


def test_buckets_of_a_stage_are_scored_in_its_shapes(tmp_path: Path) -> None:
    sizes = [(40, 40), (40, 35), (40, 120)]
    images = [image_file(index, sizes[index % 3]) for index in range(90)]
    table = parquet_of(tmp_path / "a.parquet", images, caption=[f"number {index}" for index in range(90)])
    imported(table, tmp_path / "store", ImportOptions(eval_share=0.55))
    forget_sources()
    buckets = json.dumps([*AT_16])
    data = f'data={{"kind":"store","path":"{tmp_path / "store"}","size_px":32,"buckets":{buckets}}}'
    plan = tiny_plan(data, techniques=[STAGE])
    run = trained(plan, tmp_path / "run")
    write_clip(tmp_path / "clip")
    clip = (ClipSettings(source=str(tmp_path / "clip")),)
    counts = {"count": 40, "reference_count": 40, "validation_count": 9}
    shaped = AT_DATA.model_copy(update={**counts, "shapes": "buckets", "encoders": clip, "metrics": ("fd",)})
    protocol = shaped.model_copy(update={"size": "stage"})
    large, small = (held_out(scored_data(plan, one, 3), one) for one in (shaped, protocol))
    shapes = [[tuple(source.images([index]).shape[2:]) for index in range(len(large))] for source in (large, small)]
    assert set(zip(*shapes, strict=True)) == set(AT_16.items()), "each stays in its bucket"
    found = evaluate(run, protocol, kept_step=3)
    names = {f"{width}x{height}" for height, width in AT_16.values()}
    assert names <= set(found.details["fd_clip"]) and names <= set(found.details["validation_loss"])
    square = protocol.model_copy(update={"shapes": "square"})
    assert tuple(held_out(scored_data(plan, square, 3), square).images([0, 1, 2]).shape[2:]) == (16, 16)


def test_of_a_mixture_the_source_that_is_scored_has_the_size_of_the_stage() -> None:
    sources = '{"a":{"data":{"count":9}},"b":{"data":{"count":9,"style":"photo"}}}'
    plan = tiny_plan(f'data={{"kind":"mixture","size_px":32,"sources":{sources}}}', techniques=[STAGE])
    for step, size_px in ((3, 16), (4, 32)):
        scored = scored_data(plan, PROTOCOL, step)
        assert scored.data.scored.size_px == size_px
        assert tuple(held_out(scored, PROTOCOL).images([0]).shape[2:]) == (size_px, size_px)
