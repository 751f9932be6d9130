from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest
from torch import Tensor

from tests.stopping import train_to
from tests.tiny import tiny_plan
from tests.tiny_clip import write
from tests.tiny_dino import dino_model
from tintype.errors import UserError
from tintype.losses.alignment import AlignmentTerm
from tintype.losses.repa import RepaSettings
from tintype.plan import Plan
from tintype.runtime.interrupt import Interrupt
from tintype.schedule import Schedule
from tintype.train.loop import train
from tintype.train.record import RunRecord
from tintype.train.steps import Progress
from tintype.vision.part import Teacher
from tintype.vision.scene_encoder import SceneTeacherSettings

SPEC = "repa-burn-in:teacher=scenes,hidden=32"


@pytest.mark.parametrize(
    ("steps", "options", "end"),
    [(1000, "", 250), (1000, ",share=0.1", 100), (1000, ",stop=30", 30), (6, "", 2), (3, "", 1), (2, ",share=0.3", 1)],
)
def test_the_stop_is_a_schedule_of_the_plan(steps: int, options: str, end: int) -> None:
    (loss,) = tiny_plan(f"train.steps={steps}", techniques=[SPEC + options]).losses
    schedule = Schedule(kind="until", end=end)
    assert loss == RepaSettings(block=2, hidden=32, teacher=SceneTeacherSettings(), schedule=schedule)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            "stop=6",
            r"'repa-burn-in': the alignment would stop at step 6, but the run has only 6 steps \(train\.steps\)",
        ),
        ("share=0.99", "would stop at step 6"),
        ("share=0.08", r"share 0\.08 of 6 steps \(train\.steps\) is less than one step"),
        ("stop=2,share=0.5", "give stop .* or share .* not both"),
        ("share=1", "must be below 1"),
        ("stop=0", "must be at least 1"),
        ("schedule.kind=until", "schedule: unknown key"),
        ("block=7", r"block 7 does not exist; model\.depth is 3"),
    ],
)
def test_a_stop_that_makes_no_sense_is_refused(options: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        tiny_plan(techniques=[f"{SPEC},{options}"])


def plan_of(folder: Path) -> Plan:
    return tiny_plan(techniques=[f"repa-burn-in:teacher.kind=dinov2,teacher.source={folder},hidden=32,stop=3"])


def teachers_in_memory() -> int:
    gc.collect()
    kinds = Counter(map(type, gc.get_objects()))
    return sum(count for kind, count in kinds.items() if issubclass(kind, Teacher))


@pytest.mark.slow
def test_at_the_stop_the_teacher_leaves_memory_and_is_not_asked_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = plan_of(write(tmp_path / "dino", dino_model()))
    seen: dict[int, int] = {}
    asked: list[int] = []
    look = AlignmentTerm.look

    def noted(self: AlignmentTerm, image_BCHW: Tensor, ids: Sequence[int]) -> Tensor | None:
        asked.append(len(ids))
        return look(self, image_BCHW, ids)

    monkeypatch.setattr(AlignmentTerm, "look", noted)

    def count(progress: Progress) -> None:
        seen[progress.step] = teachers_in_memory()

    before = teachers_in_memory()
    train(plan, tmp_path / "run", Interrupt(), count)
    assert {step: here - before for step, here in seen.items()} == {0: 1, 1: 1, 2: 1, 3: 0, 4: 0, 5: 0, 6: 0}

    record = RunRecord(tmp_path / "run")
    assert [(e["event"], e["step"], e["loss"]) for e in record.events] == [("loss-over", 3, "repa")]
    lines = record.lines
    assert ["repa" in line for line in lines] == [True] * 3 + [False] * 3
    assert [line["weights"]["repa"] for line in lines] == [0.5] * 3 + [0.0] * 3
    assert asked == [plan.train.batch] * 3


def test_a_run_resumed_after_the_stop_never_loads_the_teacher(tmp_path: Path) -> None:
    folder = write(tmp_path / "dino", dino_model())
    plan = plan_of(folder)
    for stop in (2, 4):
        train_to(plan, tmp_path / f"stop-{stop}", stop)
    (folder / "model.safetensors").unlink()
    assert train(plan, tmp_path / "stop-4", Interrupt()).finished
    with pytest.raises(UserError, match=r"no \.safetensors file"):
        train(plan, tmp_path / "stop-2", Interrupt())
