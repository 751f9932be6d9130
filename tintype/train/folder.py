"""The folder of a run: its plan, its log files, and the lock that keeps a second process out.

Every line of `metrics.jsonl` and `events.jsonl` is one JSON object. A report needs these files and nothing else.

All files carry checksums, and a seal with the hash of the plan and their place in the folder (`tintype.runtime.files`):
a file of another run or step is refused as a damaged one is. The checkpoints have copies of the small ones, the
records, and know how many lines the logs had. So damage and loss are noticed, and training restores what it can
(`restore_files`).

What `tintype export --to tintype` writes, a run's plan and weights without the state of its training, looks like the
folder of a run, so that every command which samples or scores a run takes it. `tintype.json` says that it is an export,
which weights it has, and the SHA-256 of its files. The weights have checksums of their own, as any checkpoint. Local
weights that the plan names are in the folder, and `plan.yaml` names them by `./`.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from shlex import quote
from typing import Any

from tintype.data.sources import only_added
from tintype.errors import DamagedFileError, DivergedError, UserError, as_user_error
from tintype.plan import Plan, parts_of, plan_from_folder, short_diff
from tintype.plugins.record import FILE as PLUGINS
from tintype.plugins.record import check_plugins, record_of
from tintype.runtime import fault, files
from tintype.runtime.determinism import why_inexact
from tintype.runtime.dist import ALONE, World
from tintype.runtime.fence import OPEN, Fence
from tintype.runtime.files import damaged, flush, set_aside, sha256_of
from tintype.runtime.identity import another, check_same
from tintype.runtime.locks import locked, refuse_foreign
from tintype.runtime.machine import code_commit, environment
from tintype.train import checkpoint
from tintype.train.session import Session
from tintype.wording import again, option

RECORDS = (
    "loaded.json",
    "latents.json",
    "lineage.json",
    "imported.json",
    "environment.json",
    "optimizer.json",
    PLUGINS,
)
"""The small files that say what a run is made of."""
DIVERGED = "diverged.txt"
"""The file in a run's folder that says why the run diverged."""
ABOUT, FORM = "tintype.json", "tintype"
"""The file that says that a folder is an export, and what it says there."""
_COPIES, _LENGTHS = "files", "lines"
"""In the records of a checkpoint: the content of each small file, and the number of lines of each log."""


