"""One run of a study, by its arm and seed."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tintype.config.strict import closest
from tintype.errors import UserError
from tintype.plan import Plan
from tintype.study.lab import stored_study
from tintype.study.study import ArmPlan, Study


@dataclass(frozen=True)
class ChosenRun:
    arm: str
    plan: Plan
    folder: Path
    """Where the study trains it; it may not be there yet."""

    def trained_folder(self) -> Path:
        """Return the run's folder, or raise UserError where the study has not begun it."""
        if not (self.folder / "plan.yaml").is_file():
            raise UserError(
                f"arm '{self.arm}', seed {self.plan.seed} is not trained yet: {self.folder} does not exist; run the "
                "study with `tintype ablate`"
            )
        return self.folder


def choose_run(folder: Path, arm: str | None, seed: int | None) -> ChosenRun:
    """Return the run of an arm and a seed, by default the arm's first; with one arm only, the arm needs no name."""
    study = stored_study(folder)
    chosen = _choose_arm(study, folder, arm)
    seeds = [plan.seed for plan in chosen.plans]
    if seed is not None and seed not in seeds:
        raise UserError(f"--arm-seed {seed}: arm '{chosen.label}' of {folder} has the seeds {_seeds(chosen)}")
    plan = chosen.plans[0 if seed is None else seeds.index(seed)]
    return ChosenRun(chosen.label, plan, folder / "runs" / plan.hash)


def _choose_arm(study: Study, folder: Path, name: str | None) -> ArmPlan:
    if name is None:
        if len(study.arms) == 1:
            return study.arms[0]
        raise UserError(f"{folder} is a study; choose a run with --arm and --arm-seed:\n{list_arms(study.arms)}")
    found = [arm for arm in study.arms if name in (arm.label, arm.name)]
    if len(found) == 1:
        return found[0]
    if found:
        raise UserError(f"--arm {name}: {folder} has it at several resolutions; choose one:\n{list_arms(found)}")
    near = closest(name, [arm.label for arm in study.arms])
    words = f"has no such arm; did you mean '{near}'?" if near is not None else "has no such arm, but these:"
    raise UserError(f"--arm {name}: {folder} {words}\n{list_arms(study.arms)}")


def list_arms(arms: Sequence[ArmPlan]) -> str:
    """Return a line for each arm: the option that chooses it, and its seeds."""
    return "\n".join(f"  --arm {shlex.quote(arm.label)}  (seeds {_seeds(arm)})" for arm in arms)


def _seeds(arm: ArmPlan) -> str:
    return ", ".join(str(plan.seed) for plan in arm.plans)
