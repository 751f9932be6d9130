"""Test a proposal, which is one more arm of a finished study, with few runs and a share of the study's error.

A proposal is compared with the study's baseline runs at interim analyses (4, 8 and 16 seeds, unless the study plans
others). It is
- kept if it is better in the study's first primary metric at its level, and not worse in any other primary metric;
- dropped if it is worse, the difference is within the margin, more seeds are unlikely to help, runs diverged or
  collapsed, or the last analysis shows no gain;
- given more seeds otherwise.

The ledger (tintype/study/ledger.py) determines a proposal's level. The test is one-sided, since `keep` is the only
claim. The level is divided among the interim analyses in proportion to their seeds. The first proposal fixes the
baseline's seeds for each interim analysis. Otherwise a user could wait until the baseline has unlucky seeds. Spreads
are pooled over the arm and the baseline, as in any study.

If a run of the baseline is lost, the proposal is not dropped; instead an error is raised. If the loss is known before
the proposal begins, the proposal spends none of the study's error. The baseline never changes, so a change on top of a
kept arm needs a new study with the kept arm's plan.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, TypeAlias

from pydantic import BaseModel, ConfigDict

from tintype.config.strict import Document, parse
from tintype.errors import UserError
from tintype.plan import Plan
from tintype.runtime.files import write_sealed
from tintype.runtime.interrupt import Interrupt, watch_signals
from tintype.runtime.locks import locked
from tintype.study.adaptive import HOPELESS_P
from tintype.study.analysis import AnalysisSettings
from tintype.study.contrasts import Asked, incomparable, own_key
from tintype.study.costs import Budget, RunSeconds, run_seconds
from tintype.study.folder import note_command, stored_study
from tintype.study.lab import SILENT, StudyProgress, check_runs, run_more, seeds_in, study_with_arm
from tintype.study.ledger import Answered, Begun, Charged, Ledger, LookSeeds, left_after, level_of, read_ledger
from tintype.study.looks import SeedPlan
from tintype.study.replicate import fresh_seeds, read_replication
from tintype.study.results import Comparison, Role, Run
from tintype.study.runner import Task, task_of
from tintype.study.runs import Metrics, metric_infos, read_commands, standing_runs
from tintype.study.settings import ArmSettings, split_changes
from tintype.study.stats.contrast import Key, against
from tintype.study.stats.estimate import CONFIDENCE, estimate
from tintype.study.stats.family import UNSTABLE
from tintype.study.study import ArmPlan, Study
from tintype.study.supervisor import Jobs, most_of
from tintype.study.verdicts import Collapse, cells_of, match, tested_row, without_bias, without_seeds
from tintype.wording import option

Answer: TypeAlias = Literal["keep", "drop", "more seeds needed"]
Runs: TypeAlias = Mapping[Role, Sequence[Run]]
"""The runs of a proposal's arm, of the baseline, and of the control if the study has one."""
LOOKS = SeedPlan(first=4, most=16)
"""Interim analyses of proposals, for a study that plans none itself."""
NOT_WORSE = CONFIDENCE
"""Confidence of the uncorrected interval that tests whether an arm is worse in another primary metric."""
_SUREST = 1 - 1e-12
"""Largest confidence of an interval, which is the largest float below one."""
_NAME = re.compile(r"[\w][\w -]*")


def parse_arm(text: str) -> ArmSettings:
    """Parse an arm `NAME=PART + PART`; each part is either a technique or an override `key.path=value`."""
    name, sign, rest = (part.strip() for part in text.partition("="))
    parts = [part.strip() for part in rest.split(" + ")]
    if not sign or not _NAME.fullmatch(name) or not all(parts):
        raise UserError(
            f"{option('arm', text)} is not a valid arm",
            "give a name and a change, such as 'fast=muon:lr=3e-3', 'small=optimizer.lr=1e-4' or "
            "'both=repa + train.clip_norm=2.0'",
        )
    changes = split_changes(parts)
    if any(part.partition("=")[0].strip() == "seed" for part in changes["set"]):
        raise UserError(
            f"{option('arm', text)}: another seed is not a valid change, since its effect is chance",
            "propose another setting",
        )
    return parse(ArmSettings, Document(option("arm", name), {"name": name, **changes}))


