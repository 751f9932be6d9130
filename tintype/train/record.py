"""The record of a run: all that the files in its folder say about it.

Every reader of a run's folder uses it; `RunFolder` (`train.folder`) is the writer. Reading checks checksums and seals
(`runtime.files`). Each property reads its file on first use and keeps the result, so a damaged file raises only where
it is needed, and a record describes one moment: to see what a training wrote since, make a new one.

What `tintype export --to tintype` writes, a plan and weights without the state of the training, looks like a run's
folder, so every command that samples or scores a run takes it. `tintype.json` says that it is an export, which weights
it has, and the SHA-256 of its other files. Local weights that the plan names are in it; plan.yaml names them by `./`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from shlex import quote
from typing import Any, Literal

from tintype.data.sources import only_added
from tintype.errors import DivergedError, as_user_error
from tintype.plan import Plan, plan_from_folder
from tintype.plugins.record import FILE as PLUGINS
from tintype.plugins.record import check_plugins
from tintype.runtime import files
from tintype.runtime.identity import check_same
from tintype.train import checkpoint, speed

METRICS, EVENTS = "metrics.jsonl", "events.jsonl"
"""The logs: each line is one JSON object."""
LOADED, LATENTS, LINEAGE, IMPORTED = "loaded.json", "latents.json", "lineage.json", "imported.json"
ENVIRONMENT, OPTIMIZER = "environment.json", "optimizer.json"
MADE_OF = (LOADED, LATENTS, LINEAGE, IMPORTED, PLUGINS)
"""The small files that say what the weights of a run are made of; an export has them too."""
RECORDS = (*MADE_OF, ENVIRONMENT, OPTIMIZER)
"""The small files that say what a run is made of. Each checkpoint has a copy of them."""
CHECKPOINTS, SNAPSHOTS, KEPT = "checkpoints", "snapshots", "kept"
"""The folders with tensors."""
EVALUATION, RESULT = "evaluation", "result.json"
"""The folder of the evaluations, and the file with the scores of one."""
ABOUT, FORM = "tintype.json", "tintype"
"""The file that says that a folder is an export, and what it says there."""
COPIES, LENGTHS = "files", "lines"
"""In the records of a checkpoint: the content of each small file, and the number of lines of each log."""

Failure = Literal["diverged", "failed"]
State = Literal["done", "unfinished", "diverged", "failed", "exported", "missing"]
"""A run is done when it is trained to its plan's last step, whether or not it is scored."""
FAILURES: Mapping[Failure, str] = {"diverged": "diverged.txt", "failed": "failed.txt"}
"""The file that says why a run diverged, or why a study has no result of it."""
_NO_CURVES = frozenset({"step", "images", "seconds", "line"})
"""Numbers of a log line that say where it stands, not how well the run does."""


def is_run(folder: Path) -> bool:
    """Return whether a folder holds a run or an export."""
    return (folder / files.PLAN).is_file()


def curve_numbers(line: Mapping[str, Any]) -> dict[str, float]:
    """Return the numbers of a log line that are points of curves, by name."""
    return {name: value for name, value in line.items() if name not in _NO_CURVES and files.finite(value) is not None}


def _place(name: str) -> cached_property[Path]:
    return cached_property(lambda record: record.path / name)


def _content(name: str) -> cached_property[Mapping[str, Any]]:
    return cached_property(lambda record: record.read(name))


