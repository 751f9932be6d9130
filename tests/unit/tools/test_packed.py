"""The measurement of many runs on one GPU: it counts how attempts ended, and compares the bits of runs."""

from __future__ import annotations

from pathlib import Path

from tests.tiny import tiny_plan
from tintype.runtime.interrupt import Interrupt
from tintype.runtime.leases import Leases
from tintype.train.loop import train
from tools.speed.packed import digests, ends, training


def test_runs_of_one_plan_have_one_digest_and_others_another(tmp_path: Path) -> None:
    for name, seed in (("a", 0), ("b", 0), ("c", 1)):
        train(tiny_plan("train.steps=1", f"seed={seed}"), tmp_path / name, Interrupt())
    found = [digests(tmp_path / name)[0] for name in "abc"]
    assert found[0] == found[1] != found[2]


def test_attempts_are_counted_by_how_they_ended(tmp_path: Path) -> None:
    leases = Leases(tmp_path / "leases")
    for name, state in (("a", "crowded"), ("a", "done"), ("b", "done"), ("c", "")):
        lease = leases.take(name, {"step": 0})
        assert lease is not None
        lease.report({"state": "training", "share": 0.0, "step": 1})
        lease.end({"state": state, "text": ""}) if state else lease.beat()
    assert ends(tmp_path) == {"crowded": 1, "done": 2, "killed": 1} and len(list(training(tmp_path))) == 1
