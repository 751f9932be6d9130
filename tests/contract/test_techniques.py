"""The contract of `docs/techniques.md`, for every technique of the table."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from tests.fault.promises import Promise
from tests.offline import GROUND, NAMES, OFFLINE, baseline_for, refused_by_the_device, with_technique
from tests.slow import slow_unless, third
from tests.tiny import tiny_plan
from tintype.contract import technique as contract
from tintype.errors import UserError
from tintype.plan import diff
from tintype.techniques import SHARED_SEAMS, TECHNIQUES, Technique
from tintype.techniques.apply import apply_techniques
from tintype.train.session import build_session
from tintype.train.state import TrainState

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
EVERY = 12
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


@pytest.mark.parametrize("name", NAMES)
def test_changes_its_own_seam_and_nothing_else(name: str) -> None:
    contract.check_seams(GROUND, name)


@pytest.mark.parametrize("name", NAMES)
def test_survives_a_round_trip_through_yaml(name: str) -> None:
    contract.check_round_trip(GROUND, name)


@pytest.mark.parametrize("name", NAMES)
def test_switched_off_it_leaves_the_baseline_bit_for_bit(name: str) -> None:
    """Setting its seams back to the baseline's values must bring back the baseline's numbers."""
    contract.check_off(GROUND, name)


@pytest.mark.parametrize("name", NAMES)
def test_adds_exactly_the_parameters_that_it_declares_and_trains_them_all(name: str) -> None:
    if not refused_before_the_first_step(name):
        contract.check_parameters(GROUND, name)


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
    same = contract.resumed_is_whole(plan, tmp_path)
    for stop in range(1, plan.train.steps):
        promise.count(same, f"{' + '.join(names)}: stopped after step {stop}")


@pytest.mark.promise(1, control="the optimizer's state is not restored")
def test_control_a_resume_without_the_optimizer_is_another_run(
    promise: Promise, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same, where a resumed run begins with an optimizer of its own."""
    monkeypatch.setattr(TrainState, "_load_optimizer", lambda self, stored: None)
    promise.count(contract.resumed_is_whole(with_technique("ema"), tmp_path), "ema")


def test_the_spread_has_pairs_of_every_technique() -> None:
    chosen = [name for pair in filter(in_spread, PAIRS) for name in pair]
    assert all(chosen.count(name) >= 3 for name in NAMES)


@pytest.mark.parametrize("pair", slow_unless(in_spread, PAIRS), ids=" + ".join)
def test_any_two_train_together_or_are_refused_by_name(pair: tuple[str, str]) -> None:
    first, second = (TECHNIQUES[name] for name in pair)
    one_place = _holds(first) == _holds(second) and (first.seam not in SHARED_SEAMS or first.adds is second.adds)
    expected = pair not in REFUSED and not one_place
    if expected and refused_before_the_first_step(*pair):
        return
    assert contract.check_pair(GROUND, *pair) is expected


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
    contract.check_needs(GROUND, name)


def test_two_techniques_of_one_seam_are_refused_by_name() -> None:
    with pytest.raises(UserError, match=r"'ema' and 'ema' both set the plan's 'ema'"):
        apply_techniques(tiny_plan(), ["ema:decay=0.9", "ema:decay=0.99"])


def _holds(technique: Technique) -> tuple[str, str | None]:
    return technique.seam, technique.setting
