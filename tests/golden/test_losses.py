"""The first losses of `pocket`, and of each technique on it, are those of `losses.json`.

A change of these numbers is a decision: `pytest -n 0 tests/golden --record` writes the file again, and the commit says
why. The numbers are equal bit for bit on one machine; from CPU to CPU they differ by rounding.
"""

from __future__ import annotations

import json
import tempfile
from importlib.metadata import version
from pathlib import Path

import pytest

from tests.offline import with_technique
from tests.slow import third
from tintype.plan import Plan, read_plan
from tintype.runtime.clock import Clock
from tintype.techniques import TECHNIQUES
from tintype.train.folder import RunFolder
from tintype.train.session import build_session
from tintype.train.start import begin
from tintype.train.state import new_state
from tintype.train.update import update

FILE = Path(__file__).with_name("losses.json")
STEPS = 6
ROUNDING = 4e-5
"""Sums of some 1e5 products in fp32 err by sqrt(1e5) eps of themselves, in either direction. What a technique changes,
it changes by more from the fourth step on, or not at all."""
COARSE = {"bf16-storage": 3e-4, "island": 3e-4, "repa-e": 3e-4}
"""Where bf16, or the sign of an L1 loss, makes a step of what is a rounding error elsewhere."""
TRANSFORMERS = "5.22.2"
"""The version that drew the weights of the tiny DINO."""
NAMES = ["pocket", *sorted(TECHNIQUES)]


def pocket(*assignments: str) -> Plan:
    return read_plan("pocket", ["run.device=cpu", "train.steps=12", "train.warmup_steps=2", *assignments])


def first_losses(name: str) -> list[float]:
    parts = build_session(pocket() if name == "pocket" else with_technique(name, plan=pocket))
    parts.ready()
    with tempfile.TemporaryDirectory() as folder:
        state = begin(RunFolder(Path(folder)), parts, new_state(parts))
    return [float(update(parts, state, Clock(parts.device)).losses["loss"]) for _ in range(STEPS)]


@pytest.mark.parametrize("name", third(NAMES))
def test_first_losses_are_as_recorded(name: str, request: pytest.FixtureRequest) -> None:
    if name == "fp8":
        pytest.skip("fp8 does not run on a CPU, where these losses are recorded")
    if name in ("haste", "perceptual-dino") and version("transformers") != TRANSFORMERS:
        pytest.skip(f"the tiny DINO is drawn by transformers, and these losses are of {TRANSFORMERS}")
    found = first_losses(name)
    recorded = json.loads(FILE.read_text()) if FILE.is_file() else {}
    if request.config.getoption("--record"):
        FILE.write_text(json.dumps(recorded | {name: found}, indent=1, sort_keys=True) + "\n")
        return
    assert found == pytest.approx(recorded[name], rel=COARSE.get(name, ROUNDING))


def test_every_technique_is_recorded() -> None:
    assert set(json.loads(FILE.read_text())) == set(NAMES) - {"fp8"}
