"""Scores of weights from an earlier stage, with the images of that stage."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from tests.tiny import TINY, tiny_plan
from tests.tiny_clip import write_clip
from tests.tiny_store import image_file, imported, parquet_of
from tintype.cli import app
from tintype.data.sources import forget_sources
from tintype.data.store.importing import ImportOptions
from tintype.evaluation import tracking
from tintype.evaluation.memorised import ask_for_copies
from tintype.evaluation.protocol import MemorisationSettings, Protocol
from tintype.evaluation.reference import (
    data_fingerprint,
    held_out,
    in_blocks,
    rows_by_shape,
    scored_data,
)
from tintype.evaluation.results import EvaluationResult, read_result
from tintype.evaluation.run import evaluate
from tintype.export.model_card import make_card
from tintype.plan import Plan, plan_from_folder
from tintype.runtime.interrupt import Interrupt
from tintype.sampling.generate import SamplerSettings
from tintype.sampling.velocity_bias import velocity_bias
from tintype.study.results import read_results_file
from tintype.study.runner import _probe
from tintype.train.load import load_run
from tintype.train.loop import train
from tintype.train.session import build_session
from tintype.vision.clip import ClipSettings

STAGE = "resolution-stages:sizes=[16],until=[3]"
STUDY = """
question: q
recipe: plan.yaml
set: [data.size_px=32, run.save_every_steps=1]
seeds: [0]
score_at: [2, 4]
score_count: 8
arms: [{name: staged, techniques: ["resolution-stages:sizes=[16],until=[3]"]}]
evaluation:
  {count: 8, also: [], reference_count: 16, validation_count: 4, size: stage, metrics: [fd], sampler: {steps: 2}}
"""
PROTOCOL = Protocol(
    count=8,
    also=(),
    reference_count=16,
    validation_count=4,
    sampler=SamplerSettings(steps=2, batch=8),
    metrics=("fd", "memorised"),
    training_count=24,
    memorisation=MemorisationSettings(captions=4, guidance=(1.0,)),
    size="stage",
)
AT_DATA = PROTOCOL.model_copy(update={"size": "data"})
SHAPED = PROTOCOL.model_copy(update={"shapes": "buckets", "encoders": (), "metrics": (), "also": ()})


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


def test_a_result_names_its_size(run: Path) -> None:
    at_stage, at_data = evaluate(run, PROTOCOL, kept_step=2), evaluate(run, AT_DATA, kept_step=2)
    assert at_stage.scale == f"{PROTOCOL.hash} at 16 px" and at_data.scale == AT_DATA.hash
    stored = {
        one.protocol_hash: one for one in map(read_result, (run / "evaluation").glob("*-step-000000002/result.json"))
    }
    assert stored == {PROTOCOL.hash: at_stage, AT_DATA.hash: at_data}
    assert "size_px" in at_stage.dump() and "size_px" not in at_data.dump()
    assert json.loads((run / at_stage.samples[""] / "samples.json").read_text())["size_px"] == 16
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
    loss = _probe(AT_DATA, small, 3)["validation_loss"]
    assert _probe(PROTOCOL, parts, 3) == {"validation_loss_16_px": loss} and _probe(PROTOCOL, small, 3) == {
        "validation_loss": loss
    }
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


def shaped_plan(folder: Path, size_px: int, buckets: Sequence[tuple[int, int]], *techniques: str) -> Plan:
    data = {"kind": "store", "path": str(folder / "store"), "size_px": size_px, "buckets": [*buckets]}
    return tiny_plan(f"data={json.dumps(data)}", techniques=techniques)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a store of images of several proportions."""
    place, sizes = tmp_path_factory.mktemp("shapes"), [(70, 70), (80, 70), (66, 74), (70, 210)]
    images = [image_file(index, sizes[index % 4]) for index in range(60)]
    table = parquet_of(place / "a.parquet", images, caption=[f"number {index}" for index in range(60)])
    imported(table, place / "store", ImportOptions(eval_share=0.5))
    forget_sources()
    return place


def test_a_reference_of_other_buckets_is_another(place: Path) -> None:
    """Both have the same shapes at 16 px, but other images in each of them."""
    staged = shaped_plan(place, 32, list(AT_16), STAGE)
    small = shaped_plan(place, 16, list(AT_16.values()))
    found = []
    for plan in (staged, small):
        scored = scored_data(plan, SHAPED, 3)
        source = held_out(scored, SHAPED)
        shapes = [tuple(source.images([index]).shape[2:]) for index in range(len(source))]
        found.append((shapes, data_fingerprint(scored.data, source, scored)))
    assert found[0][0] != found[1][0]
    assert found[0][1] != found[1][1]


