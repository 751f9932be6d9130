"""The first losses of `plan.yaml`, and of each technique on it, are those of `losses.json`.

The plan is fixed: packaged recipes may change without these losses.

A change of these numbers is a decision: raise `tintype.NUMERICS`, then `pytest -n 0 tests/golden --record` writes the
file again, and the commit says why. `numerics.json` has the number that each loss was recorded with. The numbers are
equal bit for bit on one machine; from CPU to CPU they differ by rounding.
"""

from __future__ import annotations

import hashlib
import json
import tempfile
from importlib.metadata import version
from pathlib import Path

import pytest

import tintype
from tests.offline import with_technique
from tests.slow import third
from tests.tiny import GOLDEN_PLAN
from tintype.plan import Plan, read_plan
from tintype.runtime.clock import Clock
from tintype.techniques import TECHNIQUES
from tintype.train.folder import RunFolder
from tintype.train.session import build_session
from tintype.train.start import begin
from tintype.train.state import new_state
from tintype.train.update import update

FILE = Path(__file__).with_name("losses.json")
SEALS = Path(__file__).with_name("numerics.json")
"""`tintype.NUMERICS` when the losses of a name were recorded, and their digest."""
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
    return read_plan(str(GOLDEN_PLAN), ["run.device=cpu", "train.steps=12", "train.warmup_steps=2", *assignments])


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
    recorded, same = json.loads(FILE.read_text()), COARSE.get(name, ROUNDING)
    if request.config.getoption("--record"):
        if name not in recorded or found != pytest.approx(recorded[name], rel=same):
            record(name, found, FILE, SEALS)
        return
    assert found == pytest.approx(recorded[name], rel=same)


def digest_of(losses: list[float]) -> str:
    return hashlib.sha256(json.dumps(losses).encode()).hexdigest()[:16]


def record(name: str, losses: list[float], file: Path, seals: Path) -> None:
    """Write new losses; refuse to change those that were recorded with the same `NUMERICS`."""
    recorded, sealed = (json.loads(one.read_text()) for one in (file, seals))
    if name in sealed and sealed[name][0] >= tintype.NUMERICS:
        pytest.fail(f"the losses of {name} change: raise NUMERICS in tintype/__init__.py first, and record again")
    file.write_text(json.dumps(recorded | {name: losses}, indent=1, sort_keys=True) + "\n")
    sealed[name] = [tintype.NUMERICS, digest_of(losses)]
    seals.write_text(json.dumps(sealed, sort_keys=True).replace("], ", "],\n ") + "\n")


def test_losses_do_not_change_without_numerics() -> None:
    """Workers of two versions could not be told apart else."""
    recorded, sealed = (json.loads(one.read_text()) for one in (FILE, SEALS))
    assert {name: digest_of(losses) for name, losses in recorded.items()} == {
        name: digest for name, (_, digest) in sealed.items()
    }, "losses.json was changed by hand; raise NUMERICS in tintype/__init__.py, and record"
    assert max(numerics for numerics, _ in sealed.values()) <= tintype.NUMERICS


def test_a_changed_loss_is_recorded_under_a_new_number_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file, seals = tmp_path / "losses.json", tmp_path / "numerics.json"
    file.write_text("{}")
    seals.write_text("{}")
    record("a", [1.0], file, seals)
    record("b", [1.0], file, seals)  # a new technique changes nothing
    with pytest.raises(pytest.fail.Exception, match="the losses of a change: raise NUMERICS"):
        record("a", [2.0], file, seals)
    monkeypatch.setattr(tintype, "NUMERICS", tintype.NUMERICS + 1)
    record("a", [2.0], file, seals)
    record("b", [2.0], file, seals)  # all that change together share one
    with pytest.raises(pytest.fail.Exception):
        record("a", [3.0], file, seals)
    assert json.loads(file.read_text()) == {"a": [2.0], "b": [2.0]}


def test_every_technique_is_recorded() -> None:
    assert set(json.loads(FILE.read_text())) == set(NAMES) - {"fp8"}
