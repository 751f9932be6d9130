"""Studies that were run and committed, without their runs, stay readable, and their raw metrics give their verdicts."""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tintype.study.lab import StudyProgress, report_study
from tintype.study.results import StudyResults, read_results_file
from tintype.study.status import status_of

STUDIES = sorted(file.parent for file in (Path(__file__).parents[3] / "studies").glob("*/results.json"))


@pytest.fixture(params=STUDIES, ids=lambda folder: str(folder.name))
def study(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A copy of a committed study."""
    return Path(shutil.copytree(request.param, tmp_path / request.param.name))


@dataclass
class Notes(StudyProgress):
    texts: list[str] = field(default_factory=list)

    def note(self, text: str) -> None:
        self.texts.append(text)


def test_a_committed_study_is_reported_again(study: Path) -> None:
    """Every interval, p and verdict is computed again from the runs in results.json, and is the same bit for bit.

    A study that cannot be computed again would keep its verdicts, with a note.
    """
    notes = Notes()
    names = ("results.json", "results.csv", "verdicts.csv", "report.md", "report.html")
    before = {name: (study / name).read_bytes() for name in names}
    results = read_results_file(study / "results.json")
    assert StudyResults.model_validate_json(json.dumps(results.dump())) == results
    report_study(study, notes)
    assert not [text for text in notes.texts if "cannot be computed again" in text]
    for name in names:
        assert (study / name).read_bytes() == before[name], name
    assert not status_of(study).of("waiting"), "the hashes of plans may be those of an earlier version"
