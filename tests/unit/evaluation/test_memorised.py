"""A run is asked for copies of its training images: by its training captions, beside captions that it never saw."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from PIL import Image

from tests.edit_checked import edit_json
from tests.tiny import GOLDEN_PLAN, tiny_plan
from tests.tiny_store import tiny_store
from tintype.config.strict import parse, read_yaml
from tintype.data.scenes.source import SceneSource
from tintype.errors import DamagedFileError, UserError
from tintype.evaluation.fit import readiness_problems
from tintype.evaluation.memorised import ask_for_copies, find_copies
from tintype.evaluation.protocol import ImageProtocol, Protocol, definitions
from tintype.evaluation.reference import ScoredData
from tintype.evaluation.results import EvaluationResult, read_result, result_file
from tintype.evaluation.run import evaluate
from tintype.evaluation.samples import Samples
from tintype.plan import Plan, read_plan
from tintype.runtime.interrupt import Interrupt
from tintype.study.folder import _keep_prompts
from tintype.train.loop import train
from tintype.vision.scene_encoder import scene_features

PROTOCOL = """
count: 8
reference_count: 16
validation_count: 4
metrics: [fd, memorised, memorised_own]
training_count: 16
memorisation: {captions: 8, guidance: [1, 3]}
sampler: {steps: 1, batch: 24}
also: []
"""


def protocol_of(*more: str) -> Protocol:
    document = read_yaml(PROTOCOL, "protocol")
    for one in more:
        document.override(one)
    return parse(Protocol, document)


@pytest.fixture(scope="module")
def scored(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, EvaluationResult]:
    run = tmp_path_factory.mktemp("memorised") / "run"
    train(tiny_plan("train.steps=1"), run, Interrupt())
    return run, evaluate(run, protocol_of())


def test_a_run_is_asked_with_its_training_captions(scored: tuple[Path, EvaluationResult]) -> None:
    run, result = scored
    assert set(result.metrics) == set(definitions(protocol_of()))
    assert any("16 of 24 training images" in text for text in result.warnings)
    found = result.copies["scenes"]
    assert found.verdict == "unlike the data" and found.captions == 8 and set(found.any) == {"all", "1", "3"}
    for name, rates in (("memorised_scenes", found.any), ("memorised_own_scenes", found.own)):
        assert result.metrics[name] == pytest.approx(rates["all"].difference)
        assert result.intervals[name] == (rates["all"].low, rates["all"].high)
    for pair in found.pairs:
        with Image.open(run / pair.image) as image:
            assert image.size == (34, 16), "the sample and the training image side by side"
    assert evaluate(run, protocol_of()) == result, "it is read, not scored again"


def test_a_changed_image_of_a_pair_is_noticed(scored: tuple[Path, EvaluationResult]) -> None:
    run, result = scored
    first, second = result.copies["scenes"].pairs[:2]
    before = (run / first.image).read_bytes()
    (run / first.image).write_bytes((run / second.image).read_bytes())
    with pytest.raises(DamagedFileError, match="copy-scenes-0"):
        read_result(result_file(run, protocol_of(), result.step))
    (run / first.image).write_bytes(before)


def test_a_result_of_before_copies_were_asked_for_can_be_read(scored: tuple[Path, EvaluationResult]) -> None:
    """Its value was the share on held-out prompts, by another definition: its protocol has another hash."""
    run, result = scored
    file = result_file(run, protocol_of(), result.step)
    kept = file.read_bytes()

    def older(content: dict[str, Any]) -> None:
        del content["copies"], content["protocol"]["memorisation"]

    edit_json(file, older)
    assert read_result(file).copies == {} and "memorised_scenes" in read_result(file).metrics
    file.write_bytes(kept)


def samples_are_copies(plan: Plan, protocol: Protocol, folder: Path) -> tuple[float, float]:
    """Return both figures of a model that returns the image of each caption, seen or not."""
    asked = ask_for_copies(folder, 1, plan, ScoredData(plan.data), protocol)
    assert asked is not None
    sides = []
    for question, samples in ((asked.questions.training, asked.training), (asked.questions.unseen, asked.unseen)):
        image_NCHW = question.source.images([question.ids[row] for row in question.own_N])
        if question is asked.questions.unseen:
            image_NCHW = image_NCHW.flip(3).roll(1, 1)
        sides.append([_Fixed(one, image_NCHW) for one in samples])
    training, unseen = (cast(list[Samples], side) for side in sides)
    made = replace(asked, training=training, unseen=unseen)
    found = find_copies(made, scene_features(torch.device("cpu")))
    assert found is not None
    return found.recall.rate("any").difference, found.recall.rate("own").difference


class _Fixed:
    """Samples of a model that is not there."""

    def __init__(self, samples: object, image_NCHW: torch.Tensor) -> None:
        self.image_NCHW = image_NCHW

    def blocks(self, size: int) -> list[tuple[int, int]]:
        return [(0, len(self.image_NCHW))]

    def read(self, first: int, last: int) -> torch.Tensor:
        return self.image_NCHW[first:last]


def test_captions_are_paired_with_their_own_images(tmp_path: Path) -> None:
    """Ask with the captions of the data, and with a file that has some of them in another order."""
    plan = tiny_plan("data.count=40")
    source = SceneSource(plan.data, "train", torch.device("cpu"))  # type: ignore[arg-type]
    captions = [source.records([id_])[0].captions["long"] for id_ in (39, 3, 17, 8)]
    (tmp_path / "asked.txt").write_text("\n".join(captions))
    for prompts in (None, tmp_path / "asked.txt"):
        protocol = protocol_of(*([f"memorisation.prompts={prompts}"] if prompts else []), "reference_count=64")
        any_, own = samples_are_copies(plan, protocol, tmp_path)
        assert any_ > 0.8 and own > 0.8


def test_unseen_images_are_like_those_of_training_and_not_among_them(tmp_path: Path) -> None:
    asked = ask_for_copies(tmp_path, 1, tiny_plan(), ScoredData(tiny_plan().data), protocol_of())
    assert asked is not None
    training, unseen = asked.questions.training, asked.questions.unseen
    assert len(training.ids) == len(unseen.ids) == 16 and not {*unseen.ids} & {*asked.questions.others}
    seen = {image.numpy().tobytes() for image in training.source.images(range(24))}
    assert not seen & {image.numpy().tobytes() for image in unseen.source.images(range(32))}
    pairs = {
        (one.colour, one.shape) for record in unseen.source.records(range(32)) for one in record.attributes.objects
    }
    assert not pairs & {*tiny_plan().data.objects.held_out_pairs}, "held-out pairs are no images like training's"  # type: ignore[attr-defined]


def test_a_store_asks_its_held_out_captions(tmp_path: Path) -> None:
    plan = tiny_plan("data.kind=store", f"data.path={tiny_store(tmp_path)}")
    asked = ask_for_copies(tmp_path, 1, plan, ScoredData(plan.data), protocol_of("encoders=[vgg16]"))
    assert asked is not None
    unseen, others = asked.questions.unseen, asked.questions.others
    assert len(unseen.ids) == len(asked.questions.training.ids) and len(unseen.ids) + len(others) <= len(unseen.source)


def test_a_model_is_asked_in_the_captions_that_it_read(tmp_path: Path) -> None:
    plan = tiny_plan(techniques=["short-captions"])
    asked = ask_for_copies(tmp_path, 1, plan, ScoredData(plan.data), protocol_of())
    assert asked is not None
    question = asked.questions.training
    assert question.captions[0] == question.source.records([question.ids[question.own_N[0]]])[0].captions["short"]


def test_captions_of_a_file_must_be_training_captions(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("a caption of my own\n")
    protocol = protocol_of(f"memorisation.prompts={tmp_path / 'mine.txt'}")
    with pytest.raises(UserError, match=r"1 of 1 captions of .*mine.txt belong to no training image"):
        ask_for_copies(tmp_path, 1, tiny_plan(), ScoredData(tiny_plan().data), protocol)


def test_a_study_keeps_the_file_of_captions(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("a caption\n")
    protocol = protocol_of(f"memorisation.prompts={tmp_path / 'mine.txt'}")
    kept, before = _keep_prompts(protocol, tmp_path / "out"), protocol.hash
    (tmp_path / "mine.txt").unlink()
    assert kept.with_prompts_in(tmp_path / "out").hash == before
    assert (tmp_path / "out" / str(kept.memorisation.prompts)).read_text() == "a caption\n"


def test_protocols_without_it_keep_their_hash() -> None:
    asked = protocol_of().memorisation
    assert Protocol(training_count=5, memorisation=asked).hash == Protocol().hash
    measured = Protocol(metrics=("fd", "memorised"))
    hashes = {measured.hash, Protocol(metrics=("fd",)).hash}
    hashes |= {measured.model_copy(update=one).hash for one in ({"training_count": 5}, {"memorisation": asked})}
    assert len(hashes) == 4


def test_two_sets_of_images_have_no_training_images() -> None:
    with pytest.raises(UserError, match="unknown metric 'memorised'"):
        parse(ImageProtocol, read_yaml("metrics: [memorised]", "protocol"))


@pytest.mark.slow
def test_a_model_of_six_images_is_found_to_copy_them(tmp_path: Path) -> None:
    """Held-out prompts alone do not show it. It takes as long as a model needs to learn six images by heart."""
    plan = read_plan(str(GOLDEN_PLAN), ["data.count=6", "train.steps=300", "run.log_every_steps=100"])
    train(plan, tmp_path, Interrupt())
    protocol = protocol_of("reference_count=256", "memorisation.captions=24", "sampler.steps=12")
    result = evaluate(tmp_path, protocol)
    found = result.copies["scenes"]
    assert found.verdict == "copies" and found.own["1"].training >= 0.95 and found.any["all"].unseen <= 0.1
    assert result.intervals["memorised_own_scenes"][0] > 0 and len(found.pairs) == 6
    assert all(pair.own and pair.counts for pair in found.pairs)


def test_a_source_that_training_never_reads_is_named(tmp_path: Path) -> None:
    mixed = "mixture:own=real,share=0,add.other.data.seed=1"
    plan = tiny_plan(techniques=[mixed])
    asked = ask_for_copies(tmp_path, 1, plan, ScoredData(plan.data), protocol_of())
    assert asked is not None and "reads the source 'real', but training never does" in asked.questions.note


def test_captions_of_no_training_image_are_found_before_training(tmp_path: Path) -> None:
    """Training captions are those of the data that is trained on, whatever it is scored against."""
    data, cpu = tiny_plan("data.evaluate_style=photo").data, torch.device("cpu")
    own = SceneSource(data.memorisable, "train", cpu).records([5])[0].captions["long"]  # type: ignore[arg-type]
    other = SceneSource(data.scored, "train", cpu).records([5])[0].captions["long"]  # type: ignore[arg-type]
    for caption, wrong in ((own, False), (other, True)):
        (file := tmp_path / f"asked-{wrong}.txt").write_text(caption)
        found = readiness_problems(protocol_of(f"memorisation.prompts={file}"), [data], cpu)
        assert [one.fixes for one in found] == [("memorisation.prompts=null",)] * wrong
