"""Write a run's folder with its plan, its log files, and the lock that keeps out a second process.

All files have checksums, and seals with the hash of the plan and the file's path in the folder
(`tintype.runtime.files`). A file of a different run or step is refused like a damaged file. The checkpoints contain
copies of the small files (the records), and the number of lines in each log. So training detects damaged and lost
files, and restores them if possible (`restore_files`).
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from shlex import quote
from typing import Any

from tintype.errors import DamagedFileError, DivergedError, UserError, as_user_error
from tintype.plan import Plan, parts_of, plan_from_folder, short_diff
from tintype.plugins.record import FILE as PLUGINS
from tintype.plugins.record import record_of
from tintype.runtime import fault, files
from tintype.runtime.determinism import why_inexact
from tintype.runtime.dist import ALONE, World
from tintype.runtime.fence import OPEN, Fence
from tintype.runtime.files import flush, set_aside
from tintype.runtime.identity import another
from tintype.runtime.locks import locked, refuse_foreign
from tintype.runtime.machine import code_commit, environment
from tintype.train import checkpoint
from tintype.train.record import COPIES, ENVIRONMENT, FAILURES, LENGTHS, LOADED, OPTIMIZER, RECORDS, RunRecord
from tintype.train.session import Session
from tintype.wording import again, option


class RunFolder:
    """Writer of a run's folder. Only the first rank writes. `fence` stops a writer that has lost its lease."""

    def __init__(self, path: Path, world: World = ALONE, fence: Fence = OPEN, label: str = "") -> None:
        self.path, self.world, self.fence, self.writes = path, world, fence, world.leads
        self.label = label
        """Display name of the run; empty if only the folder's name is known."""
        self.on_line: Callable[[Mapping[str, Any]], None] = lambda line: None
        """Callback for each line of `metrics.jsonl` after it is written (`train.trackers`)."""
        places = self.record
        self.checkpoints, self.snapshots, self.kept = places.checkpoints, places.snapshots, places.kept
        self.metrics_file, self.events_file = places.metrics_file, places.events_file
        self.diverged_file = path / FAILURES["diverged"]
        self._logs = (self.events_file, self.metrics_file)
        self._known: dict[str, dict[str, Any]] = {}
        """Records that this process has already written or restored."""

    @property
    def record(self) -> RunRecord:
        return RunRecord(self.path)

    @contextmanager
    def claim(self, plan: Plan) -> Iterator[None]:
        """Claim the folder for this plan; raise if it has a different plan, or if another process works in it."""
        with ExitStack() as held:
            with self.world.fail_together():
                if self.writes:
                    held.enter_context(locked(self.path, passed=self.fence.passed))
                    if self.fence.takes_over:
                        self._take_over()
                    self._make(plan)
                    if self.fence.taken_from:
                        self.log_event("taken-over", self.record.saved_step, holder=self.fence.taken_from)
            yield

    def _take_over(self) -> None:
        """Remove unfinished files of earlier lease holders, and copy the logs, so that late writes have no effect."""
        theirs = files.unfinished_in(self.path)
        self.fence.check()  # so that files of a later lease holder are not removed
        files.remove_paths(theirs)
        for place in (self.checkpoints, self.snapshots, self.kept):
            checkpoint.remove_leftovers(place, self.fence)
        for log in self._logs:
            if log.is_file():
                with files.written_beside(log, fence=self.fence) as copy:
                    shutil.copyfile(log, copy)

    @contextmanager
    def note_divergence(self) -> Iterator[None]:
        """Write the reason to a file if training in the context diverges; else remove an earlier file."""
        try:
            yield
        except DivergedError as error:
            if self.writes:
                files.write_sealed(self.diverged_file, f"{error}\n", self.fence)
            raise
        if self.writes and self.diverged_file.exists():
            self.fence.check()
            self.diverged_file.unlink(missing_ok=True)

    def _make(self, plan: Plan) -> None:
        refuse_training(self.path)
        damage = ""
        if (self.path / files.PLAN).exists():
            if self.metrics_file.exists() or any(self.checkpoints.glob("*")):
                damage = self._check_same_plan(plan)
            else:  # a run that failed before its first step may be tried with another plan
                self._forget_other_plan(plan)
        elif self._was_of(plan):
            damage = "it was missing"
        else:
            refuse_foreign(self.path, files.PLAN)
        self.checkpoints.mkdir(exist_ok=True)
        files.write_sealed(self.path / files.PLAN, plan.to_yaml(), self.fence, run=plan.hash)
        if damage:
            reason = f"{damage}; the file was written again from the same plan"
            self.log_event("damaged-file", 0, file=files.PLAN, reason=reason)

    def _forget_other_plan(self, plan: Plan) -> None:
        """Remove the files of an attempt with a different plan that failed before its first step."""
        try:
            same = files.run_of(self.path) == plan.hash
        except UserError:  # plan.yaml is damaged, has no seal, or does not belong to a run
            same = False
        if not same:
            self.fence.check()
            names = (*RECORDS, self.events_file.name, self.diverged_file.name)
            files.remove_paths([self.path / name for name in names if (self.path / name).exists()])

    def _was_of(self, plan: Plan) -> bool:
        """Return whether the run was trained with this plan, by the seals of its environment and newest checkpoint."""
        said = [self.path / ENVIRONMENT, *checkpoint.newest_manifest(self.checkpoints)]
        return all(files.run_in_seal(file) == plan.hash for file in said)

    def write_record(self, name: str, content: Mapping[str, Any]) -> None:
        if self.writes:
            self._known[name] = dict(content)
            files.write_checked(self.path / name, content, fence=self.fence)

    def records(self) -> dict[str, Any]:
        """Flush the logs; return copies of the run's small files, and the lengths of its logs, for a checkpoint."""
        if not self.writes:
            return {}
        for log in self._logs:
            if log.is_file():
                flush(log)
        return {COPIES: dict(self._known), LENGTHS: {log.name: files.count_lines(log) for log in self._logs}}

    def restore_files(self) -> None:
        """Restore damaged or lost records and logs, and log an event.

        Records are restored from a checkpoint, and a checkpoint's damaged copies from the records. A damaged log keeps
        its intact lines. The steps of lost lines are not trained again, so the event states which lines are lost.
        """
        if not self.writes:
            return
        self.fence.check()
        kept = checkpoint.whole_records(self.checkpoints)
        for log in self._logs:
            self._restore_log(log, kept.get(LENGTHS, {}).get(log.name, 0))
        for name in RECORDS:
            self._restore_record(name, kept.get(COPIES, {}))
        checkpoint.change_records(self.checkpoints, self._restored_copies)

    def _restored_copies(self, step: int, found: dict[str, Any] | DamagedFileError) -> dict[str, Any] | None:
        """Return new copies of the run's files, for a checkpoint with damaged copies."""
        if not isinstance(found, DamagedFileError):
            return None
        self.log_event("damaged-file", 0, file=f"checkpoints/step-{step:09d}/records.json", reason=str(found))
        lengths = {log.name: _lines_until(files.salvage_lines(log).whole, step) for log in self._logs}
        return {COPIES: dict(self._known), LENGTHS: lengths}

    def _restore_log(self, file: Path, length: int) -> None:
        found = files.salvage_lines(file, length)
        if found.damage:
            moved_to = _moved(file)
            files.write_lines(file, found.whole, self.fence)
            self.log_event("damaged-file", 0, file=file.name, reason=found.damage, moved_to=moved_to)

            def shorten(step: int, records: dict[str, Any] | DamagedFileError) -> dict[str, Any] | None:
                if isinstance(records, DamagedFileError):
                    return None
                lengths = {**records[LENGTHS], file.name: _lines_until(found.whole, step)}
                return {**records, LENGTHS: lengths}

            checkpoint.change_records(self.checkpoints, shorten)

    def _restore_record(self, name: str, copies: Mapping[str, dict[str, Any]]) -> None:
        """Restore a record from checkpoints' copies. Before the first checkpoint, it is just written again later."""
        try:
            if found := self.record.read(name):
                self._known[name] = found
        except DamagedFileError as error:
            if name not in copies and checkpoint.steps(self.checkpoints):
                raise
            moved_to = _moved(self.path / name)
            if name in copies:
                self.write_record(name, copies[name])
            self.log_event("damaged-file", 0, file=name, reason=str(error), moved_to=moved_to)

    def keep_identities(self, loaded: Mapping[str, str | None], step: int) -> None:
        """Record the identities of data, tokenizer, text encoder and teachers; refuse to resume with different ones."""
        record = self.record
        for name, identity in loaded.items() if step else ():
            record.check_identity(name, identity, f"put the first one back, or begin anew with another {option('out')}")
        known = {name: identity for name, identity in loaded.items() if identity}
        if known:
            self.write_record(LOADED, {**known, **(record.identities if step else {})})

    def keep_plugins(self, plan: Plan, step: int) -> None:
        """Record the plugins with which a run begins. A resumed run does not change this record."""
        if not step and (record := record_of(parts_of(plan))):
            self.write_record(PLUGINS, record)

    def note_start(self, parts: Session, identities: Mapping[str, str | None], step: int) -> None:
        """Record the machine and the networks that the run uses from this step on, and log the run's warnings."""
        with self.world.fail_together():
            self.keep_identities(identities, step)
            self.keep_plugins(parts.plan, step)
            before, now = self.record.environment.get("commit", ""), code_commit()
            if step and before != now:  # environment.json has only the last environment
                self.log_event("another-version", step, commit=now or "unknown", before=before or "unknown")
            self.write_about(parts)
            self.log_warnings(parts.plan, step)

    def write_about(self, parts: Session) -> None:
        """Write the run's environment, and the optimizer of each parameter."""
        groups = parts.optimized()
        if not self.writes:
            return
        sizes = {name: parameter.numel() for name, parameter in parts.modules.named_parameters()}
        inexact = why_inexact(parts.device, parts.plan.run.deterministic, parts.world.size)
        made_on = {**environment(parts.device), "ranks": parts.world.size, "copies": parts.layout.replicas}
        made_on["not_exact"] = inexact
        self.write_record(ENVIRONMENT, made_on | {"parameters": sum(sizes.values()), "plan": parts.plan.hash})
        about = {
            kind: {"tensors": len(names), "parameters": sum(sizes[name] for name in names), "names": names}
            for kind, names in groups.items()
        }
        self.write_record(OPTIMIZER, about)

    def _check_same_plan(self, plan: Plan) -> str:
        """Raise if the folder has a different plan; return the damage of plan.yaml if the file can be rewritten."""
        try:
            there = plan_from_folder(self.path)
        except DamagedFileError as error:
            if not self._was_of(plan):
                raise
            return str(error)
        if there.hash != plan.hash and self._was_of(plan):
            return f"{self.path / files.PLAN} was that of the run {there.hash}"
        self.record.check_plugins()
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
        """Log each of the plan's warnings once, even if the run starts several times."""
        logged = {event.get("text") for event in self.record.events if event["event"] == "warning"}
        for text in plan.warnings:
            if text not in logged:
                self.log_event("warning", step, text=text)

    def forget_after(self, step: int) -> None:
        """Delete the log lines of steps that will be repeated, and a truncated last line."""
        if not self.writes:
            return
        for file in self._logs:
            if file.is_file():
                lines = [line for line in files.read_lines(file) if line.get("step", 0) <= step]
                files.write_lines(file, lines, self.fence)


def _lines_until(lines: Iterable[Mapping[str, Any]], step: int) -> int:
    return sum(line.get("step", 0) <= step for line in lines)


def _moved(file: Path) -> str | None:
    return str(set_aside(file)) if file.exists() else None


def _append(path: Path, line: dict[str, Any], fence: Fence) -> None:
    remedy = f"make room, then {again()} again to resume"
    with as_user_error(OSError, f"cannot write to {path}", remedy):
        files.append_line(path, line, fence)


def refuse_training(folder: Path) -> None:
    """Refuse to resume an export, which has no optimizer state."""
    if about := RunRecord(folder).about:
        weights = ",weights=average" if about["weights"] == "average" else ""
        raise UserError(
            f"{folder} is an exported model without the state of its training and cannot be resumed",
            f"start a new run from its weights: `tintype train {quote(str(folder / 'plan.yaml'))} "
            f"--technique {quote(f'sft:from={folder}{weights}')} --out DIR`",
        )