class RunFolder:
    """Only the rank that leads writes to it; the others read. The `fence` stops a writer that lost its lease."""

    def __init__(self, path: Path, world: World = ALONE, fence: Fence = OPEN, label: str = "") -> None:
        self.path, self.world, self.fence, self.writes = path, world, fence, world.leads
        self.label = label
        """The name of the run for people; empty where the folder's name is all that is known."""
        self.on_line: Callable[[Mapping[str, Any]], None] = lambda line: None
        """Called with each line of `metrics.jsonl` after it is written (`train.trackers`)."""
        self.checkpoints = path / "checkpoints"
        self.snapshots = path / "snapshots"
        self.kept = path / "kept"
        """Weights of chosen steps, until they are scored (`train.load`)."""
        self.metrics_file = path / "metrics.jsonl"
        self.events_file = path / "events.jsonl"
        self.diverged_file = path / DIVERGED
        self._logs = (self.events_file, self.metrics_file)
        self._known: dict[str, dict[str, Any]] = {}
        """The records that this process has written or restored."""

    @contextmanager
    def claim(self, plan: Plan) -> Iterator[None]:
        """Claim the folder for this plan; refuse it where another plan is in it or another process works in it."""
        with ExitStack() as held:
            with self.world.fail_together():
                if self.writes:
                    held.enter_context(locked(self.path, passed=self.fence.passed))
                    if self.fence.takes_over:
                        self._take_over()
                    self._make(plan)
                    if self.fence.taken_from:
                        step = max(checkpoint.steps(self.checkpoints), default=0)
                        self.log_event("taken-over", step, holder=self.fence.taken_from)
            yield

    def _take_over(self) -> None:
        """Remove what earlier holders of the lease write, and copy the logs: what they write late is seen by nobody."""
        theirs = files.unfinished_in(self.path)
        self.fence.check()  # none of these is of somebody who takes over next
        files.remove_paths(theirs)
        for place in (self.checkpoints, self.snapshots, self.kept):
            checkpoint.remove_leftovers(place, self.fence)
        for log in self._logs:
            if log.is_file():
                with files.written_beside(log, fence=self.fence) as copy:
                    shutil.copyfile(log, copy)

    @contextmanager
    def note_divergence(self) -> Iterator[None]:
        """Write down why the training diverged, where it does; remove that where it did before and does no more."""
        try:
            yield
        except DivergedError as error:
            if self.writes:
                files.write_sealed(self.diverged_file, f"{error}\n", self.fence)
            raise
        if self.writes and self.diverged_file.exists():
            self.fence.check()
            self.diverged_file.unlink(missing_ok=True)

    def refuse_diverged(self) -> None:
        """Raise DivergedError for a run that diverged: its last weights are those of a training that failed."""
        if self.diverged_file.exists():
            remake = f"{self._command} trains it again from its last checkpoint"
            reason = files.without_seal(files.read_sealed(self.diverged_file, remake)).strip()
            raise DivergedError(
                f"{self.path} is a diverged run ({reason})",
                f"to use its last checkpoint all the same, remove {self.diverged_file}",
            )

    def _make(self, plan: Plan) -> None:
        refuse_training(self.path)
        damage = ""
        if (self.path / files.PLAN).exists():
            if self._begun():
                damage = self._check_same_plan(plan)
            else:
                self._forget_other_plan(plan)
        elif self._was_of(plan):
            damage = "it was missing"
        else:
            refuse_foreign(self.path, files.PLAN)
        self.checkpoints.mkdir(exist_ok=True)
        files.write_sealed(self.path / files.PLAN, plan.to_yaml(), self.fence, run=plan.hash)
        if damage:
            reason = f"{damage}; written again from the same plan"
            self.log_event("damaged-file", 0, file=files.PLAN, reason=reason)

    def _begun(self) -> bool:
        """Return whether a run has begun; one that failed before its first step may be tried with another plan."""
        return self.metrics_file.exists() or any(self.checkpoints.glob("*"))

    def _forget_other_plan(self, plan: Plan) -> None:
        """Remove the files of an attempt with another plan that failed before its first step."""
        try:
            same = files.run_of(self.path) == plan.hash
        except UserError:  # of a plan.yaml that is damaged, has no seal, or is no run's
            same = False
        if not same:
            self.fence.check()
            names = (*RECORDS, self.events_file.name, DIVERGED)
            files.remove_paths([self.path / name for name in names if (self.path / name).exists()])

    def _was_of(self, plan: Plan) -> bool:
        """Return whether the run was trained with this plan, by the seals of its environment and newest checkpoint."""
        said = [self.path / "environment.json", *checkpoint.newest_manifest(self.checkpoints)]
        return all(files.run_in_seal(file) == plan.hash for file in said)

    @property
    def _command(self) -> str:
        run = quote(str(self.path))
        return f"`tintype train {quote(str(self.path / 'plan.yaml'))} --out {run}`"

    def write_record(self, name: str, content: Mapping[str, Any]) -> None:
        """Write one of the `RECORDS`."""
        if self.writes:
            self._known[name] = dict(content)
            files.write_checked(self.path / name, content, fence=self.fence)

    def read_record(self, name: str | Path) -> dict[str, Any]:
        """Return what one of the `RECORDS` says, empty where the run has none; refuse a damaged or lost one."""
        file, remake = self.path / name, f"{self._command} restores it from a checkpoint"
        if not file.exists() and file.name in checkpoint.whole_records(self.checkpoints).get(_COPIES, {}):
            raise damaged(file, "it is missing", remake)
        return files.read_checked(file, remake)

    def records(self) -> dict[str, Any]:
        """Flush the logs, and return what a checkpoint keeps of the run's files."""
        if not self.writes:
            return {}
        for log in self._logs:
            if log.is_file():
                flush(log)
        return {_COPIES: dict(self._known), _LENGTHS: {log.name: files.count_lines(log) for log in self._logs}}

    def restore_files(self) -> None:
        """Restore what is damaged or lost of the records and the logs, and log it as an event.

        Records come from a checkpoint, and its own copies of them from the records. Of a log the lines that are whole
        stay; steps that are lost from it were trained, and only an event can say that they are lost.
        """
        if not self.writes:
            return
        self.fence.check()
        kept = checkpoint.whole_records(self.checkpoints)
        for log in self._logs:
            self._restore_log(log, kept.get(_LENGTHS, {}).get(log.name, 0))
        for name in RECORDS:
            self._restore_record(name, kept.get(_COPIES, {}))
        checkpoint.change_records(self.checkpoints, self._restored_copies)

    def _restored_copies(self, step: int, found: dict[str, Any] | DamagedFileError) -> dict[str, Any] | None:
        """Return what a checkpoint keeps of the run's files, anew where that is damaged."""
        if not isinstance(found, DamagedFileError):
            return None
        self.log_event("damaged-file", 0, file=f"checkpoints/step-{step:09d}/records.json", reason=str(found))
        lengths = {log.name: _lines_until(files.salvage_lines(log).whole, step) for log in self._logs}
        return {_COPIES: dict(self._known), _LENGTHS: lengths}

    def _restore_log(self, file: Path, length: int) -> None:
        found = files.salvage_lines(file, length)
        if found.damage:
            moved_to = _moved(file)
            files.write_lines(file, found.whole, self.fence)
            self.log_event("damaged-file", 0, file=file.name, reason=found.damage, moved_to=moved_to)

            def shorten(step: int, records: dict[str, Any] | DamagedFileError) -> dict[str, Any] | None:
                if isinstance(records, DamagedFileError):
                    return None
                lengths = {**records[_LENGTHS], file.name: _lines_until(found.whole, step)}
                return {**records, _LENGTHS: lengths}

            checkpoint.change_records(self.checkpoints, shorten)

    def _restore_record(self, name: str, copies: Mapping[str, dict[str, Any]]) -> None:
        """Without a checkpoint nothing was trained yet, and the file will be written anew."""
        try:
            if found := self.read_record(name):
                self._known[name] = found
        except DamagedFileError as error:
            if name not in copies and checkpoint.steps(self.checkpoints):
                raise
            moved_to = _moved(self.path / name)
            if name in copies:
                self.write_record(name, copies[name])
            self.log_event("damaged-file", 0, file=name, reason=str(error), moved_to=moved_to)

    def keep_identities(self, loaded: Mapping[str, str | None], step: int) -> None:
        """Record the identities of data, tokenizer, text encoder and teachers; refuse to resume with others."""
        before: dict[str, str] = self.read_record("loaded.json") if step else {}
        for name, identity in loaded.items() if step else ():
            self.check_identity(name, identity, f"put the first one back, or begin anew with another {option('out')}")
        known = {name: identity for name, identity in loaded.items() if identity}
        if known:
            self.write_record("loaded.json", {**known, **before})

    def check_identity(self, name: str, identity: str | None, remedy: str = "put the first one back") -> None:
        """Raise if a loaded network differs from the one used in training, or data by more than added captions."""
        known = self.read_record("loaded.json")

        def only_more_captions() -> bool:
            return (self.path / "plan.yaml").exists() and only_added(plan_from_folder(self.path).data, name, known)

        where, what = self.path / "loaded.json", f"identity of '{name}'"
        if name in known:
            check_same(where, what, known[name], identity, remedy, only_more_captions)

    def keep_plugins(self, plan: Plan, step: int) -> None:
        """Record the plugins that a run begins with; a resumed run keeps its record."""
        if not step and (record := record_of(parts_of(plan))):
            self.write_record(PLUGINS, record)

    def check_plugins(self) -> None:
        """Raise unless the plugins that the run began with are loaded, with the same content."""
        check_plugins(self.path, self.read_record(PLUGINS))

    def check_plan(self, plan: Plan) -> None:
        """Refuse to export a run whose plan.yaml differs from the plan it was trained with."""
        trained = self.read_record("environment.json").get("plan", plan.hash)  # older runs did not note it
        where, what = self.path / "environment.json", f"hash of {self.path / 'plan.yaml'}"
        check_same(where, what, trained, plan.hash, "put back the plan that the run was trained with")

    def note_start(self, parts: Session, identities: Mapping[str, str | None], step: int) -> None:
        """Record on what and with which networks the run trains from this step on, and log its warnings."""
        with self.world.fail_together():
            self.keep_identities(identities, step)
            self.keep_plugins(parts.plan, step)
            self._note_version(step)
            self.write_about(parts)
            self.log_warnings(parts.plan, step)

    def _note_version(self, step: int) -> None:
        """Log an event where another commit resumes the run: environment.json keeps the last one alone."""
        before, now = self.read_record("environment.json").get("commit", ""), code_commit()
        if step and before != now:
            self.log_event("another-version", step, commit=now or "unknown", before=before or "unknown")

    def write_about(self, parts: Session) -> None:
        """Write the run's environment, and how each of its parameters is optimized."""
        groups = parts.optimized()
        if not self.writes:
            return
        sizes = {name: parameter.numel() for name, parameter in parts.modules.named_parameters()}
        inexact = why_inexact(parts.device, parts.plan.run.deterministic, parts.world.size)
        made_on = {**environment(parts.device), "ranks": parts.world.size, "copies": parts.layout.replicas}
        made_on["not_exact"] = inexact
        self.write_record("environment.json", made_on | {"parameters": sum(sizes.values()), "plan": parts.plan.hash})
        about = {
            kind: {"tensors": len(names), "parameters": sum(sizes[name] for name in names), "names": names}
            for kind, names in groups.items()
        }
        self.write_record("optimizer.json", about)

    def _check_same_plan(self, plan: Plan) -> str:
        """Refuse another plan than the folder's; return what is wrong with plan.yaml where it can be written again."""
        try:
            there = plan_from_folder(self.path)
        except DamagedFileError as error:
            if not self._was_of(plan):
                raise
            return str(error)
        if there.hash != plan.hash and self._was_of(plan):
            return f"{self.path / files.PLAN} was that of the run {there.hash}"
        self.check_plugins()
        if there.hash != plan.hash:
            changes = short_diff(there, plan)
            if there.seed != plan.seed:
                changes["seed"] = (there.seed, plan.seed)
            raise another(self.path, "plan", changes, f"choose another {option('out')}")
        return ""

    def log_metrics(self, line: dict[str, Any]) -> None:
        fault.point("log.write")
        if self.writes:
            _append(self.metrics_file, line, self.fence)
            self.on_line(line)

    def log_event(self, kind: str, step: int, **details: Any) -> None:
        if self.writes:
            _append(self.events_file, {"event": kind, "step": step, "time": time.time(), **details}, self.fence)

    def log_warnings(self, plan: Plan, step: int) -> None:
        """Log each of the plan's warnings once, however often the run starts."""
        logged = {event.get("text") for event in self.events() if event["event"] == "warning"}
        for text in plan.warnings:
            if text not in logged:
                self.log_event("warning", step, text=text)

    def metrics(self) -> list[dict[str, Any]]:
        return self._lines(self.metrics_file)

    def events(self) -> list[dict[str, Any]]:
        return self._lines(self.events_file)

    def _lines(self, log: Path) -> list[dict[str, Any]]:
        kept = checkpoint.records(self.checkpoints, f"{self._command} writes it again from the run's files")
        length = kept.get(_LENGTHS, {}).get(log.name, 0)
        return files.read_lines(log, f"{self._command} keeps the lines that are whole and logs the loss", length)

    def forget_after(self, step: int) -> None:
        """Drop the log lines of steps that will be repeated, and a truncated last line."""
        if not self.writes:
            return
        for file in self._logs:
            if file.is_file():
                lines = [line for line in files.read_lines(file) if line.get("step", 0) <= step]
                files.write_lines(file, lines, self.fence)


