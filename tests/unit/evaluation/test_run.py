"""A tiny real run, scored by the whole protocol."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

import huggingface_hub.constants
import pytest
import torch
from torch import Tensor

from tests.edit_checked import edit_json
from tests.tiny import tiny_plan
from tests.tiny_clip import write_clip
from tintype.config.strict import parse, read_yaml
from tintype.errors import UserError
from tintype.evaluation import samples as sampling
from tintype.evaluation.fit import readiness_problems, refuse
from tintype.evaluation.progress import Scoring
from tintype.evaluation.protocol import Protocol, definitions
from tintype.evaluation.results import (
    MISREAD_FILE,
    PER_IMAGE_FILE,
    EvaluationResult,
    read_misread,
    read_per_image,
    read_result,
    result_file,
)
from tintype.evaluation.run import evaluate
from tintype.metrics.metric import Measured
from tintype.metrics.scene_accuracy import SHUFFLED, UNSCALED
from tintype.runtime.interrupt import Interrupt
from tintype.train.loop import train
from tintype.train.session import Session
from tintype.vision.part import forget_encoders

GENEVAL = """{"tag": "single_object", "prompt": "a red ball"}
{"tag": "colors", "prompt": "blue grass"}
{"tag": "colors", "prompt": "a ball on grass"}
"""
PROTOCOL = """
count: 24
reference_count: 32
validation_count: 4
encoders: [scenes, {kind: clip, source: CLIP}]
metrics: [fd, mmd_published, recall]
sampler: {steps: 2, batch: 8}
also:
  - {name: short, prompts: short, count: 8, distances: false}
  - {name: free, guidance: {scale: 1}}
  - {name: geneval, prompts: GENEVAL, per_prompt: 2, steps: 1}