def parse_looks(text: str | None) -> SeedPlan | None:
    """Parse increasing numbers of seeds for the interim analyses, such as `4,8,16`."""
    if text is None:
        return None
    try:
        counts = tuple(int(one) for one in text.split(","))
        return SeedPlan(first=counts[0], most=counts[-1], looks=counts)
    except ValueError:
        raise UserError(
            f"{option('looks', text)} is not a valid plan of looks",
            "give increasing numbers of seeds, at least 2, such as 4,8,16",
        ) from None


@dataclass(frozen=True)
class Judgement:
    """Answer of one interim analysis of a proposal."""

    answer: Answer
    reason: str
    rows: Mapping[str, Comparison]


def judge(
    runs: Runs, metrics: Metrics, analysis: AnalysisSettings, level: float, most: int, last: bool = False
) -> Judgement:
    """Test at an interim analysis, one-sided at `level`, whether a proposal is better in the first metric."""
    (first, meaning), *others = metrics.items()
    row = compare_proposal(runs, first, metrics, analysis, 1 - 2 * level)
    if row.verdict == "better":
        more = {name: compare_proposal(runs, name, metrics, analysis, NOT_WORSE) for name, _ in others}
        bad = [name for name, one in more.items() if one.verdict in ("worse", "diverged", "failed", "unstable")]
        words = f"better in {first}, and {more[bad[0]].words} in {bad[0]}" if bad else f"better in {first}"
        return Judgement("drop" if bad else "keep", words, {first: row, **more})
    if row.verdict != "undecided":
        return Judgement("drop", row.lost or f"{row.words} in {first}", {first: row})
    good = (row.difference < 0) == (meaning.direction == "lower")
    in_reach = row.seeds_needed is not None and row.seeds_needed <= most
    if not good or (not in_reach and (row.p is None or row.p > HOPELESS_P)):
        return Judgement("drop", f"no gain in sight in {first}", {first: row})
    if last:
        return Judgement("drop", f"no gain shown in {first} with {most} seeds", {first: row})
    return Judgement("more seeds needed", f"undecided in {first}", {first: row})


def compare_proposal(
    runs: Runs, metric: str, metrics: Metrics, analysis: AnalysisSettings, confidence: float
) -> Comparison:
    """Compare the runs for one metric, without collapsed runs; an arm that collapses more often is unstable."""
    roles: dict[str, Role] = {role: role for role in ("baseline", "control", "arm") if role in runs}
    names = {"arm": "", "baseline": "baseline"}
    asked = Asked(Key("arm", metric), against("arm", "baseline"), names, [role for role in roles if role != "arm"])
    matched = match(asked, {role: runs[role] for role in roles.values()}, metric)
    assert not isinstance(matched, str)
    if not matched.differences:
        return without_seeds(matched)
    read: dict[str, Sequence[Run]] = {role: runs[role] for role in roles.values()}
    cells, level = cells_of(roles, read, metric, metrics[metric]), min(round(confidence, 12), _SUREST)
    collapsed = {role: len(cells.collapsed.get(role, ())) for role in roles}
    alike = [role for role in roles if role != "arm"]
    collapse = Collapse(
        cells.seeds("arm") + collapsed["arm"],
        collapsed["arm"],
        sum(cells.seeds(role) + collapsed[role] for role in alike),
        sum(collapsed[role] for role in alike),
    )
    found = estimate(cells, asked.contrast, level)
    margin, bare = analysis.margin_of(metric, metrics[metric].margin), without_bias(cells, read, metric)
    unbiased = (bare, estimate(bare, asked.contrast, level)) if bare else None
    return tested_row(asked, matched, found, cells, metrics[metric], margin, collapse, collapse.p < UNSTABLE, unbiased)


