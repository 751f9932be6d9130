"""Files of a run are named and read in one place: the record of the run, in `train/`."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import PurePosixPath

import pytest

from tintype.train.record import ABOUT, EVENTS, FAILURES, METRICS, RECORDS
from tools.house.rooms import PACKAGE, imports_of

NAMES = {METRICS, EVENTS, *FAILURES.values(), *RECORDS, ABOUT}
OWN = {
    "tokenizers/latent_cache.py": "latents.json",  # the header of a cache of latents, which lies in no run
    "plugins/record.py": "plugins.json",  # of studies too; the record takes the name from it
    "plan.py": "tintype.json",  # below `train`: a plan in an export finds its local weights
}
"""Files outside of `train/` that name such a file, and why."""
WRITERS = {
    "audit/run.py",  # begins a training in a folder that is thrown away
    "contract/technique.py",  # the same
    "evaluation/early.py",  # logs scores that are lost
    "evaluation/run.py",  # logs results that are damaged
    "evaluation/tracking.py",  # logs trackers that failed
    "evaluation/train_scene_encoder.py",
    "export/import_run.py",
    "export/model_folder.py",
    "tokenizer_lab/training.py",
}
"""Files outside of `train/` that write to a run's folder."""
READERS = (
    "study/side_by_side.py",
    "study/runs.py",
    "study/runner.py",
    "study/status.py",
    "export/record.py",
    "library/runs.py",
    "serve/find.py",
    "serve/tail.py",
    "serve/curves.py",
    "serve/live.py",
    "serve/fragments.py",
    "terminal/runs.py",
    "sampling/sample.py",
    "evaluation/run.py",
)


def strings_in(source: str) -> Iterator[str]:
    """Yield the strings of a module without its docstrings."""
    tree = ast.parse(source)
    prose = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in prose:
            yield node.value


def named_in(source: str) -> set[str]:
    """Return the files of a run that a module names, alone or at the end of a path."""
    return {name for text in strings_in(source) if (name := PurePosixPath(text).name) in NAMES}


def test_only_the_record_names_the_files_of_a_run() -> None:
    found = {}
    for file in sorted(PACKAGE.rglob("*.py")):
        place = file.relative_to(PACKAGE).as_posix()
        if not place.startswith(("train/", "runtime/")) and (named := named_in(file.read_text(encoding="utf-8"))):
            found[place] = ", ".join(sorted(named))
    assert found == OWN


@pytest.mark.parametrize(
    "source",
    ['folder / "metrics.jsonl"', 'glob("*/environment.json")', 'f"{run}/diverged.txt"', 'NAMES = ("loaded.json",)'],
)
def test_a_name_is_found(source: str) -> None:
    assert named_in(source) and not named_in(f'"""{source.replace(chr(34), "")}"""')


def test_rooms_that_only_read_runs_do_not_import_their_writer() -> None:
    writers = {
        found.file.relative_to(PACKAGE).as_posix()
        for file in PACKAGE.rglob("*.py")
        for found in imports_of(file)
        if found.name == "tintype.train.folder" and found.source != "train"
    }
    assert writers == WRITERS


@pytest.mark.parametrize("reader", READERS)
def test_each_reader_of_runs_reads_through_the_record(reader: str) -> None:
    assert "tintype.train.record" in {found.name for found in imports_of(PACKAGE / reader)}


def test_the_record_knows_nothing_of_those_who_read_it() -> None:
    known = {found.target for found in imports_of(PACKAGE / "train" / "record.py")}
    assert not known & {"evaluation", "study", "serve", "library", "export", "terminal", "cli"}
