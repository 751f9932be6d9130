"""Describe a study or a replication before its first step, with its cost and with notes for the user."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tintype.evaluation.protocol import definitions
from tintype.metrics.table import TRAINING_METRICS
from tintype.settings import plain
from tintype.study.advice import margins_out_of_reach
from tintype.study.bank import read_bank, serve, take_bank
from tintype.study.costs import Cost
from tintype.study.estimate import StudyEstimate
from tintype.study.lab import missing_files
from tintype.study.notes import Note
from tintype.study.prompts import one_kind_note, reads_other_captions
from tintype.study.search import range_of, words_of
from tintype.study.study import Study
from tintype.wording import rendered, setting


@dataclass(frozen=True)
class PlannedStudy:
    """The description of a study before its first step."""

    study: Study
    folder: Path
    notes: Sequence[Note]
    estimate: StudyEstimate
    cost: Cost | None = None
    """The number of runs and their duration; None if the caller did not ask for them."""


@dataclass(frozen=True)
class HeldVerdict:
    """A verdict that a replication will test on fresh seeds."""

    arm: str
    metric: str
    label: str
    """The name of the metric for readers."""
    verdict: str


@dataclass(frozen=True)
class PlannedReplication:
    """The description of a replication before its first run."""

    seeds: list[int]
    arms: list[str]
    """The arms for which fresh runs are made, or are taken from the finished study."""
    claims: list[HeldVerdict]
    cost: Cost | None = None
    """The number of fresh runs and their duration; None if runs of a finished study are used."""
    source: str = ""
    """Name of the finished study whose runs are used; empty if fresh runs are made."""


def notes_before(study: Study, out: Path, past: Sequence[Path] = ()) -> list[Note]:
    """Describe a study before its first step. The seed spread comes from the `past` studies."""
    return [
        *_on_arms(study),
        *(Note("warning", text, {"arms": arms}, warns=True) for text, arms in _warnings(study)),
        *(Note("plan", text) for text in (*study.notes, *missing_files(study))),
        *(Note("bank", text) for text in _on_bank(study, out)),
        *(
            Note("margins", text)
            for text in margins_out_of_reach(study, [*past, *map(Path, study.settings.analysis.bank)])
        ),
    ]


def _on_arms(study: Study) -> Iterator[Note]:
    if pairs := [f"{first.label} against {second.label}" for first, second in study.declared()]:
        yield Note("pairs", f"arms that are also compared with each other: {'; '.join(pairs)}")
    if study.settings.tune:
        yield Note("tuning", _tuning_words(study))
    others = [arm.name for arm in study.arms if reads_other_captions(arm.changes)]
    protocol = study.settings.evaluation
    if text := one_kind_note(others, plain(protocol), definitions(protocol, study.of_scenes)):
        yield Note("prompts", text)
    tuned = [arm.label for arm in study.arms if arm.plans[0].start is not None]
    if tuned and not protocol.reads_training_images:
        metrics = f"[{','.join([*protocol.metrics, *TRAINING_METRICS])}]"
        yield Note(
            "copies",
            f"Copies of training images are not measured, though {', '.join(tuned)} may memorise a small set of "
            f"images: "
            f"{rendered(setting('evaluation.metrics', metrics))}",
        )


def _warnings(study: Study) -> list[tuple[str, list[str]]]:
    """Return each warning about the arms' plans once, with the labels of the arms with this warning."""
    about: dict[str, list[str]] = {}
    for arm in study.arms:
        for text in arm.plans[0].warnings:
            about.setdefault(text, []).append(arm.label)
    names = {text: ", ".join(arms) if len(arms) < len(study.arms) else "all arms" for text, arms in about.items()}
    return [(f"{names[text]}: {text}", arms) for text, arms in about.items()]


def _on_bank(study: Study, out: Path) -> Iterator[str]:
    """State how many stored runs a study will use; return nothing if the study names no stored runs."""
    if not study.settings.analysis.bank or (bank := read_bank(out) or take_bank(study)) is None:
        return
    served = serve(bank, study, {}, {})
    count, devices = sum(map(len, served.runs.values())), {run.device for one in bank.sources for run in one.runs}
    left = [*served.left_out, *(f"of {one.study}, {words}" for one in bank.sources for words in one.left_out)]
    where = f", made on {' and '.join(sorted(filter(None, devices)))}" if any(devices) else ""
    without = f" Without: {'; '.join(left)}." if left else ""
    yield (
        f"{count} stored runs of the baseline will serve, from {', '.join(one.study for one in bank.sources)}{where}; "
        f"in each metric where the study's own runs on that kind of device agree with them.{without}"
    )
    if not any(arm.role == "control" for arm in study.arms):
        yield (
            "stored runs are checked against the study's own runs of the baseline, and a control doubles these: "
            "without one, stored runs that differ are often missed"
        )


def _tuning_words(study: Study) -> str:
    settings, tried = study.settings, [arm for arm in study.arms if arm.role != "control"]
    if settings.tune_by.kind == "grid":
        values = " × ".join(f"{len(range_of(one).choice or ())} values of {key}" for key, one in settings.tune.items())
    else:
        ranges = ", ".join(f"{key} from {words_of(one)}" for key, one in settings.tune.items())
        values = f"{settings.tuning_trials} trials by {settings.tune_by.words} ({ranges})"
    seeds = f"{len(settings.tune_seeds)} seed{'s' if len(settings.tune_seeds) > 1 else ''}"
    runs = len(tried) * settings.tuning_trials * len(settings.tune_seeds)
    return (
        f"tuning comes first: {values} × {seeds} for the baseline and each arm, {runs} runs; the best by "
        f"{settings.primary[0]} are chosen for each, then the comparison runs on other seeds"
    )
