"""The contract of `docs/techniques.md`, for every technique of the table."""

from __future__ import annotations

import itertools
import tempfile
from pathlib import Path

import pytest
import torch

from tests.fault.promises import Promise
from tests.offline import NAMES, OFFLINE, baseline_for, refused_by_the_device, with_technique
from tests.slow import slow_unless, third
from tests.stopping import train_to
from tests.tiny import tiny_plan
from tintype.errors import UserError
from tintype.plan import Plan, diff, plan_from_yaml
from tintype.runtime.clock import Clock
from tintype.runtime.interrupt import Interrupt
from tintype.techniques import SHARED_SEAMS, TECHNIQUES, Technique
from tintype.techniques.apply import apply_techniques
from tintype.train import checkpoint
from tintype.train.folder import RunFolder
from tintype.train.loop import train
from tintype.train.session import Session, build_session
from tintype.train.start import begin
from tintype.train.state import TrainState, new_state
from tintype.train.update import update

NEEDY = [name for name in NAMES if TECHNIQUES[name].needs]
REFUSED = {
    ("epsilon-prediction", "lpips"),
    ("epsilon-prediction", "perceptual-dino"),
    ("irepa", "sprint"),
    ("irepa", "tread"),
    ("lpips", "repa-e"),
    ("lpips", "tokenizer"),
    ("perceptual-dino", "repa-e"),
    ("perceptual-dino", "tokenizer"),
    ("repa-burn-in", "repa-e"),
    ("repa-e", "tokenizer"),
    ("haste", "repa-e"),
    ("haste", "resolution-stages"),
}
"""Pairs of different seams that the parts themselves refuse, as they stand on the tiny plan."""
TOGETHER = [
    ("repa", "tread"),
    ("ema", "sprint"),
    ("repa-burn-in", "sprint"),
    ("power-ema", "repa-burn-in"),
    ("repa", "repa-e"),
    ("power-ema", "repa-e"),
    ("muon", "repa-e"),
    ("repa", "synthetic-then-real"),
    ("power-ema", "sft"),
    ("resolution-stages", "synthetic-then-real"),
]
"""Pairs that share state with each other: resumed together too."""
PAIRS = list(itertools.combinations(NAMES, 2))
EVERY = 6
"""`make test` trains one of so many pairs, `make test-slow` the others."""


def in_spread(pair: tuple[str, str]) -> bool:
    return sum(map(NAMES.index, pair)) % EVERY == 0


BESIDE = [
    (one, other)
    for one, other in PAIRS
    if TECHNIQUES[one].seam == TECHNIQUES[other].seam and TECHNIQUES[one].setting != TECHNIQUES[other].setting
]
"""Pairs of one seam of which one holds a single setting of it."""


def refused_before_the_first_step(*names: str) -> bool:
    if not refused_by_the_device(*names):
        return False
    with pytest.raises(UserError, match=r"precision\.matmul is fp8, but cpu has no FP8"):
        build_session(with_technique(*names))
    return True


def ready(parts: Session) -> Session:
    parts.ready()
    return parts


def begun(plan: Plan) -> tuple[Session, TrainState]:
    parts = ready(build_session(plan))
    with tempfile.TemporaryDirectory() as folder:
        return parts, begin(RunFolder(Path(folder)), parts, new_state(parts))


def losses(plan: Plan, steps: int = 2) -> list[float]:
    parts, state = begun(plan)
    return [float(update(parts, state, Clock(parts.device)).losses["loss"]) for _ in range(steps)]


@pytest.mark.parametrize("name", NAMES)
def test_changes_its_own_seam_and_nothing_else(name: str) -> None:
    changes = diff(baseline_for(name), with_technique(name))
    assert changes
    assert {TECHNIQUES[name].seam} <= {key.split(".")[0] for key in changes} <= TECHNIQUES[name].seams
    if TECHNIQUES[name].setting:
        assert set(changes) == {f"{TECHNIQUES[name].seam}.{TECHNIQUES[name].setting}"}


@pytest.mark.parametrize("name", NAMES)
def test_survives_a_round_trip_through_yaml(name: str) -> None:
    plan = with_technique(name)
    assert plan_from_yaml(plan.to_yaml(), "round trip") == plan


@pytest.mark.parametrize("name", NAMES)
def test_switched_off_it_leaves_the_baseline_bit_for_bit(name: str) -> None:
    """Setting its seams back to the baseline's values must bring back the baseline's numbers."""
    baseline, changed = baseline_for(name), with_technique(name)
    off = Plan(**{**dict(changed), **{seam: dict(baseline)[seam] for seam in TECHNIQUES[name].seams}})
    assert off.hash == baseline.hash
    assert losses(off) == losses(baseline)


@pytest.mark.parametrize("name", NAMES)
def test_adds_exactly_the_parameters_that_it_declares_and_trains_them_all(name: str) -> None:
    if refused_before_the_first_step(name):
        return
    baseline, parts = build_session(baseline_for(name)), build_session(with_technique(name))
    added = _parameter_names(parts) - _parameter_names(baseline)
    declared = {p for p in added if p.startswith(tuple(TECHNIQUES[name].trains))} if TECHNIQUES[name].trains else set()
    assert added == declared
    assert all(any(name.startswith(prefix) for name in added) for prefix in TECHNIQUES[name].trains)
    state = new_state(ready(parts))
    for _ in range(3):  # zero-initialised gates let the gradient through from the second step
        update(parts, state, Clock(parts.device))
    untouched = {k for k, p in parts.modules.named_parameters() if p.grad is None or not p.grad.any()}
    assert not untouched


