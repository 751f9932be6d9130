"""The caption techniques: what is read when, that a run reads the same however it is cut, and what is refused."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import pytest
import torch

from tests.gaussian import NoText
from tests.tiny import tiny_plan
from tintype.data.captions import CurriculumSettings, captions_of
from tintype.data.scenes.source import SceneSource
from tintype.errors import UserError
from tintype.plan import Plan, plan_from_yaml
from tintype.runtime.clock import Clock
from tintype.runtime.interrupt import Interrupt
from tintype.schedule import Schedule
from tintype.seams import Draws, Record
from tintype.techniques.apply import apply_techniques
from tintype.train.batch import read_batch
from tintype.train.loop import train
from tintype.train.session import build_session

BOTH = {"long": "l", "short": "s"}
GRID = [(index + 0.5) / 1000 for index in range(1000)]


def shares(plan: Plan, step: int = 0, count: int = 20_000) -> dict[str, float]:
    records = [Record(BOTH, None)] * count
    settings = plan.captions.model_copy(update={"dropout": 0.0})
    texts = captions_of(records, settings, Draws(3, torch.arange(count)), step, NoText()).texts
    return {text: number / count for text, number in Counter(texts).items()}


def read(plan: Plan, cuts: list[int]) -> list[str]:
    """The captions of the first positions, read in batches between these cuts; four positions are a step."""
    parts = build_session(plan)
    batches = [read_batch(parts, one, other - one, one // 4, Clock(parts.device)) for one, other in pairwise(cuts)]
    return [caption for batch in batches for caption in batch.captions]


def test_the_mix_has_its_weights() -> None:
    found = shares(tiny_plan(techniques=["caption-mix:weights.long=0.7,weights.short=0.3"]))
    assert found == pytest.approx({"l": 0.7, "s": 0.3}, abs=0.01)


def test_the_curriculum_goes_from_the_first_column_to_the_mix() -> None:
    plan = tiny_plan("train.steps=100", techniques=["caption-curriculum:weights.long=1,weights.short=3"])
    assert plan.captions.model_dump()["schedule"] == {"kind": "ramp", "start": 50, "end": 75}
    assert shares(plan, 0) == shares(plan, 49) == {"l": 1.0}
    assert shares(plan, 62) == pytest.approx({"l": 1 - 0.75 * 13 / 25, "s": 0.75 * 13 / 25}, abs=0.01)
    assert shares(plan, 74) == pytest.approx({"l": 0.25, "s": 0.75}, abs=0.01)
    assert shares(plan, 99) == shares(plan, 74)


@pytest.mark.parametrize(("steps", "start", "end", "expected"), [(3, 0.4, 0.45, (1, 2)), (4, 0.9, 1.0, (3, 4))])
def test_shares_of_a_short_training_are_a_step_apart(
    steps: int, start: float, end: float, expected: tuple[int, int]
) -> None:
    technique = f"caption-curriculum:start={start},end={end}"
    schedule = tiny_plan(f"train.steps={steps}", techniques=[technique]).captions.model_dump()["schedule"]
    assert (schedule["start"], schedule["end"]) == expected


def test_an_image_that_lacks_the_caption_of_the_moment_reads_another() -> None:
    policy = CurriculumSettings(first="long", weights={"short": 1.0}, schedule=Schedule(kind="ramp", start=5, end=6))
    assert {policy.pick({"short": "s", "long": ""}, u, 0) for u in GRID} == {"s"}
    assert {policy.pick({"long": "l"}, u, 9) for u in GRID} == {"l"}
    assert policy.pick({}, 0.5, 9) == ""


@pytest.mark.parametrize(
    "technique",
    [
        *("caption-mix", "caption-curriculum:start=1,end=5", "caption-parts"),
        *("caption-truncation:words=5", "caption-tokens:tokens=5"),
    ],
)
def test_a_run_reads_the_same_captions_however_its_steps_are_cut(technique: str) -> None:
    """Whole steps, micro-batches, or the shares of two ranks."""
    plan = tiny_plan("train.batch=4", techniques=[technique])
    steps = read(plan, [0, 4, 8, 12, 16, 20, 24])
    assert steps == read(plan, list(range(0, 25, 2))) == read(plan, list(range(25)))
    assert steps != read(tiny_plan("train.batch=4"), [0, 4, 8, 12, 16, 20, 24])


def test_parts_and_words_act_on_what_was_picked() -> None:
    plan = tiny_plan("captions.dropout=0", techniques=["caption-parts", "caption-mix", "caption-truncation:words=4"])
    whole = read(tiny_plan("captions.dropout=0", techniques=["caption-mix"]), [0, 24])
    found = read(plan, [0, 24])
    assert found != whole and all(1 <= len(text.split()) <= 4 for text in found)
    for some, text in zip(found, whole, strict=True):
        assert set(some.split()) <= {*text.split(), *text.replace(",", "").split()}


def test_a_technique_keeps_what_is_done_to_captions() -> None:
    plan = tiny_plan("captions.dropout=0.3", "captions.max_words=7", techniques=["caption-mix"])
    back = apply_techniques(plan, ["long-captions"])
    assert back == tiny_plan("captions.dropout=0.3", "captions.max_words=7")


def test_samples_without_any_caption_are_counted_in_the_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = tiny_plan(techniques=["caption-mix"])
    train(plan, tmp_path / "whole", Interrupt())
    assert all("without_caption" not in json.loads(line) for line in _lines(tmp_path / "whole"))
    described = SceneSource.records

    def half_described(source: SceneSource, ids: Sequence[int]) -> list[Record]:
        return [Record({"long": "", "short": " "}, None) if id_ % 2 else described(source, [id_])[0] for id_ in ids]

    monkeypatch.setattr(SceneSource, "records", half_described)
    train(plan, tmp_path / "some", Interrupt())
    assert sum(json.loads(line).get("without_caption", 0) for line in _lines(tmp_path / "some")) == 12


def _lines(folder: Path) -> list[str]:
    return (folder / "metrics.jsonl").read_text().splitlines()


@pytest.mark.parametrize(
    ("technique", "message"),
    [
        ("caption-mix:weights.long=0,weights.short=0", "the weight of 'long' is 0"),
        ("caption-mix:weights.long=2,weights.short=-1", "the weight of 'short' is -1"),
        ("caption-mix:weights.long=1e999,weights.short=1", "weights.long: must be a finite number"),
        ("caption-mix:weights.long=1", "a mix of 'long' alone is no mix"),
        ("caption-curriculum:weights.long=1", "from 'long' to 'long' changes nothing"),
        ("caption-curriculum:start=2,end=7", r"ends at step 7, but the run has 6 steps \(train\.steps\)"),
        ("caption-curriculum:start=4,end=3", r"must end \(step 3\) after it starts \(step 4\)"),
        ("caption-curriculum:start=0.9,end=0.5", r"must end \(step 3\) after it starts \(step 5\)"),
        ("caption-curriculum:end=1.5", "a whole number of at least 0, or as a share"),
        ("caption-parts:keep=0", "must be above 0"),
        ("caption-parts:keep=1.1", "must be at most 1"),
        ("caption-parts:keep=1", "changes nothing"),
        ("caption-truncation", "words: this key is required"),
        ("caption-truncation:words=0", "must be at least 1"),
        ("long-captions", "'long-captions' changes nothing"),
    ],
)
def test_bad_options_are_refused_by_name(technique: str, message: str) -> None:
    with pytest.raises(UserError, match=message) as refused:
        tiny_plan(techniques=[technique])
    assert technique.partition(":")[0] in str(refused.value)


def test_a_curriculum_without_end_is_refused() -> None:
    with pytest.raises(UserError, match="is a mix: take the kind mix"):
        tiny_plan("captions.kind=curriculum", "captions.first=long", "captions.weights.short=1", "captions.schedule={}")


@pytest.mark.parametrize("schedule", ["{kind: cosine, start: 5, end: 6}", "{kind: until, start: 0, end: 6}"])
def test_a_curriculum_that_does_not_change_in_the_run_is_refused(schedule: str) -> None:
    curriculum = ["captions.kind=curriculum", "captions.first=long", "captions.weights.short=1"]
    with pytest.raises(UserError, match=r"the caption curriculum never changes in 6 steps .* captions\.schedule is"):
        tiny_plan(*curriculum, f"captions.schedule={schedule}")
    assert tiny_plan(*curriculum, f"captions.schedule={schedule}", "train.steps=7").captions


@pytest.mark.parametrize("technique", ["caption-mix", "caption-curriculum"])
def test_a_column_that_the_data_lacks_is_refused_before_the_first_step(technique: str) -> None:
    plan = tiny_plan(techniques=[f"{technique}:weights.long=1,weights.tags=1"])
    with pytest.raises(UserError, match="no caption column 'tags'; its caption columns are long, short"):
        build_session(plan)


def test_a_mistake_in_captions_names_its_key() -> None:
    """The kind `column` has a key `column`."""
    for text, message in (
        ("captions: {column: 3}", "captions.column: must be text .found 3.; put it in quotes"),
        ("captions: {column: short, dropout: 2}", "captions.dropout: must be"),
        ("captions: {column: short, droput: 0}", "captions.droput: unknown key; did you mean 'dropout'"),
        ("captions: {kind: mix, column: short}", "captions.weights: this key is required"),
    ):
        with pytest.raises(UserError, match=message):
            plan_from_yaml(text, "plan")
