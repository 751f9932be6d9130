"""A plan or study file is small: one that is not is refused before it takes time."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from tests.fault.promises import Promise
from tintype.config import strict
from tintype.config.strict import read_yaml
from tintype.errors import UserError
from tintype.plan import plan_from_yaml, read_plan

KEYS = "\n".join(f"k{index}: 1" for index in range(200_000))
FITS = strict._MOST_BYTES - 10
HOSTILE = {
    "200,000 keys": KEYS,
    "as many keys as fit": KEYS[:FITS].rpartition("\n")[0],
    "items of a list": "a: [" + "1," * (FITS // 2) + "]",
    "lists in lists": "[" * FITS,
    "keys in keys": "{a: " * (FITS // 4),
    "lists on one line": "- " * (FITS // 2),
    "keys of keys": "? " * (FITS // 2),
    "anchors": "\n".join(f"k{index}: &a{index} 1" for index in range(FITS // 20)),
    "aliases": "a: &a [1]\n" + "\n".join(f"k{index}: *a" for index in range(FITS // 15)),
    "documents": "---\n" * (FITS // 4),
    "a long key": f"{'k' * (FITS - 10)}: 1",
    "a long value": "a: " + "x" * (FITS - 10),
    "a long kind": "objective: {kind: " + "x" * (FITS - 30) + "}",
    "a long tag": "!" * FITS,
    "directives": "%a b\n" * (FITS // 5),
    "a deep override": "a: " + "[" * 41 + "]" * 41,
    "a number of many digits": "seed: " + "9" * 5000,
}


def seconds(text: str) -> float:
    """The CPU time that it takes to refuse a plan."""
    began = time.process_time()
    with pytest.raises(UserError):
        plan_from_yaml(text, "plan.yaml")
    return time.process_time() - began


@pytest.mark.promise(27)
def test_a_hostile_file_is_refused_as_fast_as_a_plain_one_of_the_most_size(promise: Promise) -> None:
    """Refuse 200,000 keys, deep nesting, long keys and aliases in the time that a comment of the most size takes."""
    most_s = 0.5 + 10 * min(seconds("#" * FITS + "\nx: 1") for _ in range(2))  # a letter of each costs about the same
    for name, text in promise.choose(list(HOSTILE.items()), short=9):
        promise.count((took := seconds(text)) < most_s, f"{name}: {took:.2f} s of {most_s:.2f} s")


@pytest.mark.promise(27, control="no limits on size and number")
def test_control_without_limits_many_keys_take_long(promise: Promise, monkeypatch: pytest.MonkeyPatch) -> None:
    """Read 12,000 keys with the limits, which stop after 5,000, and without."""
    text = "\n".join(f"k{index}: 1" for index in range(12_000))
    with_limits = min(seconds(text) for _ in range(2))
    for name in ("_MOST_BYTES", "_MOST_VALUES", "_MOST_PROBLEMS"):
        monkeypatch.setattr(strict, name, 10**9)
    promise.count(seconds(text) < 2 * with_limits, "12,000 keys")


def test_the_message_is_short_too() -> None:
    for text in (
        "k" * 900 + ": 1",
        f"? {'k' * 9_000}\n: 1",
        "objective: {kind: " + "x" * 9_000 + "}",
        "a: !" + "b" * 9_000,
    ):
        with pytest.raises(UserError) as refused:
            plan_from_yaml(text, "plan.yaml")
        assert len(str(refused.value)) < 1_000


def test_each_limit_says_the_place_and_the_number(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="plan is larger than 256 KiB"):
        read_yaml(KEYS, "plan")
    with pytest.raises(UserError, match="plan, line 5001: the file has more than 10,000 keys and values"):
        read_yaml("\n".join(f"k{index}: 1" for index in range(6_000)), "plan")
    with pytest.raises(UserError, match="plan, line 2: the values are nested more than 40 levels deep"):
        read_yaml("a:\n  " + "[" * 41, "plan")
    with pytest.raises(UserError, match="and 30 more mistakes"):
        plan_from_yaml("\n".join(f"k{index}: 1" for index in range(50)), "plan")
    (tmp_path / "large.yaml").write_text(KEYS)
    with pytest.raises(UserError, match=r"large\.yaml is larger than 256 KiB"):
        read_plan(str(tmp_path / "large.yaml"))


def test_what_has_no_end_is_not_read_to_its_end() -> None:
    with pytest.raises(UserError, match="/dev/zero"):
        strict.read_file(Path("/dev/zero"))


def test_what_is_within_the_limits_is_read() -> None:
    assert len(read_yaml("\n".join(f"k{index}: 1" for index in range(4_999)), "plan").data) == 4_999
    assert read_yaml("a: " + "[" * 39 + "]" * 39, "plan").data