@pytest.mark.promise(1)
@pytest.mark.parametrize(
    "names", [*third([(name,) for name in NAMES]), *slow_unless(in_spread, TOGETHER)], ids=" + ".join
)
def test_resume_is_bit_exact_from_every_step(names: tuple[str, ...], promise: Promise, tmp_path: Path) -> None:
    """Stop a run of each technique after every step; compare weights, averages, optimizer, snapshots and losses."""
    if refused_before_the_first_step(*names):
        return
    plan = with_technique(*names)
    plan = plan.model_copy(update={"run": plan.run.model_copy(update={"save_every_steps": 1})})
    same = _resumed_is_whole(plan, tmp_path)
    for stop in range(1, plan.train.steps):
        promise.count(same, f"{' + '.join(names)}: stopped after step {stop}")


@pytest.mark.promise(1, control="the optimizer's state is not restored")
def test_control_a_resume_without_the_optimizer_is_another_run(
    promise: Promise, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same, where a resumed run begins with an optimizer of its own."""
    monkeypatch.setattr(TrainState, "_load_optimizer", lambda self, stored: None)
    promise.count(_resumed_is_whole(with_technique("ema"), tmp_path), "ema")


def _resumed_is_whole(plan: Plan, folder: Path) -> bool:
    """Whether a run that is stopped after every step, and built anew each time, ends as one that is not."""
    train(plan, folder / "whole", Interrupt())
    for stop in range(1, plan.train.steps):
        train_to(plan, folder / "stopped", stop)
    assert train(plan, folder / "stopped", Interrupt()).finished
    same_logs = _logged(folder / "whole") == _logged(folder / "stopped")
    same_snapshots = _snapshots(folder / "whole") == _snapshots(folder / "stopped")
    return _states_equal(folder / "whole", folder / "stopped") and same_logs and same_snapshots


def _logged(folder: Path) -> list[tuple[int, float, float]]:
    return [(line["step"], line["loss"], line["grad_norm"]) for line in RunFolder(folder).metrics()]


def test_the_spread_has_pairs_of_every_technique() -> None:
    chosen = [name for pair in filter(in_spread, PAIRS) for name in pair]
    assert all(chosen.count(name) >= 3 for name in NAMES)


@pytest.mark.parametrize("pair", slow_unless(in_spread, PAIRS), ids=" + ".join)
def test_any_two_train_together_or_are_refused_by_name(pair: tuple[str, str]) -> None:
    first, second = (TECHNIQUES[name] for name in pair)
    if pair in REFUSED or (
        _holds(first) == _holds(second) and (first.seam not in SHARED_SEAMS or first.adds is second.adds)
    ):
        with pytest.raises(UserError, match=f"'{first.name}' and '{second.name}'"):
            with_technique(*pair)
        return
    if refused_before_the_first_step(*pair):
        return
    parts, state = begun(with_technique(*pair))
    assert update(parts, state, Clock(parts.device)).finite
    assert all(bool(parameter.isfinite().all()) for parameter in state.parameters)


@pytest.mark.parametrize("pair", BESIDE, ids=" + ".join)
def test_one_that_holds_a_single_setting_goes_with_others_of_its_seam_in_any_order(
    pair: tuple[str, str],
) -> None:
    specs = [OFFLINE.get(name, name) for name in pair]
    plan = baseline_for(*pair)
    both = apply_techniques(plan, specs)
    assert both == apply_techniques(plan, specs[::-1])
    assert set(diff(plan, both)) == set().union(*(diff(plan, apply_techniques(plan, [spec])) for spec in specs))


@pytest.mark.parametrize("name", NEEDY)
def test_is_refused_by_name_where_the_plan_lacks_what_it_needs(name: str) -> None:
    with pytest.raises(UserError, match=rf"'{name}'.*{'|'.join(TECHNIQUES[name].needs)}"):
        apply_techniques(tiny_plan(), [OFFLINE.get(name, name)])


def test_two_techniques_of_one_seam_are_refused_by_name() -> None:
    with pytest.raises(UserError, match=r"'ema' and 'ema' both set the plan's 'ema'"):
        apply_techniques(tiny_plan(), ["ema:decay=0.9", "ema:decay=0.99"])


def _holds(technique: Technique) -> tuple[str, str | None]:
    return technique.seam, technique.setting


def _parameter_names(parts: Session) -> set[str]:
    return {name for name, _ in parts.modules.named_parameters()}


def _snapshots(folder: Path) -> dict[str, str]:
    return {path.parent.name: path.read_text() for path in (folder / "snapshots").glob("*/manifest.json")}


def _states_equal(first: Path, second: Path) -> bool:
    states = []
    for folder in (first, second):
        checkpoints = RunFolder(folder).checkpoints
        states.append(checkpoint.read(checkpoint.folder_of(checkpoints, checkpoint.steps(checkpoints)[-1])))
    (tensors_1, scalars_1), (tensors_2, scalars_2) = states
    same = set(tensors_1) == set(tensors_2) and all(torch.equal(tensors_1[key], tensors_2[key]) for key in tensors_1)
    return same and scalars_1 == scalars_2
