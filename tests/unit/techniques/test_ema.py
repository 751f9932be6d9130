"""The exponential average: its closed form, no share of the init, and the warning where a plan leaves one."""

from __future__ import annotations

import io
import math
from collections.abc import Collection
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from rich.console import Console
from torch import Tensor

from tests.bounds import distance, rounding_bound
from tests.tiny import TINY, tiny_plan
from tests.unit.train.test_update import Poisoned, clock
from tintype.audit.run import audit_plan
from tintype.config.strict import parse, read_yaml
from tintype.errors import UserError
from tintype.evaluation.protocol import Protocol
from tintype.evaluation.run import evaluate
from tintype.library import runs
from tintype.optim.ema import Ema, EmaSettings
from tintype.plan import Plan, plan_from_yaml
from tintype.runtime.interrupt import Interrupt
from tintype.study.preview import notes_before
from tintype.study.settings import StudySettings
from tintype.study.study import resolve
from tintype.techniques.apply import apply_techniques
from tintype.terminal.runs import Training
from tintype.train import checkpoint
from tintype.train.load import load_run
from tintype.train.loop import train
from tintype.train.record import RunRecord
from tintype.train.session import build_session
from tintype.train.state import TrainState, new_state
from tintype.train.update import update

GO, SKIP = torch.zeros(()), torch.ones(())


def shares(count: int, decay: float) -> Tensor:
    """The share of each of `count` updates in the ramped average, in closed form.

    While the ramp lasts, that is to update m, update k has C(k + 8, 9) / C(m + 9, 10). Then every update keeps `decay`.
    """
    ramped = min(count, math.floor(10 / (1 - decay) - 9))
    found = [math.comb(k + 8, 9) / math.comb(ramped + 9, 10) for k in range(1, ramped + 1)]
    later = count - ramped
    return torch.tensor(
        [share * decay**later for share in found] + [(1 - decay) * decay ** (later - k) for k in range(1, later + 1)],
        dtype=torch.float64,
    )


def average_of(values: Tensor, settings: EmaSettings, skips: Collection[int] = ()) -> Tensor:
    """The average over a training that has these weights after its steps; skipped steps leave the weights alone."""
    weight = torch.full_like(values[0], 1e4)  # an init that shows in any average that has some of it
    ema = settings.build({"w": weight})
    for step, value in enumerate(values, 1):
        if step not in skips:
            weight.copy_(value)
        if settings.update_due(step):
            ema.update(SKIP if step in skips else GO)
    return ema.average["w"]


@pytest.mark.parametrize("skips", [(), (1, 4, 5, 20, 400)], ids=["all-steps", "skips"])
@pytest.mark.parametrize("every", [1, 4, 10])
@pytest.mark.parametrize("decay", [0.9, 0.999])
@pytest.mark.parametrize("steps", [1, 10, 403])
def test_the_average_is_its_closed_form_and_has_nothing_of_the_init(
    steps: int, decay: float, every: int, skips: tuple[int, ...]
) -> None:
    values = torch.randn(steps, 64, generator=torch.Generator().manual_seed(steps))
    taken = [step for step in range(every, steps + 1, every) if step not in skips]
    if not taken:
        assert not average_of(values, EmaSettings(decay=decay, every=every), skips).any(), "no update yet"
        return
    weighted = shares(len(taken), decay)
    assert weighted.sum() == pytest.approx(1)
    expected = (weighted[:, None] * values.double()[[step - 1 for step in taken]]).sum(0)
    found = average_of(values, EmaSettings(decay=decay, every=every), skips)
    assert distance(found.double(), expected) < rounding_bound(len(taken), 1.0), "updates of values about 1"


def test_the_first_update_copies_the_weights_bit_for_bit() -> None:
    weight = torch.randn(1000, generator=torch.Generator().manual_seed(0)) * 1e3
    ema = Ema(0.999, {"w": weight})
    weight.mul_(torch.linspace(-1e-5, 1e-5, 1000))
    ema.update(GO)
    assert torch.equal(ema.average["w"], weight)


