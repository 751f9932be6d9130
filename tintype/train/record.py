"""The record of a run, which provides all information from the files in the run's folder.

All code that reads a run's folder uses `RunRecord`; `RunFolder` (`train.folder`) writes the folder. Checksums and seals
are verified on reading (`runtime.files`). Each property reads its file on first use and caches the content, so a
damaged file causes an error only if it is needed. A record is not updated; make a new record to see later changes by
training.

`tintype export --to tintype` writes a folder with a plan and weights, without the training state. Such a folder looks
like a run's folder, so every command that samples or scores a run accepts it. `tintype.json` marks the folder as an
export, and names the weights and the SHA-256 of the other files. The folder also contains copies of local weights, to
which plan.yaml refers by `./`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from shlex import quote
from typing import Any, Literal

from tintype.data.sources import only_added
from tintype.errors import DamagedFileError, DivergedError, as_user_error
from tintype.plan import Plan, plan_from_folder
from tintype.plugins.record import FILE as PLUGINS
from tintype.plugins.record import check_plugins
from tintype.runtime import files
from tintype.runtime.identity import check_same
from tintype.train import checkpoint, speed

METRICS, EVENTS = "metrics.jsonl", "events.jsonl"
LOADED, LATENTS, LINEAGE, IMPORTED = "loaded.json", "latents.json", "lineage.json", "imported.json"
ENVIRONMENT, OPTIMIZER = "environment.json", "optimizer.json"
MADE_OF = (LOADED, LATENTS, LINEAGE, IMPORTED, PLUGINS)
"""The small files on the models, data and plugins behind a run's weights. An export contains these files too."""
RECORDS = (*MADE_OF, ENVIRONMENT, OPTIMIZER)
"""The small files that describe a run. Each checkpoint contains a copy of these files."""
CHECKPOINTS, SNAPSHOTS, KEPT = "checkpoints", "snapshots", "kept"
EVALUATION, RESULT = "evaluation", "result.json"
ABOUT, FORM = "tintype.json", "tintype"
"""The file that marks a folder as an export, and the file's key for the form of the export."""
COPIES, LENGTHS = "files", "lines"
"""Keys of a checkpoint's records, for the content of each small file and for the number of lines of each log."""

Failure = Literal["diverged", "failed"]
State = Literal["done", "unfinished", "diverged", "failed", "exported", "missing"]
"""State of a run. A run is done when it is trained to its plan's last step, even if it is not scored."""
FAILURES: Mapping[Failure, str] = {"diverged": "diverged.txt", "failed": "failed.txt"}
"""The file with the reason why a run diverged, or why the run has no result in a study."""
_NO_CURVES = frozenset({"step", "images", "seconds", "line"})
"""Numbers of a log line that give its position, and do not belong to a training curve."""


def is_run(folder: Path) -> bool:
    return (folder / files.PLAN).is_file()


def curve_numbers(line: Mapping[str, Any]) -> dict[str, float]:
    return {name: value for name, value in line.items() if name not in _NO_CURVES and files.finite(value) is not None}


def _place(name: str) -> cached_property[Path]:
    return cached_property(lambda record: record.path / name)


def _content(name: str) -> cached_property[Mapping[str, Any]]:
    return cached_property(lambda record: record.read(name))


