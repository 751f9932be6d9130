"""Scores along training: which protocol, which steps, and what becomes of the kept weights."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.tiny import tiny_plan
from tintype.errors import DivergedError
from tintype.evaluation import early
from tintype.evaluation.early import early_protocol, lost_steps, score_along
from tintype.evaluation.progress import Scoring
from tintype.evaluation.protocol import Condition, Protocol, definitions
from tintype.evaluation.results import read_result, result_file
from tintype.evaluation.run import evaluate
from tintype.runtime.interrupt import Interrupt
from tintype.sampling.generate import SamplerSettings
from tintype.train import checkpoint
from tintype.train.loop import train
from tintype.train.record import RunRecord

FULL = Protocol(
    count=16,
    also=(),
    reference_count=16,
    validation_count=4,
    sampler=SamplerSettings(steps=2, batch=8),
    metrics=("fd",),
)
CHEAP = early_protocol(FULL, ["fd_scenes"], 8)


def silent(step: int, now: Scoring) -> None:
    pass


@pytest.mark.parametrize(
    ("count", "asked", "images"), [(2048, None, 512), (512, None, 128), (300, None, 128), (100, None, 100), (512, 8, 8)]
)
def test_they_are_taken_on_a_quarter_of_the_images_and_on_128_at_least(
    count: int, asked: int | None, images: int
) -> None:
    found = early_protocol(Protocol(count=count), ["fd_scenes"], asked)
    assert found.count == images
    assert (found.seed, found.sampler, found.reference_count) == (0, SamplerSettings(), Protocol().reference_count)


def test_only_samplings_that_the_metrics_need_are_left() -> None:
    also = (Condition(name="short", prompts="short", count=256, distances=False), Condition(name="more", steps=9))
    full = Protocol(also=also)
    assert early_protocol(full, ["scene_accuracy", "validation_loss"]).also == ()
    (short,) = early_protocol(full, ["scene_accuracy_short"]).also
    assert (short.name, short.count) == ("short", 128)
    assert "scene_accuracy_short" in definitions(early_protocol(full, ["scene_accuracy_short"]))


def test_kept_weights_are_scored_as_their_checkpoint_would_be_and_then_dropped(tmp_path: Path) -> None:
    plan, run, short = tiny_plan(techniques=["ema"]), tmp_path / "run", tmp_path / "short"
    train(plan, run, Interrupt(), keep_at=(4, 5))
    stopped = Interrupt()

    def stop(progress: object) -> None:
        if getattr(progress, "step", 0) == 4:
            stopped.signal = 15

    train(plan, short, stopped, stop)  # its newest checkpoint is that of step 4
    score_along(run, (4,), CHEAP, 6, silent)
    found, wanted = read_result(result_file(run, CHEAP, 4)), evaluate(short, CHEAP)
    assert wanted.step == 4
    for name in ("fd_scenes", "validation_loss", "scene_accuracy"):
        assert found.metrics[name] == wanted.metrics[name]
    assert not RunRecord(run).kept.exists(), "those of step 5 were kept for an earlier setting"
    assert not result_file(run, CHEAP, 5).exists()
    assert read_result(result_file(run, CHEAP, 6)).metrics["fd_scenes"] == evaluate(run, CHEAP).metrics["fd_scenes"]


def test_the_last_score_needs_no_new_images(tmp_path: Path) -> None:
    train(tiny_plan(), tmp_path / "run", Interrupt())
    evaluate(tmp_path / "run", FULL)
    sampled: list[float] = []
    score_along(
        tmp_path / "run",
        (),
        CHEAP,
        6,
        lambda step, now: sampled.append(now.total or 0) if now.doing == "sampling" else None,
    )
    assert sampled and set(sampled) == {0}


def test_weights_that_cannot_be_scored_are_an_event_and_leave_the_run_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = tmp_path / "run"
    train(tiny_plan(), run, Interrupt(), keep_at=(2, 3))
    damaged = checkpoint.tensors_file(checkpoint.folder_of(RunRecord(run).kept, 2))
    content = damaged.read_bytes()
    damaged.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))

    def diverged(*given: object, **named: object) -> object:
        if named.get("kept_step") == 3:
            raise DivergedError("not finite: fd_scenes")
        return evaluate(*given, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(early, "evaluate", diverged)
    score_along(run, (2, 3), CHEAP, 6, silent)
    events = [(one["event"], one["step"], one["reason"]) for one in RunRecord(run).events]
    assert [(kind, step) for kind, step, _ in events] == [("not-scored", 2), ("not-scored", 3)]
    assert "does not match its checksum" in events[0][2] and events[1][2] == "not finite: fd_scenes"
    assert result_file(run, CHEAP, 6).exists() and not RunRecord(run).kept.exists()


def test_a_damaged_score_is_set_aside_since_its_weights_are_gone(tmp_path: Path) -> None:
    run = tmp_path / "run"
    train(tiny_plan(), run, Interrupt(), keep_at=(3,))
    score_along(run, (3,), CHEAP, 6, silent)
    file = result_file(run, CHEAP, 3)
    file.write_text(file.read_text().replace('"step": 3', '"step": 2'))
    score_along(run, (3,), CHEAP, 6, silent)
    (event,) = RunRecord(run).events
    assert (event["event"], event["step"], file.exists()) == ("not-scored", 3, False)


def test_steps_that_were_trained_without_keeping_them_are_known(tmp_path: Path) -> None:
    run = tmp_path / "run"
    assert lost_steps(run, (2, 3), CHEAP) == []
    train(tiny_plan(), run, Interrupt(), keep_at=(3,))
    assert lost_steps(run, (2, 3), CHEAP) == [2]
    score_along(run, (3,), CHEAP, 6, silent)
    assert lost_steps(run, (2, 3), CHEAP) == [2]