class Proposal(BaseModel):
    """A proposal and its current state."""

    model_config = ConfigDict(frozen=True)

    number: int
    name: str
    plan: str
    """Hash of the proposal's plan with seed 0."""
    answer: Answer
    reason: str
    seeds: int
    """Seeds of the arm that were compared."""
    level: float
    """Fraction of the error that the proposal has spent."""
    comparisons: dict[str, Comparison]
    """The comparison with the baseline at the last interim analysis, by metric."""
    repeats: str | None = None
    """Name of the earlier proposal with the same plan, whose answer is reused."""
    more_seeds: int = 0
    """Seeds of the arm that the next interim analysis adds."""
    minutes: float | None = None
    """Expected duration of the runs of the next interim analysis; None if no run was measured, or no run is left."""
    failed: list[str] = []
    """Runs that failed in this command; the same command tries them again."""
    kept_plan: str | None = None
    """File with the plan of a kept arm, from which a new study can start."""
    error_left: float
    """Fraction of the error that all later proposals may spend together."""
    ledger: str
    """Hash of the ledger's last line. If a later version of the ledger lacks this line, the ledger was changed."""
    signal: int | None = None

    @property
    def exit_code(self) -> int:
        """Return 1 if runs failed, else 0."""
        return int(bool(self.failed))

    @property
    def words(self) -> str:
        """Describe the answer on one line."""
        if self.answer != "more seeds needed":
            return f"{self.answer}: {self.reason}"
        if self.minutes is None:
            return f"{self.answer}: {self.more_seeds}"
        whole = max(1, round(self.minutes))
        return f"{self.answer}: {self.more_seeds}, about {whole} minute{'s' * (whole > 1)}"


def propose(
    out: Path,
    arm: ArmSettings,
    jobs: Jobs = 1,
    progress: StudyProgress = SILENT,
    budget_s: float | None = None,
    looks: SeedPlan | None = None,
    dry_run: bool = False,
) -> Proposal:
    """Test one more arm of a study by making the runs that the test needs, and return the answer.

    An interim analysis begins only if its expected duration fits into the rest of `budget_s`. With `dry_run`, no run is
    made and no error is spent. Only the first proposal can set `looks`.
    """
    _ledger_of(out)  # before the lock, which would make the folder
    with locked(out, "propose one arm after another"):
        chain = _Chain.open(out, looks)
        entered = chain.find(arm)
        known = entered and chain.ledger.answer_to(entered.number)
        if entered and known:
            return _recorded(chain, entered, known, arm.label)
        study = chain.study_of(arm)
        work = _Work(chain, study, Budget(budget_s, most_of(jobs)), jobs, progress)
        work.refuse_lost_baseline()
        if dry_run and entered is None:
            return work.open_answer(chain.next_entry(arm, study), 0, {}, chain.begun.looks[0])
        check_runs(study, work.tasks(chain.begun.looks[0]), progress)
        if entered is None:
            chain = chain.charge(arm, study)
            entered = chain.ledger.charged[-1]
            note_command(progress.argv, out, progress.note)
        with watch_signals() as interrupt:
            return replace(work, chain=chain).judge(entered, interrupt, run=not dry_run)


def proposals(out: Path) -> list[Proposal]:
    """Return all proposals to a study, oldest first."""
    ledger = _ledger_of(out)
    found = []
    for one in ledger.charged:
        answered = ledger.answer_to(one.number)
        found.append(_proposal(ledger, one, answered) if answered else _open(ledger, one, 0, {}, reason="not finished"))
    return found


