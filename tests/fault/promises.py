"""The promises of docs/reliability.md, and the count of how often each was tried and broken.

A test that proves a promise has the marker `promise(NUMBER)`. The test of what happens without the safeguard, its
negative control, has `promise(NUMBER, control="what is off")`. A test that makes several tries counts them with the
fixture `promise`; one that does not is one try. The first line of its docstring says how it tests.

`make test` and `make test-slow` make some of the tries. `make test-faults` makes all and writes docs/reliability.json,
from which tools/figures makes the table of docs/reliability.md.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
from collections.abc import Generator, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import pytest
import torch

_ROOT = Path(__file__).parents[2]
PROMISES = {
    1: "A run resumed from any step ends bit-identical",
    2: "A SIGKILL anywhere loses no more than the steps since the last checkpoint",
    3: "SIGTERM saves and exits, in every phase",
    4: "Damage to a file is noticed, and the previous checkpoint is used",
    5: "A full disk loses nothing",
    6: "Pruning always leaves a good checkpoint",
    7: "A checkpoint holds the whole state, and is loaded strictly",
    8: "The order of the data is a function of seed and position",
    9: "A run resumes with another number of ranks",
    10: "Noise, times and dropout are drawn by sample, whatever the layout",
    11: "A non-finite step, or a spike to be skipped, never reaches the weights, and all ranks agree",
    12: "Bad samples are counted and replaced deterministically; too many stop the run",
    13: "Decoding an image is bounded in bytes, pixels and memory",
    14: "A save in the background writes the state of one step",
    15: "A dead or stuck rank ends the run, and is named",
    16: "A run has one line of metrics for each step, after any number of resumes",
    17: "Loading a file never runs code from it",
    18: "A plan or study file cannot name code",
    19: "Archives, folders and links stay in their place",
    20: "Weights from outside are pinned",
    21: "No setting is ignored",
    22: "Every tensor has the precision that the plan says",
    23: "Old runs are read, or refused with the reason",
    24: "A restart needs no cleaning: no process, lock or temporary file is left",
    25: "Ranks compare their plans before the first step",
    26: "A diverged run says so, and is not used by accident",
    27: "Text from outside stays text, and is read in linear time",
    28: "A run of a study has one writer, whichever worker dies, sleeps or sees late",
    29: "A study stays in one folder, and workers that compute otherwise do not join it",
    30: "A command that has too little memory to begin says so",
    31: "A file belongs to its run and step: exchanged files are refused or made again, never used silently",
}
T = TypeVar("T")


@dataclass
class Promise:
    """The tries of one test."""

    full: bool
    control: str | None = None
    """The safeguard that is off in a negative control, where at least one try must fail."""
    tries: int = 0
    broken: list[str] = field(default_factory=list)

    def choose(self, cases: Sequence[T], short: int) -> list[T]:
        """All cases, or in the short form an even spread of `short` of them."""
        if self.full or len(cases) <= short:
            return list(cases)
        return [cases[i * len(cases) // short] for i in range(short)]

    def count(self, held: bool, what: object) -> None:
        """Count a try; `what` names it where it did not hold."""
        self.tries += 1
        if not held:
            self.broken.append(str(what))

    def judge(self) -> None:
        if self.control is not None:
            assert not self.tries or self.broken, f"{self.tries} tries held with {self.control}: they cannot fail"
        else:
            assert not self.broken, f"{len(self.broken)} of {self.tries} did not hold: " + "; ".join(self.broken[:20])


@dataclass(frozen=True)
class Record:
    """Tries and failures of one test."""

    promise: int
    control: str | None
    test: str
    how: str
    tries: int
    failures: int
    commit: str = ""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--faults", choices=("short", "full"), default="short", help="some tries of each promise, or all")
    parser.addoption("--faults-record", metavar="FILE", help="write what was counted to a JSON file, or renew it there")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "promise(number, control=None): the promise of docs/reliability.md it proves")


_PROMISE = pytest.StashKey[Promise]()


@pytest.fixture
def promise(request: pytest.FixtureRequest) -> Promise:
    _, control = _marked(request.node)
    made = Promise(request.config.getoption("--faults") == "full", control)
    request.node.stash[_PROMISE] = made
    return made


def _marked(item: pytest.Item) -> tuple[int, str | None]:
    """The number of the promise, and what is off for a control."""
    mark = item.get_closest_marker("promise")
    assert mark is not None and mark.args[0] in PROMISES, f"{item.nodeid} needs @pytest.mark.promise(NUMBER)"
    return mark.args[0], mark.kwargs.get("control")


@pytest.hookimpl(wrapper=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> Generator[None, object, object]:
    result = yield
    if _PROMISE in pyfuncitem.stash:
        pyfuncitem.stash[_PROMISE].judge()
    return result


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.when == "call" and not report.skipped and item.get_closest_marker("promise") is not None:
        report.user_properties.append(("promise", asdict(_record(item, passed=report.passed))))
    return report


def _record(item: pytest.Item, passed: bool) -> Record:
    number, control = _marked(item)
    counted = item.stash.get(_PROMISE, Promise(False))
    tries, failures = counted.tries, len(counted.broken)
    if not tries:  # a plain test: of a control, passing means that the try failed as it should
        tries, failures = 1, int(passed if control is not None else not passed)
    elif control is None and not passed:
        failures = max(failures, 1)
    doc = getattr(getattr(item, "function", None), "__doc__", None) or ""
    name = item.nodeid.split("[")[0]
    return Record(number, control, name, doc.strip().split("\n")[0].rstrip("."), tries, failures)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if _WRITER is not None:
        found: list[Any] = [value for name, value in report.user_properties if name == "promise"]
        _WRITER.records += [Record(**one) for one in found]


@dataclass
class _Writer:
    path: Path
    records: list[Record] = field(default_factory=list)


_WRITER: _Writer | None = None


def pytest_sessionstart(session: pytest.Session) -> None:
    global _WRITER
    path = session.config.getoption("--faults-record")
    if path and not hasattr(session.config, "workerinput"):  # the workers of xdist report to the process that writes
        _WRITER = _Writer(Path(path))


def pytest_sessionfinish() -> None:
    if _WRITER is not None:
        before = json.loads(_WRITER.path.read_text(encoding="utf-8"))["records"] if _WRITER.path.exists() else []
        kept = [Record(**one) for one in before if _is_there(*one["test"].split("::"))]
        now = [replace(one, commit=_commit()) for one in _WRITER.records]
        content = {"machine": _machine(), "promises": PROMISES, "records": _renewed(kept, now)}
        text = json.dumps(content, indent=1)
        _WRITER.path.write_text(f"{text}\n", encoding="utf-8")


def _is_there(file: str, test: str) -> bool:
    return (_ROOT / file).exists() and f"def {test}(" in (_ROOT / file).read_text(encoding="utf-8")


def _renewed(before: list[Record], now: list[Record]) -> list[dict[str, Any]]:
    """One entry for each test, with the tries of its parameters added up; of tests that did not run now the old one."""
    found: dict[tuple[int, str], Record] = {}
    for one in now:
        key = (one.promise, one.test)
        first = found.get(key)
        tries, failures = (first.tries, first.failures) if first else (0, 0)
        found[key] = replace(one, tries=tries + one.tries, failures=failures + one.failures)
    ran = {test for _, test in found}
    found |= {(one.promise, one.test): one for one in before if one.test not in ran}
    return [asdict(found[key]) for key in sorted(found)]


def _machine() -> dict[str, Any]:
    return {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "system": platform.system(),
        "cores": os.cpu_count(),
    }


@cache
def _commit() -> str:
    asked = ["git", "rev-parse", "--short=12", "HEAD"]
    return subprocess.run(asked, capture_output=True, text=True, check=False, cwd=_ROOT).stdout.strip()