def _lines_until(lines: Iterable[Mapping[str, Any]], step: int) -> int:
    return sum(line.get("step", 0) <= step for line in lines)


def _moved(file: Path) -> str | None:
    """Set a damaged file aside, where there is one, and return where it is now."""
    return str(set_aside(file)) if file.exists() else None


def _append(path: Path, line: dict[str, Any], fence: Fence) -> None:
    remedy = f"make room, then {again()} again to resume"
    with as_user_error(OSError, f"cannot write to {path}", remedy):
        files.append_line(path, line, fence)


def read_about(folder: Path) -> Mapping[str, Any]:
    """Return what an export says about itself; nothing for the folder of a run."""
    with as_user_error(ValueError, f"{folder / ABOUT} is damaged", "export or download the model again"):
        about = files.read_json(folder / ABOUT)
    return about if isinstance(about, dict) and about.get("form") == FORM else {}


def check_files(folder: Path, about: Mapping[str, Any]) -> None:
    """Refuse an export whose files are not those that were written."""
    for name, wanted in about["sha256"].items():
        found = sha256_of(folder / name) if (folder / name).is_file() else None
        check_same(folder / ABOUT, f"SHA-256 of {folder / name}", wanted, found, "export or download the model again")


def refuse_training(folder: Path) -> None:
    """Refuse to resume an export, which has no optimizer state."""
    if about := read_about(folder):
        weights = ",weights=average" if about["weights"] == "average" else ""
        raise UserError(
            f"{folder} is an exported model without the state of its training and cannot be resumed",
            f"start a new run from its weights: `tintype train {quote(str(folder / 'plan.yaml'))} "
            f"--technique {quote(f'sft:from={folder}{weights}')} --out DIR`",
        )