@dataclass(frozen=True)
class _Chain:
    out: Path
    study: Study
    ledger: Ledger
    begun: Begun

    @classmethod
    def open(cls, out: Path, looks: SeedPlan | None) -> _Chain:
        ledger, study = _ledger_of(out), stored_study(out)
        if len(study.by_resolution()) > 1:
            raise UserError(f"{out} is a study with several resolutions", "use a study with a single resolution")
        planned = _first_line(out, study, looks)
        begun = ledger.begun or planned
        if begun.baseline != planned.baseline or (begun.metric, begun.others) != (planned.metric, planned.others):
            raise UserError(
                f"{out}: earlier proposals to this study were compared with another baseline or in other "
                f"metrics ({', '.join((begun.metric, *begun.others))})",
                "restore that baseline and these metrics, or use another study",
            )
        if looks is not None and [len(one.arm) for one in begun.looks] != list(looks.counts):
            counts = ", ".join(str(len(one.arm)) for one in begun.looks)
            raise UserError(
                f"{option('looks')}: the proposals to {out} have looks at {counts} seeds, which the first "
                f"proposal fixed"
            )
        return cls(out, study, ledger, begun)

    def find(self, arm: ArmSettings) -> Charged | None:
        """Return the proposal with the plan of this arm; raise if the study has the arm, or the name is used."""
        study = self.study_of(arm)
        plan = _plan_hash(_arm_of(study, arm).plans[0])
        for one in self.study.arms:
            if one.role == "arm" and _plan_hash(one.plans[0]) == plan:
                raise UserError(
                    f"{option('arm', arm.label)}: this change is already the arm '{one.name}' of {self.out}; "
                    f"the study's report has its result"
                )
        found, named = self.ledger.by_plan(plan), self.ledger.by_name(arm.label)
        if named is not None and named != found:
            raise UserError(
                f"{option('arm', arm.label)}: proposal {named.number} has this name, but another plan",
                "choose another name",
            )
        return found

    def study_of(self, arm: ArmSettings) -> Study:
        """Return the study with the proposed arm and all seeds that this arm may get."""
        study = study_with_arm(self.out, arm, self._all_seeds, self.begun.control)
        own = _arm_of(study, arm)
        if reason := incomparable(study).get(own_key(own.name, "arm", "", self.begun.metric)):
            raise UserError(
                f"{option('arm', arm.label)}: this arm cannot be compared in the metric {self.begun.metric} ({reason})"
            )
        parents, wanted = {one.name: one for one in study.arms}, [own]
        while wanted[-1].parent:
            wanted.append(parents[wanted[-1].parent])
        return replace(study, arms=tuple(one for one in study.arms if one.role != "arm" or one in wanted))

    @property
    def _all_seeds(self) -> list[int]:
        return list(dict.fromkeys(seed for look in self.begun.looks for seed in (*look.arm, *look.baseline)))

    def next_entry(self, arm: ArmSettings, study: Study) -> Charged:
        number = len(self.ledger.charged) + 1
        plan = _plan_hash(_arm_of(study, arm).plans[0])
        return Charged(
            number=number,
            name=arm.label,
            set=arm.set,
            techniques=arm.techniques,
            plan=plan,
            level=level_of(number),
            date="",
        )

    def charge(self, arm: ArmSettings, study: Study) -> _Chain:
        return replace(self, ledger=self.ledger.begin(self.begun).charge(self.next_entry(arm, study)))


