"""Proposals: what is kept, dropped or given more seeds, what each costs, and a ledger that only grows."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path

import pytest

from tests.studies import by_command
from tests.tiny import TINY
from tests.written_runs import METRIC, Writer, written_runs
from tintype.errors import DamagedFileError, UserError
from tintype.evaluation.protocol import Protocol
from tintype.plan import plan_from_yaml
from tintype.runtime.files import write_lines, write_sealed
from tintype.study.analysis import DEFAULT, AnalysisSettings
from tintype.study.folder import stored_study
from tintype.study.lab import run_study
from tintype.study.ledger import ERROR, FLATNESS, left_after, level_of, read_ledger
from tintype.study.looks import SeedPlan
from tintype.study.propose import Proposal, compare_proposal, judge, parse_arm, proposals, propose
from tintype.study.results import MetricInfo, Run
from tintype.study.runner import Task
from tintype.study.study import load_study
from tintype.train.record import FAILURES
from tools.calibration.proposals import false_keeps, normal, power

STUDY = """
question: What comes next?
recipe: PLAN
seeds: [0, 1, 2, 3]
control_seeds: [100, 101, 102, 103]
arms:
  - {name: old, set: [optimizer.lr=0.01]}
primary: [validation_loss]
evaluation: {count: 8, also: [], reference_count: 8, validation_count: 2, metrics: [], sampler: {steps: 1}}
"""


@pytest.fixture(scope="module")
def standing(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("standing")
    (folder / "plan.yaml").write_text(TINY)
    (folder / "study.yaml").write_text(STUDY.replace("PLAN", str(folder / "plan.yaml")))
    with written_runs(Writer()):
        run_study(load_study(str(folder / "study.yaml")), folder / "out", 1)
    return folder / "out"


@pytest.fixture
def out(standing: Path, tmp_path: Path) -> Path:
    """A study that was run, and may be proposed to."""
    shutil.copytree(standing, tmp_path / "out")
    return tmp_path / "out"


def ask(out: Path, arm: str, writer: Writer | None = None, **options: object) -> Proposal:
    with written_runs(writer or Writer()):
        return propose(out, parse_arm(arm), **options)  # type: ignore[arg-type]


def test_the_levels_of_an_endless_chain_sum_to_the_error() -> None:
    many = 10_000
    assert math.isclose(math.fsum(map(level_of, range(1, many + 1))) + left_after(many), ERROR)
    assert all(level_of(number) > level_of(number + 1) > 0 for number in range(1, 200))
    assert math.isclose(level_of(1), ERROR / (FLATNESS + 1))


def test_a_gain_is_kept_after_the_fewest_seeds_and_its_plan_is_written(out: Path) -> None:
    writer = Writer({"fast": -20.0})
    found = ask(out, "fast=optimizer.lr=0.02", writer)
    assert (found.answer, found.number, found.seeds, found.level) == ("keep", 1, 4, level_of(1))
    assert writer.begun == [("fast", seed) for seed in range(4)], "the baseline's runs are those of the study"
    assert found.comparisons[METRIC].verdict == "better"
    assert found.kept_plan is not None
    kept = plan_from_yaml(Path(found.kept_plan).read_text(), "kept")
    assert (kept.hash, kept.optimizer.lr, kept.seed) == (found.plan, 0.02, 0)
    assert [one.name for one in stored_study(out).arms] == ["baseline", "control", "old"], "the study stays as it is"


@pytest.mark.parametrize(("effect", "reason"), [(0.0, "no gain in sight"), (20.0, "worse in"), (1.0, "no gain in")])
def test_what_gains_nothing_is_dropped_after_the_first_look(out: Path, effect: float, reason: str) -> None:
    found = ask(out, "idle=optimizer.lr=0.02", Writer({"idle": effect}))
    assert (found.answer, found.seeds, found.kept_plan) == ("drop", 4, None)
    assert found.reason.startswith(reason)


def test_a_small_gain_gets_more_seeds_and_fresh_ones_for_the_baseline_too(out: Path) -> None:
    writer = Writer({"small": -1.6})
    found = ask(out, "small=optimizer.lr=0.02", writer)
    assert (found.answer, found.seeds) == ("keep", 8)
    seeds = [0, 1, 2, 3, *range(10_000, 10_004)]
    assert sorted(seed for arm, seed in writer.begun if arm == "small") == seeds
    assert sorted(seed for arm, seed in writer.begun if arm == "baseline") == seeds[4:]
    again = Writer({"next": -1.6})
    ask(out, "next=optimizer.lr=0.03", again)
    assert ("next", 0) in again.begun
    assert not {("baseline", seed) for seed in seeds} & {*again.begun}, "later proposals share the baseline's runs"


def test_a_budget_leaves_a_look_for_later_and_the_same_command_resumes_it(out: Path) -> None:
    writer = Writer({"small": -1.6}, seconds=60.0)
    found = ask(out, "small=optimizer.lr=0.02", writer, budget_s=0.0)
    assert (found.answer, found.more_seeds, found.words) == (
        "more seeds needed",
        4,
        "more seeds needed: 4, about 1 minute",
    )
    assert not writer.begun
    found = ask(out, "small=optimizer.lr=0.02", writer, budget_s=5.0)
    assert (found.seeds, found.more_seeds) == (4, 4), "the first look fits, at one second for each of the study's runs"
    assert found.minutes == pytest.approx(8 * 60 / 60, rel=0.5)
    assert ask(out, "small=optimizer.lr=0.02", writer).answer == "keep"
    assert [one.number for one in proposals(out)] == [1], "resuming is not charged again"
    assert len(writer.begun) == len(set(writer.begun))


def test_a_dry_run_runs_and_spends_nothing(out: Path) -> None:
    writer = Writer()
    found = ask(out, "small=optimizer.lr=0.02", writer, dry_run=True)
    assert (found.answer, found.more_seeds, found.level) == ("more seeds needed", 4, level_of(1))
    assert not writer.begun
    assert not proposals(out)


def test_every_proposal_is_charged_whether_it_wins_or_loses(out: Path) -> None:
    writer = Writer({"b": -20.0})
    found = [ask(out, f"{name}=optimizer.lr={rate}", writer) for name, rate in (("a", 0.02), ("b", 0.03), ("c", 0.04))]
    assert [one.answer for one in found] == ["drop", "keep", "drop"]
    assert [one.level for one in found] == [level_of(number) for number in (1, 2, 3)]
    assert found[-1].error_left == left_after(3)
    assert [one.answer for one in proposals(out)] == ["drop", "keep", "drop"]


def test_the_same_plan_under_another_name_gets_the_recorded_answer(out: Path) -> None:
    first = ask(out, "first=optimizer.lr=0.02")
    writer = Writer({"lucky": -20.0})
    again = ask(out, "lucky=optimizer.lr=2e-2", writer)
    assert (again.answer, again.repeats, again.number) == (first.answer, "first", 1)
    assert not writer.begun
    assert len(read_ledger(out).charged) == 1


@pytest.mark.parametrize(
    ("arm", "message"),
    [
        ("lucky=seed=7", "another seed is not a valid change"),
        ("lucky=run.threads=2", "must be the same for all arms of a study"),
        ("same=optimizer.lr=1e-3", "changes nothing"),
        ("mine=optimizer.lr=0.01", "the arms 'old' and 'mine' have the same plan"),
        ("old=optimizer.lr=0.02", "already has an arm with this name"),
        ("optimizer.lr=0.02", "give a name and a change"),
        ("x=wrong", "unknown technique 'wrong'"),
        ("x=", "give a name and a change"),
    ],
)
def test_what_is_no_arm_is_refused_and_spends_nothing(out: Path, arm: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        ask(out, arm)
    assert not read_ledger(out).entries


def test_a_name_that_is_taken_by_another_plan_is_refused(out: Path) -> None:
    ask(out, "one=optimizer.lr=0.02")
    with pytest.raises(UserError, match="proposal 1 has this name, but another plan"):
        ask(out, "one=optimizer.lr=0.03")


def test_the_looks_are_fixed_with_the_first_proposal(out: Path) -> None:
    ask(out, "one=optimizer.lr=0.02", looks=SeedPlan(first=2, most=4))
    with pytest.raises(UserError, match="have looks at 2, 4 seeds"):
        ask(out, "two=optimizer.lr=0.03", looks=SeedPlan(first=2, most=8))
    begun = read_ledger(out).begun
    assert begun is not None
    assert [(look.arm, look.baseline) for look in begun.looks] == [((0, 1), (0, 1, 2, 3)), ((0, 1, 2, 3),) * 2]


def test_a_run_that_fails_is_reported_and_tried_again(out: Path) -> None:
    writer = Writer({"fast": -20.0}, failing={("fast", 2)})
    found = ask(out, "fast=optimizer.lr=0.02", writer)
    assert found.answer == "more seeds needed"
    assert found.failed == ["fast, seed 2: "]
    writer.failing.clear()
    assert ask(out, "fast=optimizer.lr=0.02", writer).answer == "keep"


class _LosesRun(Writer):
    """Writes one run of the baseline without a finite metric, or as diverged."""

    seed, state = 2, "done"

    def value(self, task: Task) -> float:
        return math.nan if (task.arm, task.plan.seed) == ("baseline", self.seed) else super().value(task)

    def _write(self, task: Task, protocol: Protocol) -> None:
        if self.state == "diverged" and math.isnan(self.value(task)):
            task.folder.mkdir(parents=True, exist_ok=True)
            write_sealed(task.folder / FAILURES["diverged"], "the loss is not finite", run=task.plan.hash)
        else:
            super()._write(task, protocol)


@pytest.mark.parametrize(("state", "words"), [("done", "has no finite validation_loss"), ("diverged", "diverged")])
def test_a_lost_run_of_the_baseline_is_refused_before_a_run_or_a_charge(tmp_path: Path, state: str, words: str) -> None:
    (tmp_path / "plan.yaml").write_text(TINY)
    (tmp_path / "study.yaml").write_text(STUDY.replace("PLAN", str(tmp_path / "plan.yaml")))
    writer = _LosesRun({"fast": -20.0})
    writer.state = state
    with written_runs(writer):
        run_study(load_study(str(tmp_path / "study.yaml")), tmp_path / "out", 1)
    done = len(writer.begun)
    for options in ({}, {"dry_run": True}):
        with pytest.raises(UserError, match=f"baseline's run with seed 2 {words}, so no proposal can be compared"):
            ask(tmp_path / "out", "fast=optimizer.lr=0.02", writer, **options)
    assert len(writer.begun) == done and proposals(tmp_path / "out") == []


def test_a_fresh_run_of_the_baseline_that_is_lost_drops_no_proposal_and_spends_one_level(out: Path) -> None:
    """The second look at a small gain has fresh seeds of the baseline."""
    writer = _LosesRun({"small": -1.6, "fast": -20.0})
    writer.seed = 10_001
    for name in ("small=optimizer.lr=0.02", "fast=optimizer.lr=0.03"):
        with pytest.raises(UserError, match="no proposal can be compared"):
            ask(out, name, writer)
    (one,) = proposals(out)
    assert one.name == "small" and one.answer == "more seeds needed"


def test_a_signal_leaves_the_proposal_open(out: Path) -> None:
    writer = Writer({"fast": -20.0}, stop_after=2)
    found = ask(out, "fast=optimizer.lr=0.02", writer)
    assert (found.answer, found.signal) == ("more seeds needed", 2)
    writer.stop_after = None
    assert ask(out, "fast=optimizer.lr=0.02", writer).answer == "keep"
    assert len(writer.begun) == 4


def _edit(out: Path, change: str) -> None:
    """Change the ledger as somebody would who wants another answer."""
    folder = out / "proposals"
    ledger = folder / "ledger.jsonl"
    lines = ledger.read_text().splitlines(keepends=True)
    if change == "cut":
        ledger.write_text("".join(lines[:-2]))
    elif change == "empty":
        ledger.write_text("")
    elif change == "gone":
        ledger.unlink()
        (folder / "head.json").unlink()
    elif change == "headless":
        (folder / "head.json").unlink()
    elif change == "answer":
        ledger.write_text("".join(lines[:-1]) + lines[-1].replace('"drop"', '"keep"'))
    else:  # the lines of one proposal, renumbered with good checksums, but of another chain
        kept = [json.loads(line) for line in (*lines[:1], *lines[3:])]
        write_lines(ledger, [{k: v for k, v in one.items() if k not in ("line", "checksum")} for one in kept])


@pytest.mark.parametrize("change", ["cut", "empty", "gone", "headless", "answer", "renumbered"])
def test_a_ledger_that_was_shortened_or_edited_is_refused(out: Path, change: str) -> None:
    for name, rate in (("a", 0.02), ("b", 0.03)):
        ask(out, f"{name}=optimizer.lr={rate}", progress=by_command(["tintype", "propose", name]))
    _edit(out, change)
    with pytest.raises(DamagedFileError, match=r"ledger\.jsonl|head\.json"):
        ask(out, "c=optimizer.lr=0.04")


def test_a_kill_between_the_ledger_and_its_head_loses_nothing(out: Path) -> None:
    ask(out, "a=optimizer.lr=0.02")
    before = (out / "proposals" / "head.json").read_text()
    ask(out, "b=optimizer.lr=0.03")
    (out / "proposals" / "head.json").write_text(before)
    assert [one.name for one in read_ledger(out).charged] == ["a", "b"]


def _runs(first: list[float], second: list[float]) -> list[Run]:
    return [
        Run(seed=seed, hash=str(seed), folder="", state="done", metrics={"first": a, "second": b})
        for seed, (a, b) in enumerate(zip(first, second, strict=True))
    ]


@pytest.mark.parametrize(("shift", "answer"), [(0.0, "keep"), (-5.0, "keep"), (5.0, "drop")])
def test_a_gain_that_makes_another_primary_metric_worse_is_dropped(shift: float, answer: str) -> None:
    names = ("first", "second")
    metrics = {name: MetricInfo(name=name, label=name, direction="lower", definition="") for name in names}
    spread = [1.0, -0.5, -1.0, 0.5]
    runs = {
        "baseline": _runs([100 + one for one in spread], [100 + one for one in reversed(spread)]),
        "arm": _runs([90 + one for one in reversed(spread)], [100 + shift + one for one in spread]),
    }
    found = judge(runs, metrics, DEFAULT, level_of(1), 16)  # type: ignore[arg-type]
    assert found.answer == answer
    assert ("worse in second" in found.reason) == (answer == "drop")


def test_no_proposal_is_called_the_same_where_the_bias_may_hide_a_difference() -> None:
    metrics = {"first": MetricInfo(name="first", label="first", direction="lower", definition="", scale="log")}
    spread = [0.001, -0.0005, -0.001, 0.0005]
    runs = {
        "baseline": _runs([1 + one for one in spread], spread),
        "arm": _runs([0.96 + one for one in reversed(spread)], spread),
    }
    biased = {role: [run.model_copy(update={"biases": {"first": 0.9}}) for run in of] for role, of in runs.items()}
    wide = AnalysisSettings(margin="10%")
    rows = [compare_proposal(some, "first", metrics, wide, 0.95) for some in (runs, biased)]  # type: ignore[arg-type]
    assert [row.verdict for row in rows] == ["same", "undecided"]


def test_few_chains_of_nothing_have_a_false_keep_and_without_the_charge_most_have() -> None:
    chains, length = 30, 20
    charged, _ = false_keeps(normal(), chains, length)
    assert charged <= 0.05 + 2 * math.sqrt(0.05 * 0.95 / chains)
    free, _ = false_keeps(normal(), 10, length, lambda number: 0.05)
    assert free > 0.3, "each at 5%: a chain of 20 is wrong far more often"


def test_a_large_gain_is_kept_late_in_a_chain_too() -> None:
    assert power(normal(), 50, 3.0, 20).kept >= 0.9


@pytest.mark.slow
@pytest.mark.parametrize(
    ("change", "seeds"),
    [
        (("seeds: [0, 1, 2, 3]\ncontrol_seeds: [100, 101, 102, 103]", "seeds: {first: 2, most: 8}"), 2),
        (("seeds: [0", "tune: {train.clip_norm: [0.5, 1.0]}\ntune_seeds: [50]\nseeds: [0"), 4),
    ],
    ids=["planned looks", "tuned"],
)
def test_studies_of_other_kinds_take_proposals(tmp_path: Path, change: tuple[str, str], seeds: int) -> None:
    (tmp_path / "plan.yaml").write_text(TINY)
    text = STUDY.replace("PLAN", str(tmp_path / "plan.yaml")).replace(*change)
    (tmp_path / "study.yaml").write_text(text)
    with written_runs(Writer({"old": 20.0})):
        run_study(load_study(str(tmp_path / "study.yaml")), tmp_path / "out", 1)
    found = ask(tmp_path / "out", "fast=optimizer.lr=0.02", Writer({"fast": -20.0}))
    assert (found.answer, found.seeds) == ("keep", seeds)


def test_an_arm_that_starts_from_an_arm_of_the_study_has_its_runs(out: Path) -> None:
    writer = Writer({"second": -20.0})
    found = ask(out, "second=sft:from=arm:old,lr=1e-4", writer)
    assert found.answer == "keep"
    assert {arm for arm, _ in writer.begun} == {"second"}


def test_a_misspelt_folder_is_refused_and_not_made(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="neverwas is not a study"):
        propose(tmp_path / "neverwas", parse_arm("a=ema"))
    assert not (tmp_path / "neverwas").exists()
