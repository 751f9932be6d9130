"""Scores of a run whose held-out images have the shapes of their buckets."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

from tests.tiny import tiny_plan
from tests.tiny_clip import write_clip
from tests.tiny_store import image_file, imported, parquet_of
from tintype.config.strict import parse, read_yaml
from tintype.data.sources import forget_sources, ids_by_shape
from tintype.data.store.importing import ImportOptions
from tintype.errors import UserError
from tintype.evaluation.protocol import Protocol
from tintype.evaluation.reference import ScoredData, held_out
from tintype.evaluation.run import evaluate
from tintype.evaluation.samples import samples_of, sampling_prompts, sampling_shapes
from tintype.flow.objective import mean_square
from tintype.flow.path import interpolate, velocity
from tintype.metrics import frechet_distance
from tintype.metrics.pair import FeaturePair
from tintype.metrics.validation import TIMES
from tintype.plan import Plan
from tintype.runtime.interrupt import Interrupt
from tintype.seams import Draws
from tintype.train.load import load_run
from tintype.train.loop import train
from tintype.vision.clip import ClipSettings
from tintype.vision.features import feature_matrix

CPU = torch.device("cpu")
SHAPES = [(8, 24), (16, 16), (24, 8)]
SIZES = [(40, 40), (120, 40), (40, 120)]
PROTOCOL = """
count: 36
reference_count: 40
validation_count: 9
shapes: buckets
encoders: [{kind: clip, source: CLIP}]
metrics: [fd]
sampler: {steps: 2, batch: 5}
also: [{name: few, count: 20, distances: false}]
"""


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("shapes")
    images = [image_file(index, SIZES[index % 3]) for index in range(90)]
    table = parquet_of(folder / "a.parquet", images, caption=[f"number {index}" for index in range(90)])
    imported(table, folder / "store", ImportOptions(eval_share=0.55))
    forget_sources()
    train(plan_of(folder), folder / "run", Interrupt())
    write_clip(folder / "clip")
    return folder / "run"


def plan_of(folder: Path, buckets: str = "[[16,16],[8,24],[24,8]]") -> Plan:
    data = f'data={{"kind":"store","path":"{folder / "store"}","size_px":16,"buckets":{buckets}}}'
    return tiny_plan(data, "train.steps=2")


def protocol_of(run: Path, **changes: object) -> Protocol:
    protocol = parse(Protocol, read_yaml(PROTOCOL.replace("CLIP", str(run.parent / "clip")), "protocol"))
    return protocol.model_copy(update=changes)


def test_shapes_with_too_few_images_for_a_distance_are_named(run: Path) -> None:
    result = evaluate(run, protocol_of(run, count=10))
    (warning,) = [one for one in result.warnings if one.startswith("no distances of")]
    named = {f"{width}x{height}" for height, width in SHAPES}
    assert {one for one in named if one in warning} == named - set(result.details.get("fd_clip", {}))
    assert "by clip" in warning and "8 images" in warning


@torch.no_grad()
def test_scores_are_those_of_each_shape_and_of_the_whole(run: Path) -> None:
    """The samples have the shapes of their captions' images; distances are taken shape by shape, and over all."""
    protocol = protocol_of(run)
    result = evaluate(run, protocol)
    parts, step = load_run(run)
    source = held_out(ScoredData(parts.plan.data), protocol)
    of_sample, of_real = dict(ids_by_shape(source, range(36))), dict(ids_by_shape(source, range(40)))
    assert list(of_sample) == SHAPES
    main = protocol.conditions[0]
    prompts, shapes = (
        sampling_prompts(ScoredData(parts.plan.data), protocol, main),
        sampling_shapes(ScoredData(parts.plan.data), protocol, main),
    )
    samples = samples_of(run / "evaluation" / "samples", step, main, prompts, 0, 16, shapes=shapes)
    shards = list(samples.shards())
    assert [tuple(shard.shape[2:]) for shard in shards] == SHAPES
    assert [samples.read(*block).shape[2:] for block in samples.blocks(64)] == [shard.shape[2:] for shard in shards]
    captions = [record.captions["long"] for ids in of_sample.values() for record in source.records(ids)]
    assert list(samples.prompts) == captions

    encoder = ClipSettings(source=str(run.parent / "clip")).build(CPU)
    fake = [feature_matrix(encoder, [shard]) for shard in shards]
    real = [feature_matrix(encoder, [source.images(ids)]) for ids in of_real.values()]
    distance = frechet_distance.FD.measure
    details = result.details["fd_clip"]
    for shape, fake_NF, real_MF in zip(SHAPES, fake, real, strict=True):
        wanted = distance(FeaturePair(fake_NF, real_MF)).value
        assert details[f"{shape[1]}x{shape[0]}"] == pytest.approx(wanted, rel=1e-6)
    whole = distance(FeaturePair(torch.cat(fake), torch.cat(real))).value
    assert result.metrics["fd_clip"] == pytest.approx(whole, rel=1e-6)

    errors = {shape: image_errors(run, protocol, ids) for shape, ids in ids_by_shape(source, range(9)) if shape}
    for shape, error_N in errors.items():
        found = result.details["validation_loss"][f"{shape[1]}x{shape[0]}"]
        assert found == pytest.approx(float(error_N.mean()), rel=1e-5)
    assert result.metrics["validation_loss"] == pytest.approx(float(torch.cat(list(errors.values())).mean()), rel=1e-5)


def image_errors(run: Path, protocol: Protocol, ids: list[int]) -> Tensor:
    """Return the validation loss of images one by one, written out."""
    parts, _ = load_run(run)
    source, found = held_out(ScoredData(parts.plan.data), protocol), []
    for id_ in ids:
        draws = Draws(0, torch.tensor([id_]))
        x = source.images([id_]).float() / 127.5 - 1
        noise = draws.normal("validation", tuple(x.shape[1:]))
        text = parts.text.encode([source.records([id_])[0].captions["long"]])
        at = [
            mean_square(parts.velocity(interpolate(x, noise, t_B), t_B, text), velocity(x, noise))
            for t_B in (torch.tensor([t]) for t in TIMES)
        ]
        found.append(torch.stack(at).mean())
    return torch.stack(found)


def test_squares_are_scored_without_shapes(run: Path) -> None:
    square = protocol_of(run, shapes="square")
    result = evaluate(run, square)
    assert set(result.details["validation_loss"]) == {f"t={t:g}" for t in TIMES} and "fd_clip" not in result.details
    assert Protocol(shapes="buckets").hash != Protocol().hash
    assert tuple(held_out(ScoredData(load_run(run)[0].plan.data), square).images([0, 1, 2]).shape[2:]) == (16, 16)


def test_a_run_without_buckets_is_refused(run: Path, tmp_path: Path) -> None:
    forget_sources()
    train(plan_of(run.parent, "[]"), tmp_path / "run", Interrupt())
    with pytest.raises(UserError, match=r"the data has no data.buckets: its images are square"):
        evaluate(tmp_path / "run", protocol_of(run))
