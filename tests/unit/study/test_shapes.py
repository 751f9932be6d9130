"""Shapes of plans, what was measured of them in a study's folder, and the timer of steps."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.tiny import tiny_plan
from tests.unit.study.example_results import example
from tests.unit.study.test_adaptive import study_with
from tests.unit.study.test_work import work
from tests.written_runs import Writer
from tintype.plan import Plan, read_plan
from tintype.runtime import notes
from tintype.runtime.files import write_checked
from tintype.runtime.interrupt import Interrupt
from tintype.settings import RunSettings
from tintype.study import shapes
from tintype.study.lab import prepare_study, report_study
from tintype.study.report import write_report
from tintype.study.results import Alone
from tintype.study.shapes import (
    IN_SHAPE,
    MEASURED,
    ShapeFacts,
    StepTimer,
    copy_shapes,
    is_steady,
    note_shape,
    read_alone,
    read_shapes,
    shape_of,
)
from tintype.techniques.apply import apply_techniques
from tintype.train.loop import train
from tintype.train.record import RunRecord

H200 = "NVIDIA H200"
GB = 1_000_000_000


def mini(*assignments: str) -> Plan:
    return read_plan("mini", assignments)


@pytest.mark.parametrize(
    "setting",
    [
        "seed=7",
        "start={kind: arm, name: other, plan: 0123456789abcdef}",
        "optimizer.lr=0.01",
        "optimizer.beta2=0.5",
        "optimizer.eps=1e-8",
        "optimizer.weight_decay=0.1",
        "train.steps=77",
        "train.warmup_steps=3",
        "train.schedule=cosine",
        "train.clip_norm=1.0",
        "run.save_every_steps=5",
        "run.device=cpu",
        "run.trackers=[tensorboard]",
    ],
)
def test_what_cannot_change_a_step_is_no_part_of_the_shape(setting: str) -> None:
    assert shape_of(mini(setting)) == shape_of(mini())


def test_what_changes_a_step_makes_another_shape() -> None:
    plans = [
        mini(),
        mini("train.batch=64"),
        mini("data.size_px=32"),
        mini("precision.compute=fp32"),
        mini("model.compile=false"),
        mini("optimizer.kind=muon"),
        mini("optimizer={kind: muon, newton_schulz_steps: 3}"),
        mini("train.clip_norm=null"),
        mini("ema.decay=0.9"),
        mini("run.deterministic=false"),
        mini("train.stages=[{size_px: 32, until: 10}]"),
        apply_techniques(mini(), ["tread"]),
    ]
    assert len({shape_of(plan) for plan in plans}) == len(plans)


def test_every_housekeeping_setting_is_in_the_shape_or_known_to_change_no_step() -> None:
    """A new one fails this test until somebody decides."""
    free = {"device", "save_every_steps", "keep_checkpoints", "trackers", "tracker_project", "watchdog"}
    assert free | {"latents_folder", "protocol"} == RunSettings.model_fields.keys() - IN_SHAPE


def test_the_steps_of_a_run_with_stages_or_parts_that_end_differ() -> None:
    assert is_steady(mini()) and is_steady(apply_techniques(mini(), ["tread"]))
    assert not is_steady(mini("train.stages=[{size_px: 32, until: 10}]"))
    assert not is_steady(apply_techniques(mini("train.steps=100"), ["tread:dense=0.1"]))


def test_facts_are_kept_by_shape_and_device_with_the_larger_peak_and_the_newest_time(tmp_path: Path) -> None:
    note_shape(tmp_path, "a", ShapeFacts(H200, 13 * GB, 2 * GB, 0.027, 40))
    note_shape(tmp_path, "a", ShapeFacts(H200, 12 * GB, 3 * GB, 0.026, 30))
    note_shape(tmp_path, "a", ShapeFacts(H200, 14 * GB))
    note_shape(tmp_path, "a", ShapeFacts("NVIDIA A100", 9 * GB))
    note_shape(tmp_path, "b", ShapeFacts(H200, step_s=0.5, steps=8))
    assert read_shapes(tmp_path, H200) == {
        "a": ShapeFacts(H200, 14 * GB, 3 * GB, 0.026, 30),
        "b": ShapeFacts(H200, step_s=0.5, steps=8),
    }
    assert read_shapes(tmp_path, "NVIDIA A100") == {"a": ShapeFacts("NVIDIA A100", 9 * GB)}
    assert read_shapes(tmp_path / "none", H200) == {}


def test_a_peak_that_another_machine_overwrote_is_written_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write, place = write_checked, "tintype.study.shapes.write_checked"

    def overwritten(file: Path, content: dict[str, object]) -> None:
        monkeypatch.setattr(place, write)
        write(file, content)
        note_other()

    def note_other() -> None:
        write(file, {"shape": "a", **vars(ShapeFacts(H200, 5 * GB, step_s=0.03, steps=9))})

    (tmp_path / MEASURED).mkdir()
    file = shapes._file(tmp_path, "a", H200)
    monkeypatch.setattr(place, overwritten)
    note_shape(tmp_path, "a", ShapeFacts(H200, 7 * GB))
    assert read_shapes(tmp_path, H200)["a"] == ShapeFacts(H200, 7 * GB, step_s=0.03, steps=9)


@pytest.mark.parametrize(
    "damage",
    [
        lambda text: text.replace("13000000000", "99000000000"),
        lambda text: text[:40],
        lambda text: "",
        lambda text: "[]",
    ],
    ids=["changed", "cut short", "empty", "another thing"],
)
def test_a_damaged_file_counts_as_missing_and_is_said(
    damage: Callable[[str], str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    monkeypatch.setattr(notes, "note", said.append)
    monkeypatch.setattr(notes, "_noted", set())
    note_shape(tmp_path, "a", ShapeFacts(H200, 13 * GB))
    (file,) = (tmp_path / MEASURED).iterdir()
    file.write_text(damage(file.read_text()))
    assert read_shapes(tmp_path, H200) == {}
    assert len(said) == 1 and str(file) in said[0] and "counts as missing" in said[0]
    note_shape(tmp_path, "a", ShapeFacts(H200, 2 * GB))
    assert read_shapes(tmp_path, H200) == {"a": ShapeFacts(H200, 2 * GB)}


def test_a_file_under_the_name_of_another_shape_counts_as_missing(tmp_path: Path) -> None:
    note_shape(tmp_path, "a", ShapeFacts(H200, 13 * GB))
    (file,) = (tmp_path / MEASURED).iterdir()
    file.rename(file.with_name(file.name.replace("a-", "b-")))
    assert read_shapes(tmp_path, H200) == {}


def test_a_past_study_gives_its_facts_and_what_was_measured_here_stays(tmp_path: Path) -> None:
    past, out = tmp_path / "past", tmp_path / "out"
    results = example()
    alone = Alone(shape="c", device=H200, peak_bytes=3 * GB, step_s=0.1, steps=9)
    arms = [results.arms[0].model_copy(update={"alone": alone}), *results.arms[1:]]
    write_report(results.model_copy(update={"arms": arms}), past)
    note_shape(past, "a", ShapeFacts(H200, 13 * GB, step_s=0.027, steps=40))
    note_shape(past, "b", ShapeFacts(H200, 1 * GB))
    note_shape(out, "a", ShapeFacts(H200, 12 * GB, step_s=0.026, steps=30))
    assert copy_shapes(past / "results.json", out, {"a", "c"}) == 2
    own = ShapeFacts(H200, 13 * GB, step_s=0.026, steps=30)
    assert read_shapes(out, H200) == {"a": own, "c": ShapeFacts(H200, 3 * GB, step_s=0.1, steps=9)}
    assert copy_shapes(past, out) == 1 and set(read_shapes(out, H200)) == {"a", "b", "c"}
    assert copy_shapes(tmp_path / "none", out) == 0


def test_a_report_has_what_was_measured_of_each_arm_on_one_device(tmp_path: Path) -> None:
    study, out = study_with(tmp_path, "seeds=[0, 1]"), tmp_path / "out"
    prepare_study(study, out)
    work(out, Writer())
    assert all(arm.alone is None for arm in report_study(out).results.arms)
    assert '"alone"' not in (out / "results.json").read_text()
    found = {arm.label: shape_of(arm.plans[0]) for arm in study.arms}
    assert found["baseline"] == shape_of(study.arms[0].plans[1])
    for number, shape in enumerate(dict.fromkeys(found.values())):
        note_shape(out, shape, ShapeFacts(H200, GB, step_s=0.02 + number / 100, steps=40))
    note_shape(out, found["baseline"], ShapeFacts("Another GPU", GB))
    results = report_study(out).results
    assert {arm.alone.device for arm in results.arms if arm.alone} == {H200} and results.timed_alone
    stored = json.loads((out / "results.json").read_text())
    assert stored["arms"][0]["alone"]["step_s"] == 0.02


def test_a_step_time_is_left_out_of_an_arm_whose_steps_differ(tmp_path: Path) -> None:
    study = study_with(tmp_path, "seeds=[0, 1]", "arms=[]")
    baseline = study.arms[0]
    changed = apply_techniques(baseline.plans[0], ["tread:dense=0.5"])
    study = replace(study, arms=(baseline, replace(baseline, name="ending", plans=(changed,))))
    for arm in study.arms:
        note_shape(tmp_path, shape_of(arm.plans[0]), ShapeFacts(H200, GB, step_s=0.1, steps=9))
    found = read_alone(study, tmp_path, {})
    assert {label: (one.step_s, one.peak_bytes) for label, one in found.items()} == {
        "baseline": (0.1, GB),
        "ending": (None, GB),
    }


class Device:
    """A clock that a step of a training moves on, and the times at which the device was waited for."""

    def __init__(self, step_s: float = 0.1) -> None:
        self.now_s, self.step_s, self.waits = 0.0, step_s, 0

    def wait(self) -> None:
        self.waits += 1

    def timer(self, is_apart: Callable[[int], bool] = lambda step: False) -> StepTimer:
        return StepTimer(is_apart, self.wait, lambda: self.now_s)

    def train(
        self, timer: StepTimer, steps: range, slow: Callable[[int], float] = lambda step: 0
    ) -> Iterator[tuple[int, float]]:
        """Yield each step at which the timer gave a time, with it."""
        for step in steps:
            self.now_s += self.step_s + slow(step)
            if (found := timer.tick(step)) is not None:
                yield step, found


def test_a_timer_is_silent_and_touches_no_device_until_it_is_asked() -> None:
    device = Device()
    assert not list(device.train(device.timer(), range(500))) and device.waits == 0


@pytest.mark.parametrize(
    ("step_s", "steps"),
    [(0.1, 8), (0.01, 60), (0.001, 200), (0.5, 6), (2.0, 3)],
    ids=["8 steps", "0.6 s", "200 steps", "3 s", "3 slow steps"],
)
def test_a_window_is_as_long_as_it_takes(step_s: float, steps: int) -> None:
    device = Device(step_s)
    timer = device.timer()
    timer.request()
    ((step, found),) = device.train(timer, range(10, 400), slow=lambda step: 100.0 * (step < 14))
    assert found == pytest.approx(step_s) and abs(timer.steps - steps) <= 1 and device.waits == 2
    assert step == 13 + timer.steps


def test_no_save_is_in_a_window() -> None:
    """It ends before a save if it has 8 steps by then, and begins anew after one else."""

    def saves(step: int) -> bool:
        return step % 20 == 0

    device = Device(0.01)
    timer = device.timer(saves)
    timer.request()
    ((step, found),) = device.train(timer, range(13, 100), slow=lambda step: 5.0 * saves(step))
    assert (step, timer.steps) == (39, 16) and found == pytest.approx(0.01)


def test_a_run_that_saves_all_the_time_or_ends_gives_no_time() -> None:
    device = Device()
    often, short = device.timer(lambda step: step % 5 == 0), device.timer()
    often.request()
    short.request()
    assert not list(device.train(often, range(200)))
    assert not list(device.train(short, range(8)))
    assert not list(device.train(short, range(100))), "the next run was not asked about"


def test_a_request_before_the_first_step_or_in_a_window_begins_a_new_one() -> None:
    device = Device()
    timer = device.timer()
    timer.request()
    timer.tick(0)  # before the images are prepared, and again before the first step
    assert len(list(device.train(timer, range(8)))) == 0
    timer.request()
    assert [step for step, _ in device.train(timer, range(8, 40))] == [19]


def test_the_timer_of_a_plan_leaves_out_its_saves_and_snapshots() -> None:
    plan = mini("run.save_every_steps=10", "train.steps=99", "ema={kind: power, snapshots: 3}")
    apart = [step for step in range(1, 100) if StepTimer.of(plan, keep_at=[25])._is_apart(step)]
    assert {10, 25, 33, 66, 90, 99} <= set(apart) and len(apart) == 13


def test_a_run_whose_steps_are_timed_has_the_numbers_of_one_that_is_not(tmp_path: Path) -> None:
    plan = tiny_plan("train.steps=14", "run.save_every_steps=30")
    timer, found = StepTimer.of(plan), list[float | None]()
    timer.request()
    train(plan, tmp_path / "plain", Interrupt())
    train(plan, tmp_path / "timed", Interrupt(), lambda now: found.append(timer.tick(now.step)))
    losses = [[line["loss"] for line in RunRecord(tmp_path / name).lines] for name in ("plain", "timed")]
    (timed,) = filter(None, found)
    assert losses[0] == losses[1] and 0 < timed < 10 and timer.steps >= 3


def test_facts_with_a_time_that_is_no_number_are_refused(tmp_path: Path) -> None:
    note_shape(tmp_path, "a", ShapeFacts(H200, GB, step_s=0.1, steps=1))
    shapes._write(tmp_path, "a", replace(read_shapes(tmp_path, H200)["a"], step_s=-1.0))
    assert read_shapes(tmp_path, H200) == {}
