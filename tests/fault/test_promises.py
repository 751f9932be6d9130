"""The count of promises: what docs/reliability.md says was tried."""

from __future__ import annotations

import ast
import json
from pathlib import Path

import pytest

from tests.fault.promises import PROMISES, Promise

ROOT = Path(__file__).parents[2]
RECORDS = json.loads((ROOT / "docs" / "reliability.json").read_text(encoding="utf-8"))["records"]


def test_a_broken_try_fails_its_test() -> None:
    promise = Promise(full=False)
    promise.count(True, "one")
    promise.judge()
    promise.count(False, "two")
    with pytest.raises(AssertionError, match="1 of 2 did not hold: two"):
        promise.judge()


def test_a_control_that_cannot_fail_fails_its_test() -> None:
    promise = Promise(full=False, control="checksums off")
    promise.count(True, "one")
    with pytest.raises(AssertionError, match="1 tries held with checksums off"):
        promise.judge()
    promise.count(False, "two")
    promise.judge()


def test_the_short_form_spreads_its_tries() -> None:
    assert Promise(full=False).choose(range(100), 4) == [0, 25, 50, 75]
    assert Promise(full=False).choose(range(3), 4) == [0, 1, 2]
    assert Promise(full=True).choose(range(100), 4) == list(range(100))


def marked_tests() -> set[str]:
    """The tests that are marked with a promise, as `file::name`."""
    found = set()
    for file in ROOT.glob("tests/**/test_*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef) and any(map(_marks_promise, node.decorator_list)):
                found.add(f"{file.relative_to(ROOT)}::{node.name}")
    return found


def _marks_promise(decorator: ast.expr) -> bool:
    return isinstance(decorator, ast.Call) and ast.unparse(decorator.func) == "pytest.mark.promise"


def test_the_table_is_of_the_tests_that_there_are() -> None:
    recorded = {record["test"] for record in RECORDS}
    assert recorded == marked_tests(), "run `make test-faults`, which writes docs/reliability.json"


@pytest.mark.parametrize("number", PROMISES)
def test_each_promise_was_kept_and_broken_by_its_control(number: int) -> None:
    records = [record for record in RECORDS if record["promise"] == number]
    kept = [record for record in records if record["control"] is None]
    controls = [record for record in records if record["control"] is not None]
    assert kept and all(record["tries"] and not record["failures"] and record["how"] for record in kept)
    assert controls and all(record["failures"] for record in controls)
