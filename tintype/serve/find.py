"""Find the runs and studies in a folder."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from tintype.config.strict import read_yaml
from tintype.errors import UserError
from tintype.runtime.files import PLAN, STUDY
from tintype.train.record import CHECKPOINTS, EVALUATION, KEPT, SNAPSHOTS, RunRecord, is_run

_DEEPEST = 6
_MOST_FOLDERS = 20_000
_INNER = (CHECKPOINTS, EVALUATION, SNAPSHOTS, KEPT, "leases", "runs", "replication")
"""Subfolders of runs and studies that are not searched, since the page of a study shows the runs in them."""


@dataclass(frozen=True)
class FoundStudy:
    path: str
    """Path relative to the served folder; empty for the served folder itself."""
    name: str
    question: str
    has_report: bool


@dataclass(frozen=True)
class FoundRun:
    """A pipeline of diffusers, or a run that does not belong to a study in the served folder."""

    path: str
    has_weights: bool
    is_pipeline: bool = False


def is_study(folder: Path) -> bool:
    return (folder / STUDY).is_file()


def is_pipeline(folder: Path) -> bool:
    return (folder / "model_index.json").is_file() and (folder / "transformer").is_dir()


def can_sample(folder: Path) -> bool:
    return is_run(folder) or is_pipeline(folder)


def find(root: Path) -> tuple[list[FoundStudy], list[FoundRun]]:
    """Return the studies below a folder, and the runs and pipelines that belong to none. Links out are not followed."""
    studies, runs, waiting, seen = list[FoundStudy](), list[FoundRun](), [(root, 0)], 0
    while waiting and seen < _MOST_FOLDERS:
        folder, depth = waiting.pop(0)
        seen += 1
        path = "" if folder == root else folder.relative_to(root).as_posix()
        try:
            entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
        except OSError:
            continue
        inner = [one.name for one in entries if one.is_dir(follow_symlinks=False)]
        names = {one.name for one in entries if not one.is_symlink() or Path(one).resolve().is_relative_to(root)}
        if STUDY in names:
            studies.append(describe(folder, path))
        elif PLAN in names:
            runs.append(FoundRun(path, CHECKPOINTS in inner))
        elif "model_index.json" in names and "transformer" in inner:
            runs.append(FoundRun(path, has_weights=True, is_pipeline=True))
            continue
        if depth < _DEEPEST:
            passed_over = _INNER if {STUDY, PLAN} & names else ()
            kept = [name for name in inner if not name.startswith(".") and name not in passed_over]
            waiting += [(folder / name, depth + 1) for name in kept]
    return studies, runs


def describe(folder: Path, path: str) -> FoundStudy:
    """Return a study with the name and the question from its study.yaml, if the file is readable."""
    name, question = folder.name, ""
    try:
        content = read_yaml((folder / STUDY).read_text(encoding="utf-8"), STUDY).data
        if isinstance(content, dict):
            name, question = str(content.get("name", name)), str(content.get("question", ""))
    except (UserError, OSError, UnicodeDecodeError):
        question = "its study.yaml cannot be read"
    return FoundStudy(path, name, question, (folder / "report.html").is_file())


def is_stored(folder: Path) -> bool:
    """Return whether a study has results but no runs, like the studies committed to tintype's repository."""
    return not (folder / "runs").is_dir() and (folder / "results.json").is_file()


def runs_of(folder: Path, *, sampled: bool) -> list[Path]:
    """Return the runs of a study. If `sampled` is True, return only runs with weights that can be sampled."""
    runs = folder / "runs"
    found = sorted(runs.iterdir()) if runs.is_dir() else []
    return [run for run in found if is_run(run) and (not sampled or any(RunRecord(run).checkpoints.glob("*")))]