@pytest.mark.parametrize("techniques", [["ema:decay=0.9"], ["ema:decay=0.9,every=2"], ["ema:ramp=false,every=3"]])
def test_a_resumed_run_has_the_same_average_bit_for_bit(techniques: list[str], tmp_path: Path) -> None:
    """Stopped after step 3, within an interval of `every`, with a step that was skipped before."""

    def advance(state: TrainState, steps: int) -> None:
        for _ in range(steps):
            poisoned = replace(parts, objective=Poisoned(parts.objective, math.nan)) if state.step == 1 else parts
            update(poisoned, state, clock())

    states = []
    for stop in (False, True):
        parts = build_session(tiny_plan(techniques=techniques))
        state = new_state(parts)
        advance(state, 3)
        if stop:
            checkpoint.save(tmp_path, state, keep=2)
            parts = build_session(tiny_plan(techniques=techniques))
            state = new_state(parts)
            assert checkpoint.restore(tmp_path, state, lambda path, reason: None)
        advance(state, 3)
        states.append({name: tensor.clone() for name, tensor in state.tensors().items()})
    assert all(torch.equal(tensor, states[1][name]) for name, tensor in states[0].items())
    updates = states[0].get("ema/updates")
    assert updates is None or int(updates) == {1: 5, 2: 2}[plan_every(techniques)]


def plan_every(techniques: list[str]) -> int:
    ema = tiny_plan(techniques=techniques).ema
    assert isinstance(ema, EmaSettings)
    return ema.every


def test_before_the_first_update_the_weights_themselves_are_sampled(tmp_path: Path) -> None:
    plan = tiny_plan("run.save_every_steps=1", techniques=["ema:every=5"])
    interrupt = Interrupt()

    def stop(progress: object) -> None:
        if RunRecord(tmp_path / "run").lines:
            interrupt.signal = 15

    assert train(plan, tmp_path / "run", interrupt, stop).step == 1
    tensors = checkpoint.read(checkpoint.folder_of(tmp_path / "run" / "checkpoints", 1))[0]
    for name, tensor in load_run(tmp_path / "run")[0].modules.state_dict().items():
        assert torch.equal(tensor, tensors[f"modules/{name}"])


def test_an_interval_longer_than_the_training_is_refused() -> None:
    with pytest.raises(UserError, match=r"ema\.every is 7, but the run has 6 steps .* never be updated"):
        tiny_plan(techniques=["ema:every=7"])
    assert tiny_plan(techniques=["ema:every=6"]).ema


LEFT = [
    ("ema:ramp=false", 600, 0.999**600),
    ("ema:ramp=false", 100_000, None),
    ("ema:ramp=false,every=10", 600, 0.999**60),
    ("ema:ramp=false,every=10", 45_000, 0.999**4500),
    ("ema:ramp=false,every=10", 47_000, None),
    ("ema:ramp=false,decay=0.99", 459, None),
    ("ema:ramp=false,decay=0.99", 457, 0.99**457),
    ("ema", 1, None),
    ("ema:decay=0.9999,every=10", 600, None),
    ("power-ema", 600, None),
]


@pytest.mark.parametrize(("technique", "steps", "left"), LEFT)
def test_a_plan_warns_where_more_than_a_hundredth_of_the_init_is_left(
    technique: str, steps: int, left: float | None
) -> None:
    plan = tiny_plan(f"train.steps={steps}", "train.warmup_steps=0", techniques=[technique])
    if left is None:
        assert plan.warnings == []
    else:
        (warning,) = plan.warnings
        assert f"after {steps:,} steps {left:.0%} of the weight average is still the initial weights" in warning


def test_the_warned_share_is_that_of_the_average() -> None:
    """Measured: an init of 1 and weights of 0 after every step leave the share of the init."""
    settings = EmaSettings(decay=0.99, every=3, ramp=False)
    weight = torch.ones(1)
    ema = settings.build({"w": weight})
    weight.zero_()
    for step in range(1, 101):
        if settings.update_due(step):
            ema.update(GO)
    assert float(ema.average["w"]) == pytest.approx(settings.init_share(100), rel=1e-5)