@dataclass(frozen=True)
class _Work:
    chain: _Chain
    study: Study
    budget: Budget
    jobs: Jobs
    progress: StudyProgress

    @property
    def arm(self) -> ArmPlan:
        return self.study.arms[-1]

    def judge(self, entered: Charged, interrupt: Interrupt, run: bool = True) -> Proposal:
        """Make one interim analysis after another until there is an answer. Without `run`, use only existing runs."""
        looks, seen = planned_shares(self.chain.begun.looks), 0
        rows: Mapping[str, Comparison] = {}
        for look, share in looks:
            failed = self._run(look, interrupt) if run else []
            runs = self._runs(look)
            if failed or any(run.state in ("missing", "failed") for some in runs.values() for run in some):
                return self.open_answer(entered, seen, rows, look, failed, interrupt.signal)
            self.refuse_lost_baseline()
            level, most = share * entered.level, len(looks[-1][0].arm)
            metrics = self._metrics()
            found = judge(runs, metrics, self.study.settings.analysis, level, most, look is looks[-1][0])
            rows, seen = found.rows, len(look.arm)
            if found.answer != "more seeds needed":
                return self._close(entered, found, seen)
        raise AssertionError("the last look always answers")

    def _run(self, look: LookSeeds, interrupt: Interrupt) -> list[str]:
        """Make the runs of an interim analysis, if they fit into the budget; return the runs that failed."""
        tasks, seconds = self._left(look)
        if not tasks or self.budget.refusal(tasks, seconds):
            return []
        with self.budget.running():
            last = run_more(tasks, self.study.settings.evaluation, self.jobs, interrupt, self.progress)
        return [f"{one.key[0]}, seed {one.key[1]}: {one.text}" for one in last.values() if one.state == "failed"]

    def _left(self, look: LookSeeds) -> tuple[list[Task], RunSeconds]:
        """Return the unfinished runs of an interim analysis, and the seconds that runs of the study took."""
        runs = standing_runs(self.study, self.chain.out)
        states = {(label, run.seed): run.state for label, some in runs.items() for run in some}
        left = [task for task in self.tasks(look) if states[task.key] not in ("done", "diverged")]
        return left, run_seconds(runs)

    def tasks(self, look: LookSeeds) -> list[Task]:
        """Return all runs that an interim analysis compares, and the runs that they start from, seed by seed."""
        seeds = {"arm": look.arm, "baseline": look.baseline, "control": self.chain.begun.control}
        found = [
            task_of(self.study, one.label, plan, self.chain.out)
            for one in self.study.arms
            for plan in one.plans
            if plan.seed in seeds[one.role]
        ]
        order = {seed: place for place, seed in enumerate((*look.arm, *look.baseline, *self.chain.begun.control))}
        return sorted(found, key=lambda task: order[task.plan.seed])

    def _runs(self, look: LookSeeds) -> dict[Role, list[Run]]:
        every = standing_runs(self.study, self.chain.out)
        seeds = {"arm": look.arm, "baseline": look.baseline, "control": self.chain.begun.control}
        compared = [one for one in self.study.arms if one.role != "arm" or one is self.arm]
        return {one.role: [run for run in every[one.label] if run.seed in seeds[one.role]] for one in compared}

    def _metrics(self) -> Metrics:
        """Return the deciding metric, followed by the other metrics in which the arm can be compared."""
        infos, apart = metric_infos(self.study), incomparable(self.study)
        names = [self.chain.begun.metric, *self.chain.begun.others]
        return {name: infos[name] for name in names if own_key(self.arm.name, "arm", "", name) not in apart}

    def refuse_lost_baseline(self) -> None:
        """Raise if a baseline run of any interim analysis has ended without its metrics."""
        every = self._runs(self.chain.begun.looks[-1])
        for run in (run for role, some in every.items() if role != "arm" for run in some):
            lost = [metric for metric in self._metrics() if run.loss(metric)]
            if run.state in ("done", "diverged") and lost:
                what = "diverged" if run.state == "diverged" else f"has no finite {lost[0]}"
                raise UserError(
                    f"the baseline's run with seed {run.seed} {what}, so no proposal can be compared with it",
                    "start a study with a baseline that trains without failing",
                )

    def _close(self, entered: Charged, found: Judgement, seeds: int) -> Proposal:
        answer: Literal["keep", "drop"] = "keep" if found.answer == "keep" else "drop"
        answered = Answered(
            number=entered.number,
            answer=answer,
            reason=found.reason,
            seeds=seeds,
            comparisons={name: row.model_dump(mode="json") for name, row in found.rows.items()},
        )
        if answer == "keep":
            plan = self.arm.plans[0].model_copy(update={"seed": 0})
            write_sealed(_kept_file(self.chain.ledger, entered), plan.to_yaml())
        return _proposal(self.chain.ledger.record(answered), entered, answered)

    def open_answer(
        self,
        entered: Charged,
        seen: int,
        rows: Mapping[str, Comparison],
        look: LookSeeds,
        failed: Sequence[str] = (),
        signal: int | None = None,
    ) -> Proposal:
        """Return the state of a proposal that needs another interim analysis, with that analysis's expected cost."""
        left, seconds = self._left(look)
        minutes = self.budget.expected_s(left, seconds) / 60 if seconds.known else None
        found = _open(self.chain.ledger, entered, seen, rows, reason=f"the look at {len(look.arm)} seeds is not made")
        return found.model_copy(
            update={
                "more_seeds": len(look.arm) - seen,
                "minutes": minutes,
                "failed": list(failed),
                "signal": signal,
            }
        )