@dataclass(frozen=True)
class RunRecord:
    """A run as its folder has it. The constructor reads nothing."""

    path: Path
    known_plan: Plan | None = field(default=None, repr=False, compare=False)
    """The run's plan where the caller has it: plan.yaml is not read then."""

    checkpoints, snapshots, kept = _place(CHECKPOINTS), _place(SNAPSHOTS), _place(KEPT)
    metrics_file, events_file = _place(METRICS), _place(EVENTS)

    environment = _content(ENVIRONMENT)
    """The machine and the versions that the run was last trained with, and the number of its parameters."""
    identities = _content(LOADED)
    """The SHA-256 of each frozen network and of the data, by name."""
    latents = _content(LATENTS)
    """The statistics of the latents."""
    lineage = _content(LINEAGE)
    """The run whose weights it started from, with the lineage of that run; empty for any other start."""
    imported = _content(IMPORTED)
    """The model that was imported; empty for a run that was not."""
    plugins = _content(PLUGINS)

    @cached_property
    def about(self) -> Mapping[str, Any]:
        """Return what an export says about itself; empty for the folder of a run."""
        file = self.path / ABOUT
        with as_user_error(ValueError, f"{file} is damaged", "export or download the model again"):
            about = files.read_json(file)
        return about if isinstance(about, dict) and about.get("form") == FORM else {}

    @property
    def result_files(self) -> list[Path]:
        """Return the file of each stored evaluation (`evaluation.results` reads them)."""
        return sorted((self.path / EVALUATION).glob(f"*/{RESULT}"))

    @property
    def study(self) -> Path | None:
        """Return the folder of the study that the run lies in; None outside of a study."""
        return files.study_of(self.path.resolve())

    @cached_property
    def plan(self) -> Plan:
        return self.known_plan or plan_from_folder(self.path)

    @cached_property
    def state(self) -> State:
        if self.failure or not is_run(self.path):
            return self.failure or "missing"
        if self.about:
            return "exported"
        return "done" if self.saved_step >= self.plan.train.steps else "unfinished"

    @cached_property
    def failure(self) -> Failure | None:
        """Return how the run failed; None for any other run."""
        return next((failure for failure, name in FAILURES.items() if (self.path / name).exists()), None)

    def reason(self, remake: str) -> str:
        """Return the last line of why the run diverged or failed, or ''. `remake` is the remedy for a damaged file."""
        if self.failure is None:
            return ""
        run = self.known_plan.hash if self.known_plan else None
        text = files.without_seal(files.read_sealed(self.path / FAILURES[self.failure], remake, run))
        return (text.strip().splitlines() or ["no reason is known"])[-1]

    @cached_property
    def saved_steps(self) -> list[int]:
        """Return the steps with a checkpoint, oldest first."""
        return checkpoint.steps(self.checkpoints)

    @property
    def saved_step(self) -> int:
        """Return the step of the newest checkpoint; 0 without any."""
        return max(self.saved_steps, default=0)

    @cached_property
    def whole_step(self) -> int | None:
        """Return the step of the newest checkpoint if nothing in it is damaged. This reads its tensors."""
        return checkpoint.newest_whole_step(self.checkpoints)

    @property
    def is_trained(self) -> bool:
        """Return whether there is nothing left to train. Tensors are not checked: hashing them is slow."""
        return checkpoint.newest_whole_step(self.checkpoints, tensors=False) == self.plan.train.steps

    @property
    def logged_step(self) -> int:
        """Return the last step that was logged; 0 without a log."""
        return int(self.lines[-1]["step"]) if self.lines else 0

    @property
    def step(self) -> int:
        """Return the last step that was logged or saved."""
        return max(self.saved_step, self.logged_step)

    @cached_property
    def curves(self) -> dict[str, dict[int, float]]:
        """Return each number that was logged over steps, by name and step."""
        found: dict[str, dict[int, float]] = {}
        for line in self.lines:
            for name, value in curve_numbers(line).items():
                found.setdefault(name, {})[line["step"]] = value
        return found

    @property
    def parameters(self) -> int | None:
        return self.environment.get("parameters")

    @property
    def images_per_s(self) -> float | None:
        return speed.images_per_s(self.lines) if self.lines else None

    @property
    def training_s(self) -> float | None:
        """Return the seconds of the training's steps, without data loading, saves and compilations."""
        return speed.seconds_until(self.lines, self.logged_step) if self.lines else None

    @property
    def logged_s(self) -> float | None:
        """Return the seconds of all logged windows: with data loading and compilations, without saves."""
        return sum(line["seconds"] for line in self.lines) if self.lines else None

    @property
    def time_split(self) -> dict[str, float]:
        return speed.time_split(self.lines) if self.lines else {}

    def read(self, name: str) -> dict[str, Any]:
        """Return the content of one of the `RECORDS`, empty if the run has none; refuse a damaged or lost one."""
        file, remake = self.path / name, f"{self._command} restores it from a checkpoint"
        if not file.exists() and name in checkpoint.whole_records(self.checkpoints).get(COPIES, {}):
            raise files.damaged(file, "it is missing", remake)
        return files.read_checked(file, remake)

    @cached_property
    def lines(self) -> list[dict[str, Any]]:
        return self._log(METRICS)

    @cached_property
    def events(self) -> list[dict[str, Any]]:
        return self._log(EVENTS)

    def _log(self, name: str) -> list[dict[str, Any]]:
        """Return the lines of a log; refuse one that has lost lines which a checkpoint vouches for."""
        kept = checkpoint.records(self.checkpoints, f"{self._command} writes it again from the run's files")
        remake = f"{self._command} keeps the lines that are whole and logs the loss"
        return files.read_lines(self.path / name, remake, kept.get(LENGTHS, {}).get(name, 0))

    @property
    def _command(self) -> str:
        return f"`tintype train {quote(str(self.path / files.PLAN))} --out {quote(str(self.path))}`"

    def refuse_diverged(self) -> None:
        """Raise DivergedError for a run that diverged: its last weights are those of a training that failed."""
        if self.failure == "diverged":
            reason = self.reason(f"{self._command} trains it again from its last checkpoint")
            raise DivergedError(
                f"{self.path} is a diverged run ({reason})",
                f"to use its last checkpoint all the same, remove {self.path / FAILURES['diverged']}",
            )

    def check_identity(self, name: str, identity: str | None, remedy: str = "put the first one back") -> None:
        """Raise if a loaded network differs from the one used in training, or data by more than added captions."""
        where, what, known = self.path / LOADED, f"identity of '{name}'", self.identities

        def only_more_captions() -> bool:
            return is_run(self.path) and only_added(self.plan.data, name, known)

        if name in known:
            check_same(where, what, known[name], identity, remedy, only_more_captions)

    def check_plugins(self) -> None:
        """Raise unless the plugins that the run began with are loaded, with the same content."""
        check_plugins(self.path, self.plugins)

    def check_plan(self) -> None:
        """Refuse to export a run whose plan.yaml differs from the plan it was trained with."""
        trained = self.environment.get("plan", self.plan.hash)  # older runs did not note it
        where, what = self.path / ENVIRONMENT, f"hash of {self.path / files.PLAN}"
        check_same(where, what, trained, self.plan.hash, "put back the plan that the run was trained with")

    def check_files(self) -> None:
        """Refuse an export whose files are not those that were written."""
        for name, wanted in self.about["sha256"].items():
            file = self.path / name
            found = files.sha256_of(file) if file.is_file() else None
            check_same(self.path / ABOUT, f"SHA-256 of {file}", wanted, found, "export or download the model again")