"""


BASE = """
count: 24
reference_count: 32
validation_count: 4
metrics: [fd]
sampler: {steps: 2, batch: 8}
"""


@dataclass(frozen=True)
class Scored:
    run: Path
    text: str
    protocol: Protocol
    result: EvaluationResult


@pytest.fixture(scope="module")
def scored(tmp_path_factory: pytest.TempPathFactory) -> Scored:
    folder = tmp_path_factory.mktemp("scored")
    train(tiny_plan(), folder / "run", Interrupt())
    (folder / "geneval.jsonl").write_text(GENEVAL)
    clip = write_clip(folder / "clip")
    text = PROTOCOL.replace("CLIP", str(clip)).replace("GENEVAL", str(folder / "geneval.jsonl"))
    protocol = protocol_of(text)
    return Scored(folder / "run", text, protocol, evaluate(folder / "run", protocol))


def protocol_of(text: str) -> Protocol:
    return parse(Protocol, read_yaml(text, "protocol"))


def test_every_number_that_is_defined_is_measured(scored: Scored) -> None:
    assert set(scored.result.metrics) == set(definitions(scored.protocol))
    assert all(math.isfinite(value) for value in scored.result.metrics.values())


def test_the_error_of_sampling_stands_beside_it_with_its_method(scored: Scored) -> None:
    errors, methods = scored.result.errors, scored.result.error_methods
    assert set(errors) == set(methods) == set(scored.result.metrics) - {"images_per_s"}
    low, high = scored.result.intervals["fd_scenes"]
    assert high - low == pytest.approx(2 * 1.96 * errors["fd_scenes"])
    assert "bootstrap" in methods["scene_accuracy"] and "jackknife" in methods["fd_scenes"]


def test_metrics_of_single_images_keep_a_number_for_each(scored: Scored) -> None:
    found = read_per_image(result_file(scored.run, scored.protocol, scored.result.step))
    distances = {name for name, how in scored.result.error_methods.items() if "bootstrap" not in how}
    assert set(found) == set(scored.result.metrics) - distances - {"images_per_s"}
    for name, values in found.items():
        assert fmean(values) == pytest.approx(scored.result.metrics[name], rel=1e-5, abs=1e-6)


def test_a_run_whose_numbers_of_images_are_damaged_is_scored_again(scored: Scored) -> None:
    file = result_file(scored.run, scored.protocol, scored.result.step).with_name(PER_IMAGE_FILE)
    whole = file.read_text()
    file.write_text(whole.replace("1", "2", 1))
    assert evaluate(scored.run, scored.protocol).metrics == pytest.approx(scored.result.metrics)
    assert file.read_text() == whole


def test_the_words_that_the_shown_images_got_wrong_stand_beside_the_scores(scored: Scored) -> None:
    file = result_file(scored.run, scored.protocol, scored.result.step)
    prompts = [image["prompt"] for image in json.loads(file.with_name(MISREAD_FILE).read_text())["images"]]
    found = read_misread(file)
    assert len(found) == len(prompts) == len(scored.result.previews)
    remarks = [
        (prompt[one.start : one.end], one.words) for prompt, of in zip(prompts, found, strict=True) for one in of
    ]
    assert remarks, "a model of a few steps draws no scene as asked"
    for words, remark in remarks:
        drawn, _, asked = remark.removeprefix("drawn ").partition(", asked ")
        assert remark == "not drawn" or drawn != asked
        assert words and (remark == "not drawn" or asked in words or asked.isdigit())


def test_benchmark_prompts_are_scored_by_group(scored: Scored) -> None:
    parts = scored.result.details["clip_score_clip_geneval"]
    assert set(parts) == {"tag: single_object", "tag: colors"}
    mean = (2 * parts["tag: single_object"] + 4 * parts["tag: colors"]) / 6
    assert scored.result.metrics["clip_score_clip_geneval"] == pytest.approx(mean)
    assert "fd_scenes_geneval" not in scored.result.metrics, "there are no real images of these prompts"


def test_scenes_are_scored_by_attribute(scored: Scored) -> None:
    parts, real = scored.result.details["scene_accuracy"], scored.result.real["scene_accuracy"]
    assert {"shape", "colour", UNSCALED, SHUFFLED} <= set(parts) and set(real) == {*parts, "overall"}
    assert real["overall"] == pytest.approx(1)
    share = (parts[UNSCALED] - parts[SHUFFLED]) / (real[UNSCALED] - parts[SHUFFLED])
    assert scored.result.metrics["scene_accuracy"] == pytest.approx(share)
    both, accuracy = ["objects_right", "objects_right_free"], ["scene_accuracy", "scene_accuracy_free"]
    assert set(scored.result.real) == {*both, *accuracy, "scene_accuracy_short"}


def test_the_encoders_are_written_into_the_result(scored: Scored) -> None:
    clip = scored.result.encoders["clip"]
    assert len(clip.identity) == 64 and "bicubic" in clip.definition


def test_too_few_images_come_with_a_note(scored: Scored) -> None:
    assert any("no full covariance" in text for text in scored.result.warnings)


def test_a_second_evaluation_is_read_from_the_disk(scored: Scored, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tintype.evaluation.run.load_run", None)
    stored = evaluate(scored.run, scored.protocol)
    assert stored == scored.result.model_copy(update={"seconds": stored.seconds})  # a test before may have scored again


def test_a_metric_added_later_needs_no_new_sampling(scored: Scored, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sampling, "generate", None)
    more = evaluate(scored.run, protocol_of(scored.text.replace("[fd,", "[fd, kid, coverage,")))
    same = {name: value for name, value in more.metrics.items() if name in scored.result.metrics}
    assert same == scored.result.metrics and "kid_clip" in more.metrics


def test_progress_reaches_its_total(scored: Scored) -> None:
    seen: list[Scoring] = []
    text = scored.text.replace("sampler: {steps: 2", "sampler: {steps: 3")
    evaluate(scored.run, protocol_of(text), seen.append)
    shares = [now.share for now in seen]
    assert shares == sorted(shares) and (shares[0], shares[-1]) == (0, 1)
    last = {now.doing: now for now in seen}
    assert {now.done for now in last.values() if now.total is None} == {0}
    assert all(now.done == pytest.approx(now.total) for now in last.values() if now.total is not None)
    assert last["sampling"].total and last["encoding with scenes"].total


def test_repeated_images_come_with_a_note(scored: Scored, monkeypatch: pytest.MonkeyPatch) -> None:
    """As when every image starts from the same noise and the model hardly hears its prompt."""
    from tintype.sampling.generate import generate as real

    def repeated(parts: Session, prompts: Sequence[str], *settings: Any, **more: Any) -> Tensor:
        return real(parts, ["the same"], *settings, **{**more, "first_index": 0}).repeat(len(prompts), 1, 1, 1)

    monkeypatch.setattr(sampling, "generate", repeated)
    result = evaluate(scored.run, protocol_of(scored.text.replace("count: 24", "count: 25") + "seed: 9\n"))
    assert any("24 of 25 images" in text and "the model gives 1 different images" in text for text in result.warnings)


def test_conditions_that_differ_in_their_count_only_share_images_and_not_scores(scored: Scored) -> None:
    alone = evaluate(scored.run, protocol_of(BASE + "also: []\n"))
    both = evaluate(scored.run, protocol_of(BASE + "also: [{name: few, count: 9}]\n"))
    assert {name: both.metrics[name] for name in alone.metrics} == alone.metrics
    few = evaluate(scored.run, protocol_of(BASE.replace("count: 24", "count: 9", 1) + "also: []\n"))
    assert both.metrics["scene_accuracy_few"] == few.metrics["scene_accuracy"]


def test_a_result_of_other_weights_is_not_read_again(scored: Scored, tmp_path: Path) -> None:
    text = BASE + f"encoders: [{{kind: clip, source: {tmp_path / 'clip'}}}]\n"
    results = []
    for seed in (0, 1):
        write_clip(tmp_path / "clip", seed)
        forget_encoders()
        results.append(evaluate(scored.run, protocol_of(text)))
    first, second = results
    assert first.encoders["clip"].identity != second.encoders["clip"].identity
    assert first.metrics["fd_clip"] != second.metrics["fd_clip"]


def test_a_result_of_another_tokenizer_is_not_read_again(scored: Scored, tmp_path: Path) -> None:
    text = BASE + f"encoders: [{{kind: clip, source: {write_clip(tmp_path / 'clip')}}}]\n"
    first = evaluate(scored.run, protocol_of(text))
    tokenizer = tmp_path / "clip" / "tokenizer.json"
    tokenizer.write_text(tokenizer.read_text().replace('"grass"', '"lawn"'))
    forget_encoders()
    second = evaluate(scored.run, protocol_of(text)).encoders["clip"]
    assert second.identity == first.encoders["clip"].identity
    assert second.text != first.encoders["clip"].text


def test_a_number_that_is_not_finite_is_an_error(scored: Scored, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tintype.metrics.scene_accuracy.mean_with_error", lambda values: Measured(math.nan))
    with pytest.raises(UserError, match=r"the model has diverged; these scores are not finite: scene_accuracy"):
        evaluate(scored.run, protocol_of(BASE + "seed: 77\n"))


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ("encoders: [clip]\nalso: [{name: a, prompts: nowhere.jsonl}]\n", "cannot read the prompts in nowhere.jsonl"),
        ("encoders: [{kind: clip, source: ./nowhere}]\n", "nowhere"),
    ],
)
def test_what_is_missing_is_found_before_training(more: str, message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)  # or CLIP would be asked for, and waited for
    with pytest.raises(UserError, match=message):
        refuse(readiness_problems(protocol_of(more), [], torch.device("cpu")))


def test_a_result_of_another_version_is_refused(scored: Scored, tmp_path: Path) -> None:
    stored = result_file(scored.run, scored.protocol, 6)
    old = tmp_path / "result.json"
    shutil.copy(stored, old)
    edit_json(old, lambda result: result.update(format=1))
    with pytest.raises(UserError, match=r"was written in format 1; .* to score it again"):
        read_result(old)
