"""Arms that start from other arms: which run each starts from, and when it may begin."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.tiny import TINY
from tintype.config.strict import read_yaml
from tintype.errors import UserError
from tintype.study.lab import run_study
from tintype.study.results import read_results_file
from tintype.study.runner import Task, next_task, tasks_of
from tintype.study.study import Study, choose_arms, read_settings, resolve

STUDY = """
question: Does a last stage help?
recipe: PLAN
seeds: [3, 4]
arms:
  - {name: last, techniques: ["sft:from=arm:stage one,steps=2"]}
  - {name: stage one, set: [train.steps=3], techniques: ["mixture:add.b.data.style=photo"]}
  - {name: from baseline, techniques: ["sft:from=arm:baseline,steps=2"]}
evaluation: {count: 8, also: [], reference_count: 8, validation_count: 2, metrics: [fd], sampler: {steps: 1}}
"""


def study(folder: Path, text: str = STUDY) -> Study:
    (folder / "plan.yaml").write_text(TINY)
    return resolve("test", read_settings(read_yaml(text.replace("PLAN", str(folder / "plan.yaml")), "study"), Path()))


def test_each_seed_starts_from_the_run_of_its_own_seed(tmp_path: Path) -> None:
    arms = {arm.name: arm for arm in study(tmp_path).arms}
    for child, parent in (("last", "stage one"), ("from baseline", "baseline")):
        for plan, before in zip(arms[child].plans, arms[parent].plans, strict=True):
            assert plan.seed == before.seed
            assert plan.start is not None and plan.start.parent_plan == before.hash
    assert arms["last"].changes["start.name"] == (None, "stage one")


def test_a_task_waits_for_the_run_that_it_starts_from(tmp_path: Path) -> None:
    tasks = tasks_of(study(tmp_path), tmp_path)
    waiting = list(tasks)
    begun: list[Task] = []
    order: list[tuple[str, int]] = []
    while (task := next_task(waiting, begun)) is not None:
        waiting.remove(task)
        begun.append(task)
        order.append(task.key)
    assert order == [(arm, seed) for seed in (3, 4) for arm in ("baseline", "stage one")], "the others wait"
    done = next_task(waiting, begun[2:])
    assert done is not None and done.key == ("last", 3)


def test_an_arm_alone_brings_what_it_starts_from(tmp_path: Path) -> None:
    assert [arm.name for arm in choose_arms(study(tmp_path), ["last"]).arms] == ["baseline", "last", "stage one"]


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (
            "arm:stage one",
            "arm:stage two",
            "arm 'last' cannot start from the arm 'stage two'; did you mean 'stage one'",
        ),
        ("arm:stage one", "arm:last", "arm 'last' would start from itself"),
        ("arm:stage one", "arm:control", "the control has other seeds"),
        (
            "set: [train.steps=3]",
            "set: [model.width=48]",
            r"'last' cannot start from .*model\.width: 48 there, 32",
        ),
        (
            'techniques: ["mixture',
            'techniques: ["sft:from=arm:last", "mixture',
            "itself .last from stage one from last",
        ),
        ("sft:from=arm:baseline,", "sft:from=arm:baseline,data.style=photo,", "other held-out images .*style: render"),
    ],
)
def test_what_cannot_be_is_refused(tmp_path: Path, old: str, new: str, message: str) -> None:
    text = STUDY.replace(old, new).replace("seeds: [3, 4]", "seeds: [3, 4]\ncontrol_seeds: [5, 6]")
    with pytest.raises(UserError, match=message):
        study(tmp_path, text)


@pytest.mark.slow
def test_a_study_trains_the_parent_first_and_reports_the_lineage(tmp_path: Path) -> None:
    """With as many processes as runs: the second would begin at once."""
    head, _, rest = STUDY.replace("seeds: [3, 4]", "seeds: [3]").partition("  - {name: last")
    small = study(tmp_path, head + rest[rest.index("  - {name: from") :])
    assert not run_study(small, tmp_path / "out", 2).failed
    baseline, child = (arm.runs[0] for arm in read_results_file(tmp_path / "out" / "results.json").arms)
    assert child.lineage is not None and baseline.lineage is None
    assert (child.lineage["plan"], child.lineage["at_step"]) == (baseline.hash, 6)
    for report in ("report.md", "report.html"):
        text = (tmp_path / "out" / report).read_text()
        assert "started-from" in text and str(child.lineage["sha256"]) in text