def planned_shares(looks: Sequence[LookSeeds]) -> list[tuple[LookSeeds, float]]:
    """Return each interim analysis with its share of a proposal's level, in proportion to its seeds."""
    whole = sum(len(look.arm) for look in looks)
    return [(look, len(look.arm) / whole) for look in looks]


def looks_at(plan: SeedPlan, order: Sequence[int], done: Sequence[int]) -> tuple[LookSeeds, ...]:
    """Return the interim analyses of a proposal whose arm gets seeds in this order; the baseline also uses `done`."""
    return tuple(
        LookSeeds(arm=tuple(order[:count]), baseline=tuple(dict.fromkeys([*order[:count], *done])))
        for count in plan.counts
    )


def _first_line(out: Path, study: Study, looks: SeedPlan | None) -> Begun:
    """Return the reference of a study's proposals, based on the study's present runs."""
    settings, baseline = study.settings, study.arms[0]
    every, runs = settings.every_seed, standing_runs(study, out)
    done = [run.seed for run in runs[baseline.label] if run.state == "done"]
    control = [
        run.seed for one in study.arms if one.role == "control" for run in runs[one.label] if run.state == "done"
    ]
    if len(done) < 2:
        raise UserError(
            f"{out} has only {len(done)} finished runs of its baseline, but needs two",
            "run the study first, with at least two seeds",
        )
    plan = looks or (settings.seeds if isinstance(settings.seeds, SeedPlan) else LOOKS)
    replication = read_replication(out)
    used = {*every.seeds, *every.control_seeds, *settings.tune_seeds, *seeds_in(out)}
    fresh = fresh_seeds(used.union(replication.seeds if replication else ()), plan.most)
    order = list(dict.fromkeys([*done, *every.seeds, *fresh]))
    return Begun(
        baseline=_plan_hash(baseline.plans[0]),
        metric=settings.primary[0],
        others=tuple(settings.primary[1:]),
        looks=looks_at(plan, order, done),
        control=tuple(control),
    )


def _ledger_of(out: Path) -> Ledger:
    """Return the ledger of a study; raise if proposals were made but the ledger is missing."""
    if not (out / "study.yaml").is_file():
        raise UserError(f"{out} is not a study: study.yaml is missing", "`tintype ablate STUDY --out DIR` makes one")
    made = any(command.argv[1:2] == ["propose"] for command in read_commands(out))
    return read_ledger(out, vouched=made)


def _arm_of(study: Study, arm: ArmSettings) -> ArmPlan:
    return next(one for one in study.arms if one.name == arm.label)


def _plan_hash(plan: Plan) -> str:
    return plan.model_copy(update={"seed": 0}).hash


def _kept_file(ledger: Ledger, entered: Charged) -> Path:
    return ledger.folder / f"{entered.plan}.yaml"


def _recorded(chain: _Chain, entered: Charged, answered: Answered, name: str) -> Proposal:
    """Return the answer that an earlier proposal of the same plan got."""
    found = _proposal(chain.ledger, entered, answered)
    return found.model_copy(update={"name": name, "repeats": entered.name})


def _proposal(ledger: Ledger, entered: Charged, answered: Answered) -> Proposal:
    return Proposal(
        number=entered.number,
        name=entered.name,
        plan=entered.plan,
        answer=answered.answer,
        reason=answered.reason,
        seeds=answered.seeds,
        level=entered.level,
        comparisons={name: Comparison.model_validate(row) for name, row in answered.comparisons.items()},
        kept_plan=str(_kept_file(ledger, entered)) if answered.answer == "keep" else None,
        error_left=left_after(max(len(ledger.charged), entered.number)),
        ledger=ledger.hash,
    )


def _open(ledger: Ledger, entered: Charged, seeds: int, rows: Mapping[str, Comparison], reason: str) -> Proposal:
    return Proposal(
        number=entered.number,
        name=entered.name,
        plan=entered.plan,
        answer="more seeds needed",
        reason=reason,
        seeds=seeds,
        level=entered.level,
        comparisons=dict(rows),
        error_left=left_after(max(len(ledger.charged), entered.number)),
        ledger=ledger.hash,
    )