def test_images_keep_their_places_where_two_buckets_have_one_shape(place: Path) -> None:
    plan = shaped_plan(place, 64, [(64, 64), (68, 60), (60, 68)], STAGE)
    assert len(set(plan.shapes_at_size(16))) == 1
    sources = [held_out(scored_data(plan, SHAPED, step), SHAPED) for step in (3, 4)]
    assert in_blocks(sources[0], 20)[0] == in_blocks(sources[1], 20)[0]
    ((shape, row_N),) = rows_by_shape(sources[0], 20).items()
    assert shape == (16, 16) and row_N.tolist() == list(range(20)) and len(rows_by_shape(sources[1], 20)) > 1


def test_a_sole_bucket_shrinks_with_the_stage(place: Path) -> None:
    plan = shaped_plan(place, 64, [(64, 64)], STAGE)
    parts = build_session(plan)
    assert [tuple(parts.source_at(step).images([0]).shape[2:]) for step in (2, 3)] == [(16, 16), (64, 64)]
    square = SHAPED.model_copy(update={"shapes": "square"})
    assert tuple(held_out(scored_data(plan, square, 3), square).images([0]).shape[2:]) == (16, 16)


def test_training_images_that_are_searched_for_copies_have_the_size_of_the_stage(run: Path) -> None:
    plan = plan_from_folder(run)
    for step, size_px in ((3, 16), (4, 32)):
        asked = ask_for_copies(run, step, plan, scored_data(plan, PROTOCOL, step), PROTOCOL)
        assert asked is not None and {one.size_px for one in asked.every} == {size_px}
        for question in (asked.questions.training, asked.questions.unseen):
            assert tuple(question.source.images([question.ids[0]]).shape[2:]) == (size_px, size_px)


def test_attributes_are_asked_that_the_size_of_the_stage_shows(tmp_path: Path) -> None:
    """Textures can be read at 64 px and not at 32."""
    plan = tiny_plan("data.size_px=64", techniques=["resolution-stages:sizes=[32],until=[3]"])
    found = evaluate(trained(plan, tmp_path / "run"), PROTOCOL, kept_step=3)
    small = trained(tiny_plan("data.size_px=32"), tmp_path / "small")
    wanted = evaluate(small, AT_DATA, kept_step=3)
    assert found.details["scene_accuracy"] == wanted.details["scene_accuracy"]
    large = evaluate(tmp_path / "run", PROTOCOL)
    assert large.details["scene_accuracy"].keys() - found.details["scene_accuracy"].keys() == {"texture"}


def test_a_study_keeps_the_sizes_of_its_scores_apart(tmp_path: Path) -> None:
    """A study of one run an arm, as the command runs it: the sizes reach the results, the report and the log."""
    (tmp_path / "plan.yaml").write_text(TINY)
    (tmp_path / "study.yaml").write_text(STUDY)
    ran = CliRunner().invoke(app, ["ablate", str(tmp_path / "study.yaml"), "--out", str(tmp_path / "out")])
    assert ran.exit_code == 0, ran.output
    results = read_results_file(tmp_path / "out" / "results.json")
    sizes = {arm.name: [(one.step, one.size_px) for one in arm.runs[0].along] for arm in results.arms}
    assert sizes == {"baseline": [(2, 32), (4, 32), (6, 32)], "staged": [(2, 16), (4, 32), (6, 32)]}
    assert all([one.step for one in row.differences] == [4, 6] for row in results.along)
    curves = {arm.name: arm.runs[0].curves for arm in results.arms}
    steps = {name: {key: one.step for key, one in of.items() if "validation" in key} for name, of in curves.items()}
    assert steps["baseline"] == {"validation_loss": [1, 2, 3, 4, 5, 6]}
    assert steps["staged"] == {"validation_loss": [4, 5, 6], "validation_loss_16_px": [1, 2, 3]}
    assert "| 16 px |" in (tmp_path / "out" / "report.md").read_text()
    assert "validation loss 16 px" in (tmp_path / "out" / "report.html").read_text()


def test_trackers_and_cards_name_the_size(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    logged: list[str] = []

    class Mirror:
        def log_scores(self, name: str, step: int, numbers: dict[str, float], images: dict[str, Path]) -> None:
            logged.extend((*numbers, *images))

    monkeypatch.setattr(tracking, "mirror_more", lambda *given, **named: nullcontext(Mirror()))
    copy = Path(shutil.copytree(run, tmp_path / "run"))
    shutil.rmtree(copy / "evaluation", ignore_errors=True)
    names = []
    for protocol, step in ((PROTOCOL, 3), (PROTOCOL, None), (AT_DATA, None)):
        logged.clear()
        evaluate(copy, protocol, kept_step=step)
        names.append({name.split("/")[0] for name in logged})
    stage, data = PROTOCOL.hash[:8], AT_DATA.hash[:8]
    assert names[0] == {f"scores-{stage}-16px", f"samples-{stage}-16px"}
    assert names[1:] == [{f"{kind}-{end}" for kind in ("scores", "samples")} for end in (f"{stage}-32px", data)]
    text = make_card(copy).text
    assert "held-out scenes, with images of 32 px. ±" in text and "held-out scenes. ±" in text
    assert f"protocol {PROTOCOL.hash} at 32 px" in text