@pytest.fixture(scope="module")
def uncorrected(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run with an average that starts from the init."""
    folder = tmp_path_factory.mktemp("uncorrected") / "run"
    train(tiny_plan(techniques=["ema:ramp=false"]), folder, Interrupt())
    return folder


def printed(plan: Plan, out: Path) -> str:
    console = Console(width=400, file=io.StringIO())
    view = Training(console, {"plan": plan, "out": out}, as_json=False)
    with view.calls() as calls:
        run = runs.train(plan, out, **calls)
    view.finish(run)
    return text_of(console)


def text_of(console: Console) -> str:
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def warnings_of(run: Path) -> list[str]:
    return [event["text"] for event in RunRecord(run).events if event["event"] == "warning"]


def test_the_start_of_a_run_prints_and_logs_the_warning_once(tmp_path: Path) -> None:
    words = "99% of the weight average is still the initial weights"
    plan = tiny_plan(techniques=["ema:ramp=false"])
    shown = printed(plan, tmp_path / "run")
    assert shown.count("warning:") == 1 and words in shown and shown.index(words) < shown.index("trained 6 steps")
    assert words in printed(plan, tmp_path / "run"), "on a second start too"
    assert len(warnings_of(tmp_path / "run")) == 1 and words in warnings_of(tmp_path / "run")[0]
    assert "warning" not in printed(tiny_plan(techniques=["ema"]), tmp_path / "control")
    assert warnings_of(tmp_path / "control") == []


def test_a_study_notes_each_warning_once_with_its_arms_before_the_first_step(tmp_path: Path) -> None:
    baseline = plan_from_yaml(TINY, "tiny", ["time.shift=3.0"])
    arms = [{"techniques": ["ema:ramp=false"], "name": "fixed"}, {"techniques": ["ema"], "name": "ramped"}]
    arms.append({"techniques": ["ema:ramp=false", "x-prediction"], "name": "two"})
    text = f"question: q\nrecipe: pocket\nseeds: [0, 1]\narms: {arms}\n"
    study = resolve("s", parse(StudySettings, read_yaml(text, "study")), {"": baseline})
    found = [note.text for note in notes_before(study, tmp_path) if note.warns]
    assert len(found) == 2 and any(one.startswith("fixed, two: after 6 steps 99%") for one in found)
    assert any(one.startswith("all arms: time.shift is 3, and sampling.shift is 1") for one in found)


@pytest.mark.parametrize(("technique", "found"), [("ema:ramp=false", True), ("ema", False), ("power-ema", False)])
def test_audit_finds_the_init_in_the_average(technique: str, found: bool) -> None:
    audited = audit_plan(tiny_plan("train.warmup_steps=0", techniques=[technique]), 1)
    findings = {finding.name: finding for finding in audited.findings}
    assert ("average-init" in findings) == found and audited.exit_code == int(found)
    if found:
        assert findings["average-init"].share == pytest.approx(0.999**6)


def test_audit_does_not_call_an_average_stuck_between_its_updates() -> None:
    audited = audit_plan(tiny_plan(techniques=["ema:every=3"]), 2)
    assert "average-stuck" not in {finding.name for finding in audited.findings}
    assert all(not group.averages.due for group in audited.seen.groups.values())


def test_scores_of_an_average_with_much_of_the_init_say_so(uncorrected: Path) -> None:
    protocol = "{count: 8, also: [], reference_count: 8, validation_count: 2, metrics: [fd], sampler: {steps: 1}}"
    result = evaluate(uncorrected, parse(Protocol, read_yaml(protocol, "protocol")))
    assert any("99% of the weight average is still the initial weights" in text for text in result.warnings)


def test_a_new_plan_of_ema_has_another_hash() -> None:
    hashes = {tiny_plan(techniques=[one]).hash for one in ("ema", "ema:ramp=false", "ema:every=2", "power-ema")}
    assert len(hashes) == 4
    assert apply_techniques(tiny_plan(), ["ema"]).hash == tiny_plan("ema.decay=0.999").hash