@dataclass(frozen=True)
class RunRecord:
    """The content of a run's folder. The constructor reads no files."""

    path: Path
    known_plan: Plan | None = field(default=None, repr=False, compare=False)
    """The run's plan, if the caller already has it; then plan.yaml is not read."""

    checkpoints, snapshots, kept = _place(CHECKPOINTS), _place(SNAPSHOTS), _place(KEPT)
    metrics_file, events_file = _place(METRICS), _place(EVENTS)

    environment = _content(ENVIRONMENT)
    """Machine and versions of the run's last training, and the number of the model's parameters."""
    identities = _content(LOADED)
    """The SHA-256 of each frozen network and of the data, by name."""
    latents = _content(LATENTS)
    """Statistics of the latents."""
    lineage = _content(LINEAGE)
    """The run from whose weights this run started, with the lineage of that run; empty for any other start."""
    imported = _content(IMPORTED)
    """The imported model; empty for a run that was not imported."""
    plugins = _content(PLUGINS)

    @cached_property
    def about(self) -> Mapping[str, Any]:
        """Return an export's description of itself; empty for the folder of a run."""
        file = self.path / ABOUT
        with as_user_error(ValueError, f"{file} is damaged", "export or download the model again"):
            about = files.read_json(file)
        return about if isinstance(about, dict) and about.get("form") == FORM else {}

    @property
    def result_files(self) -> list[Path]:
        return sorted((self.path / EVALUATION).glob(f"*/{RESULT}"))

    @property
    def study(self) -> Path | None:
        """Return the folder of the run's study; None outside of a study."""
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
        return next((failure for failure, name in FAILURES.items() if (self.path / name).exists()), None)

    def reason(self, remake: str) -> str:
        """Return in one line why the run diverged or failed, or ''. `remake` says how to fix a damaged file."""
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
        """Return the step of the newest checkpoint; 0 if there is none."""
        return max(self.saved_steps, default=0)

    @cached_property
    def whole_step(self) -> int | None:
        """Return the newest checkpoint's step if it is completely intact, with its tensors."""
        return checkpoint.newest_whole_step(self.checkpoints)

    @property
    def is_trained(self) -> bool:
        """Return whether the run is trained to its last step. Tensors are not checked, since hashing is slow."""
        return checkpoint.newest_whole_step(self.checkpoints, tensors=False) == self.plan.train.steps

    @property
    def logged_step(self) -> int:
        """Return the last logged step; 0 if there is no log."""
        return int(self.lines[-1]["step"]) if self.lines else 0

    @property
    def step(self) -> int:
        """Return the last step that was logged or saved."""
        return max(self.saved_step, self.logged_step)

    @cached_property
    def curves(self) -> dict[str, dict[int, float]]:
        found: dict[str, dict[int, float]] = {}
        for line in self.lines:
            for name, value in curve_numbers(line).items():
                found.setdefault(name, {})[line["step"]] = value
        return found

    def curve(self, name: str) -> dict[int, float]:
        logged = ((line["step"], files.finite(line.get(name))) for line in self.lines)
        return {step: value for step, value in logged if value is not None}

    @property
    def parameters(self) -> int | None:
        return self.environment.get("parameters")

    @property
    def images_per_s(self) -> float | None:
        return speed.images_per_s(self.lines) if self.lines else None

    @property
    def training_s(self) -> float | None:
        """Return the seconds of the training steps, without data loading, saves and compilation."""
        return speed.seconds_until(self.lines, self.logged_step) if self.lines else None

    @property
    def logged_s(self) -> float | None:
        """Return the seconds of all logged windows, including data loading and compilation, but without saves."""
        return sum(line["seconds"] for line in self.lines) if self.lines else None

    @property
    def time_split(self) -> dict[str, float]:
        return speed.time_split(self.lines) if self.lines else {}

    def read(self, name: str) -> dict[str, Any]:
        """Return one of the `RECORDS`; empty if the run does not have it. Raise if the file is damaged or lost."""
        file, remake = self.path / name, f"{self._command} restores it from a checkpoint"
        if not file.exists():
            if name in self._whole_records.get(COPIES, {}):
                raise files.damaged(file, "it is missing", remake)
            return {}
        return files.read_checked(file, remake)

    @cached_property
    def lines(self) -> list[dict[str, Any]]:
        return self._log(METRICS)

    @cached_property
    def events(self) -> list[dict[str, Any]]:
        return self._log(EVENTS)

    def _log(self, name: str) -> list[dict[str, Any]]:
        """Return the lines of a log; raise if lines that a checkpoint has counted are lost."""
        remake = f"{self._command} keeps the lines that are whole and logs the loss"
        return files.read_lines(self.path / name, remake, self._records.get(LENGTHS, {}).get(name, 0))

    @cached_property
    def _records(self) -> dict[str, Any]:
        """Return the newest checkpoint's copies of the small files, and its log lengths; raise if they are damaged."""
        return checkpoint.records(self.checkpoints, f"{self._command} writes it again from the run's files")

    @cached_property
    def _whole_records(self) -> dict[str, Any]:
        try:
            return self._records
        except DamagedFileError:
            return checkpoint.whole_records(self.checkpoints)

    @property
    def _command(self) -> str:
        return f"`tintype train {quote(str(self.path / files.PLAN))} --out {quote(str(self.path))}`"

    def refuse_diverged(self) -> None:
        """Raise DivergedError for a run that diverged, since its last weights come from a failed training."""
        if self.failure == "diverged":
            reason = self.reason(f"{self._command} trains it again from its last checkpoint")
            raise DivergedError(
                f"{self.path} is a run that diverged ({reason})",
                f"to use its last checkpoint anyway, remove {self.path / FAILURES['diverged']}",
            )

    def check_identity(self, name: str, identity: str | None, remedy: str = "put the first one back") -> None:
        """Raise if a network differs from the one used in training, or if data differ by more than added captions."""
        where, what, known = self.path / LOADED, f"identity of '{name}'", self.identities

        def only_more_captions() -> bool:
            return is_run(self.path) and only_added(self.plan.data, name, known)

        if name in known:
            check_same(where, what, known[name], identity, remedy, only_more_captions)

    def check_plugins(self) -> None:
        """Raise unless the plugins of the run's start are loaded, with the same content."""
        check_plugins(self.path, self.plugins)

    def check_plan(self) -> None:
        """Refuse to export a run whose plan.yaml differs from the plan used in training."""
        trained = self.environment.get("plan", self.plan.hash)
        where, what = self.path / ENVIRONMENT, f"hash of {self.path / files.PLAN}"
        check_same(where, what, trained, self.plan.hash, "put back the plan that the run was trained with")

    def check_files(self) -> None:
        """Raise if a file of an export has changed since the export."""
        for name, wanted in self.about["sha256"].items():
            file = self.path / name
            found = files.sha256_of(file) if file.is_file() else None
            check_same(self.path / ABOUT, f"SHA-256 of {file}", wanted, found, "export or download the model again")
