"""The audit finds each planted mistake by its name, measures what is lost, and is silent where nothing is wrong."""

from __future__ import annotations

import hashlib
import json
import math
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import pytest
import torch
from torch import Tensor, nn
from torch._C._distributed_c10d import HashStore
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard, register_fsdp_forward_method

from tests.offline import NAMES, with_technique
from tests.ranks import run_ranks
from tests.slow import third
from tests.tiny import TINY, tiny_plan
from tintype import cli
from tintype.audit import run
from tintype.audit.findings import find, rounding_of
from tintype.audit.run import Audit, audit, audit_plan
from tintype.audit.seen import Bad, Group, Seen, Tally, Updates
from tintype.audit.updates import UpdateWatch
from tintype.model import attention
from tintype.model.layers import rotate, sinusoid
from tintype.optim.adamw import AdamW, AdamWSettings
from tintype.optim.ema import Ema
from tintype.optim.storage import Storage
from tintype.plan import Plan, plan_from_document
from tintype.recipes import packaged
from tintype.runtime.clock import Clock
from tintype.runtime.interrupt import Interrupt
from tintype.runtime.layout import ONE, local
from tintype.settings import IslandSettings, PrecisionSettings
from tintype.techniques import TECHNIQUES
from tintype.train import update as update_module
from tintype.train.load import load_run
from tintype.train.loop import train
from tintype.train.session import Session, build_session
from tintype.train.state import TrainState, new_state


def mistakes(found: Audit) -> set[str]:
    return {finding.name for finding in found.findings if finding.severity == "mistake"}


def audited(
    plan: Plan,
    before: Callable[[Session], object] = lambda parts: None,
    after: Callable[[Session, TrainState], object] = lambda parts, state: None,
    steps: int = 2,
) -> Audit:
    """An audit with something done to the parts, and something to the state."""
    parts = build_session(plan)
    for term in parts.terms:
        term.part.ready()
    before(parts)
    state = new_state(parts)
    after(parts, state)
    return audit(parts, state, steps)


def weights_in_bf16(parts: Session, state: TrainState) -> None:
    for parameter in parts.denoiser.parameters():
        parameter.data = parameter.data.bfloat16()


def average_in_bf16(parts: Session, state: TrainState) -> None:
    assert isinstance(state.ema, Ema)
    state.ema.average = {name: average.bfloat16() for name, average in state.ema.average.items()}


def projector_in_bf16(parts: Session, state: TrainState) -> None:
    parts.modules["losses_repa"].bfloat16()


def moments_in_bf16(parts: Session, state: TrainState) -> None:
    settings = parts.plan.optimizer
    assert isinstance(settings, AdamWSettings)
    state.optimizer = AdamW(settings, list(parts.modules.parameters()), Storage("kahan"))
    for group in state.optimizer.param_groups:
        group["base_lr"] = group["lr"]
    for parameter in parts.modules.parameters():
        moments = {slot: torch.zeros_like(parameter, dtype=torch.bfloat16) for slot in ("exp_avg", "exp_avg_sq")}
        state.optimizer.state[parameter] = {"step": torch.zeros(()), **moments}


def cast(module: nn.Module, place: int, to: Callable[[Tensor], Tensor]) -> None:
    """Casts one argument on its way into a module, as FSDP does."""

    def hook(_: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...]:
        return (*args[:place], to(args[place]), *args[place + 1 :])

    module.register_forward_pre_hook(hook)


def timestep_in_bf16(parts: Session, state: TrainState) -> None:
    cast(parts.denoiser, 1, Tensor.bfloat16)


def timestep_rounded_before(parts: Session, state: TrainState) -> None:
    cast(parts.denoiser, 1, lambda t_B: t_B.bfloat16().float())


def wave_in_bf16(parts: Session, state: TrainState) -> None:
    cast(parts.denoiser.time_in, 0, Tensor.bfloat16)


def timestep_rounded_inside(parts: Session, state: TrainState) -> None:
    """Give the modules the right input, but the wave is of other timesteps."""

    def narrow(wave_BF: Tensor) -> Tensor:
        phase_B = torch.atan2(wave_BF[:, 255], wave_BF[:, 127])
        t_B = phase_B / (1000 * math.exp(-math.log(10000) * 127 / 128))
        return sinusoid(t_B.bfloat16().float(), 256, 10000, 1000.0)

    cast(parts.denoiser.time_in, 0, narrow)


def rope_in_bf16(parts: Session, state: TrainState) -> None:
    for block in parts.denoiser.blocks:
        cast(block, 4, Tensor.bfloat16)


def buffer_in_bf16(parts: Session, state: TrainState) -> None:
    parts.denoiser.register_buffer("table", torch.ones(3, dtype=torch.bfloat16))


def buffer_in_fp16(parts: Session, state: TrainState) -> None:
    parts.denoiser.register_buffer("table", torch.ones(3, dtype=torch.float16))


@torch.no_grad()
def not_a_number(parts: Session, state: TrainState) -> None:
    local(parts.denoiser.get_parameter("blocks.0.gate_proj.weight"))[0, 0] = torch.nan


@torch.no_grad()
def at_the_largest(parts: Session, state: TrainState) -> None:
    parts.modules["text"].get_parameter("word.weight")[-1] = torch.finfo(torch.float32).max


PLANTED: dict[str, tuple[Callable[[Session, TrainState], None], set[str]]] = {
    "weights": (weights_in_bf16, {"weights-bf16", "moments-bf16"}),
    "average": (average_in_bf16, {"average-bf16"}),
    "projector": (projector_in_bf16, {"projector-bf16"}),
    "timestep": (timestep_in_bf16, {"timestep-bf16"}),
    "timestep rounded before": (timestep_rounded_before, {"timestep-bf16"}),
    "timestep rounded inside": (timestep_rounded_inside, {"timestep-bf16"}),
    "wave of the timestep": (wave_in_bf16, {"timestep-bf16"}),
    "rope": (rope_in_bf16, {"rope-bf16"}),
    "moments": (moments_in_bf16, {"moments-bf16"}),
    "buffer": (buffer_in_bf16, {"buffers-bf16"}),
    "fp16": (buffer_in_fp16, {"fp16", "buffers-bf16"}),
    "not finite": (not_a_number, {"non-finite"}),
    "saturated": (at_the_largest, {"saturated"}),
}
MIXED = tiny_plan("precision.compute=bf16", "model.depth=2", techniques=["ema", "repa:teacher=scenes,hidden=16"])


@pytest.mark.parametrize("name", PLANTED)
def test_each_planted_mistake_is_found_by_its_name_and_nothing_else_is(name: str) -> None:
    plant, names = PLANTED[name]
    found = audited(MIXED, after=plant)
    assert mistakes(found) == names and found.exit_code == 1
    assert all(finding.where and finding.remedy for finding in found.findings)


def test_a_step_that_is_skipped_says_nothing_of_weights_and_averages() -> None:
    found = audited(MIXED, after=not_a_number)
    assert found.seen.skipped_steps == found.seen.steps == 2 and "2 of 2 steps were skipped" in found.findings[0].what
    assert found.findings[0].where[0] == "denoiser.blocks inputs"  # where it was seen first
    groups = found.seen.groups.values()
    assert all(group.averages.due == 0 for group in groups)
    assert sum(group.updates.due for group in groups) == 0, "what is no number asks for no step"


def test_without_a_mistake_the_same_plan_is_silent() -> None:
    assert audited(MIXED).findings == []


def scaled_by(scale: float, found: Any) -> Any:
    return replace(found, parts={**found.parts, "loss": scale * found.parts["loss"]})


@pytest.mark.parametrize("accumulate", [1, 2])
def test_a_scaled_loss_is_found_by_what_reaches_backward(accumulate: int, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = tiny_plan(f"train.accumulate={accumulate}", techniques=["repa:teacher=scenes,hidden=16"])
    assert mistakes(audited(plan)) == set()
    true = update_module.micro_batch_losses
    monkeypatch.setattr(update_module, "micro_batch_losses", lambda *args: scaled_by(1024.0, true(*args)))
    found = audited(plan)
    assert mistakes(found) == {"loss-scaled"} and "by 1024 before" in found.findings[0].what


def test_a_table_that_is_rounded_where_it_is_used_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention, "rotate", lambda x, table, rope: rotate(x, table.bfloat16(), rope))
    assert mistakes(audited(MIXED)) == {"rope-bf16"}


def test_statistics_of_norms_in_bf16_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def narrow(x: Tensor, weight: Tensor, norms: str) -> Tensor:
        half = x.bfloat16()
        return (half * torch.rsqrt(half.square().mean(-1, keepdim=True) + 1e-6) * weight).to(x.dtype)

    monkeypatch.setattr(attention, "rms_norm", narrow)
    assert mistakes(audited(MIXED)) == {"norms-bf16"}


@pytest.mark.parametrize(
    ("setting", "name"),
    [
        ("islands.timestep=bf16", "timestep-bf16"),
        ("islands.rope=bf16", "rope-bf16"),
        ("islands.norms=bf16", "norms-bf16"),
        ("islands.softmax=bf16", "softmax-bf16"),
        ("islands.modulation=bf16", "modulation-bf16"),
        ("loss_scale=1024.0", "loss-scaled"),
    ],
)
def test_what_the_plan_itself_does_is_found_and_said_to_be_the_plans(setting: str, name: str) -> None:
    found = audited(tiny_plan("precision.compute=bf16", f"precision.{setting}"), steps=2)
    assert mistakes(found) == {name}
    assert f"precision.{setting.partition('=')[0]}" in found.findings[0].what + found.findings[0].remedy


@pytest.mark.parametrize("techniques", [["fp32"], ["island:softmax=fp32,modulation=fp32"]])
def test_more_precision_than_usual_is_no_mistake(techniques: list[str]) -> None:
    plan = tiny_plan("precision.compute=bf16", techniques=techniques)
    assert audited(plan, steps=2).findings == []


def test_steps_that_are_small_because_of_eps_are_not_lost() -> None:
    """The first gradients of a model that begins at zero are below AdamW's eps of 1e-8, and so are its steps."""
    assert audited(tiny_plan("optimizer.lr=1e-5"), steps=3).findings == []


def test_weights_gathered_in_bf16_are_noted() -> None:
    found = audited(tiny_plan("precision.compute=bf16", "precision.gather=bf16"), steps=1)
    assert [(one.name, one.severity) for one in found.findings] == [("gathered-bf16", "note")]


def audit_here(settings: list[str], *techniques: str) -> tuple[set[str], int]:
    plan = tiny_plan("precision.compute=bf16", *settings, techniques=["ema", "muon", *techniques])
    found = audit_plan(plan, 2)
    return {finding.name for finding in found.findings}, found.exit_code


def audit_both_here(settings: list[str]) -> list[tuple[set[str], int]]:
    return [audit_here(settings), audit_here(settings, "bf16-storage")]


@pytest.mark.parametrize("settings", [[], pytest.param(["run.distribution.kind=fsdp"], marks=pytest.mark.slow)])
def test_ranks_audit_as_one_process_does(settings: list[str]) -> None:
    assert run_ranks(2, audit_both_here, settings) == [[(set(), 0), audit_here([], "bf16-storage")]] * 2


def test_tf32_is_found_where_the_plan_says_fp32() -> None:
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    try:
        assert mistakes(audited(tiny_plan(), steps=1)) == {"tf32"}
        assert mistakes(audited(MIXED, steps=1)) == set()
    finally:
        torch.set_float32_matmul_precision(before)


def test_an_error_that_no_wrong_type_explains_is_raised() -> None:
    def broken(parts: Session, state: TrainState) -> None:
        cast(parts.denoiser, 0, lambda x_BCHW: x_BCHW[:, :, :, :0].expand(-1, 7, -1, -1))

    with pytest.raises(RuntimeError):
        audited(MIXED, after=broken)


def test_what_the_plan_asks_for_is_found_and_said_to_be_so() -> None:
    seen = Seen(PrecisionSettings(islands=IslandSettings(rope="bf16", modulation="bf16")))
    seen.rounded_inside["rope"] = ["denoiser.blocks"]
    rope, modulation = find(seen)
    assert "as the plan says: precision.islands.rope" in rope.what and rope.remedy == "precision.islands.rope=fp32"
    assert "as the plan says: precision.islands.modulation" in modulation.what


def seen_of(storage: Literal["fp32", "bf16"] = "fp32") -> tuple[Seen, Group]:
    """One group of weights, of which nothing was lost so far."""
    seen = Seen(PrecisionSettings(storage=storage))
    return seen, seen.group("denoiser.blocks", "matrices")


def fp32_steps(lost: int) -> Seen:
    seen, group = seen_of()
    group.types["weights"], group.updates = {"fp32"}, Updates(1000, lost)
    return seen


def bf16_steps(lost: int) -> Seen:
    seen, group = seen_of("bf16")
    group.types["weights"], group.updates = {"bf16"}, Updates(1000, lost)
    return seen


def bf16_moments(lost: int) -> Seen:
    seen, group = seen_of("bf16")
    group.types["moments"], group.moments = {"bf16"}, Tally(1000, lost)
    return seen


def fp32_averages(lost: int) -> Seen:
    seen, group = seen_of()
    group.types["averages"], group.averages = {"fp32"}, Tally(1000, lost)
    return seen


def fp8_operands(saturated: int) -> Seen:
    seen, _ = seen_of()
    seen.operands["denoiser.blocks"] = Bad(100_000, saturated=saturated)
    return seen


def backward_from(*scales: float) -> Seen:
    seen, _ = seen_of()
    seen.loss_scales = list(scales)
    return seen


def time_wave(off: float = 0.0, telling: int = 100, in_bf16: int = 0) -> Seen:
    seen, _ = seen_of()
    found = seen.input("denoiser.time_in", "x")
    found.types, found.off, found.telling, found.telling_in_bf16 = {"fp32"}, off, telling, in_bf16
    return seen


@pytest.mark.parametrize(
    ("at", "beyond", "name"),
    [
        (fp32_steps(10), fp32_steps(11), "updates-lost"),
        (bf16_steps(10), bf16_steps(11), "weights-bf16"),
        (bf16_moments(250), bf16_moments(251), "moments-bf16"),
        (fp8_operands(100), fp8_operands(101), "saturated"),
        (backward_from(1.009, 1.009), backward_from(1.011, 1.011), "loss-scaled"),
        (backward_from(2.0, 2.1), backward_from(2.0, 2.01), "loss-scaled"),
        (time_wave(off=0.01), time_wave(off=0.011), "timestep-bf16"),
        (time_wave(telling=7, in_bf16=7), time_wave(telling=8, in_bf16=8), "timestep-bf16"),
        (time_wave(telling=9, in_bf16=8), time_wave(telling=9, in_bf16=9), "timestep-bf16"),
    ],
)
def test_a_mistake_begins_beyond_its_threshold(at: Seen, beyond: Seen, name: str) -> None:
    assert all(finding.severity == "note" for finding in find(at))
    assert [finding.name for finding in find(beyond) if finding.severity == "mistake"] == [name]


def test_an_average_that_mostly_waits_is_a_note() -> None:
    assert find(fp32_averages(500)) == []
    assert [(finding.name, finding.severity) for finding in find(fp32_averages(501))] == [("average-stuck", "note")]


def test_rounding_is_told_by_how_far_small_steps_went_and_where_they_are_few_by_the_others() -> None:
    def group(wanted: float, gone: float, compensated: bool = False) -> Group:
        return Group("text", "gains", updates=Updates(1000, 0, wanted, gone, compensated=compensated))

    drawn, lost = group(20, 10.1), group(20, 10)
    assert (rounding_of(drawn, [drawn]), rounding_of(lost, [lost])) == ("stochastic", "nearest")
    few = group(19.9, 0)
    assert rounding_of(few, [few, group(100, 100)]) == "stochastic"
    assert rounding_of(few, [few, group(100, 100, compensated=True)]) == "nearest"
    assert rounding_of(group(100, 100, compensated=True), []) == "kahan"


def test_hooks_are_taken_away_again() -> None:
    kept: list[Session] = []
    audited(MIXED, before=kept.append)
    for module in kept[0].modules.modules():
        assert not module._forward_pre_hooks and not module._forward_hooks
    assert all(not parameter._post_accumulate_grad_hooks for parameter in kept[0].modules.parameters())


def test_the_steps_that_are_watched_are_those_of_training() -> None:
    watched: list[TrainState] = []
    audited(MIXED, after=lambda parts, state: watched.append(state), steps=3)
    parts = build_session(MIXED)
    for term in parts.terms:
        term.part.ready()
    state = new_state(parts)
    for _ in range(3):
        update_module.update(parts, state, Clock(parts.device))
    found, expected = watched[0].tensors(), state.tensors()
    assert found.keys() == expected.keys() and all(torch.equal(found[name], expected[name]) for name in expected)


def test_it_does_not_begin_with_the_small_steps_of_a_warm_up() -> None:
    """In the plan's own first steps the learning rate is 1e-12, which no weight would notice."""
    plan = tiny_plan("train.steps=1000000000", "train.warmup_steps=1000000000", "optimizer.eps=1e-15")
    assert mistakes(audited(plan, steps=2)) == {"updates-lost"}
    assert mistakes(audit_plan(plan, 2)) == set()


# what is lost


@pytest.mark.parametrize(("std", "share", "cosine"), [(0.005, 0.20, 0.99), (0.02, 0.59, 0.88), (0.1, 0.90, 0.45)])
def test_the_share_of_lost_steps_is_the_one_that_was_measured_before(std: float, share: float, cosine: float) -> None:
    """AdamW at 1e-4 on weights in bf16 of these sizes, measured apart from this code: shares of the weights that stay,
    and the cosine with the way in fp32."""
    generator = torch.Generator().manual_seed(0)
    layer = nn.Linear(256, 256, bias=False)
    layer.weight.data = (std * torch.randn(256, 256, generator=generator)).bfloat16()
    settings = AdamWSettings(lr=1e-4, eps=1e-8, beta2=0.999)
    modules = nn.ModuleDict({"text": layer})
    seen = Seen(PrecisionSettings())
    state = TrainState(modules, settings.build(modules.named_parameters()), None)
    with UpdateWatch(settings, state, seen, ONE).watching():
        for _ in range(20):
            layer.weight.grad = torch.randn(256, 256, generator=generator).bfloat16()
            state.optimizer.step()
    (group,) = seen.groups.values()
    assert group.updates.share == pytest.approx(share, abs=0.05)
    print(group.updates)
    assert group.updates.cosine == pytest.approx(cosine, abs=0.05)


def test_lost_steps_are_counted_as_by_hand() -> None:
    """The first step of AdamW is the learning rate, times g / (|g| + eps). All weights have a gradient by the third."""
    plan = tiny_plan("train.warmup_steps=0", "train.clip_norm=null", techniques=["bf16-storage"])
    starts: dict[str, Tensor] = {}
    kept: list[Session] = []

    def remember(parts: Session, state: TrainState) -> None:
        for _ in range(2):
            update_module.update(parts, state, Clock(parts.device))
        state.optimizer.state.clear()
        kept.append(parts)
        starts.update({name: parameter.detach().clone() for name, parameter in parts.modules.named_parameters()})

    found = audited(plan, after=remember, steps=1)
    due = lost = 0
    for name, parameter in kept[0].modules.named_parameters():
        assert parameter.grad is not None
        gradient = parameter.grad.double()
        asked = gradient.abs() > 1e-8  # AdamW's eps: below it, it is eps that makes steps small
        due += int(asked.sum())
        lost += int((asked & (parameter == starts[name])).sum())
    counted = [group.updates for group in found.seen.groups.values()]
    assert (sum(one.due for one in counted), sum(one.lost for one in counted)) == (due, lost) and lost > 0


def test_nearest_is_a_mistake_and_its_remedies_are_notes() -> None:
    found = {
        rounding: audited(tiny_plan(techniques=[f"bf16-storage:rounding={rounding}"]), steps=3)
        for rounding in ("nearest", "stochastic", "kahan")
    }
    assert mistakes(found["nearest"]) == {"weights-bf16"} and "precision.storage" in found["nearest"].findings[0].what
    for rounding in ("stochastic", "kahan"):
        assert found[rounding].exit_code == 0
        assert {finding.name for finding in found[rounding].findings} == {f"weights-{rounding}", "moments-bf16"}


def test_an_average_in_bf16_stays_where_it_is_and_one_in_fp32_moves() -> None:
    plan = tiny_plan("train.warmup_steps=0", techniques=["ema:ramp=false"])
    for plant, most in ((average_in_bf16, 1.0), (lambda *_: None, 0.0)):
        groups = audited(plan, after=plant, steps=4).seen.groups
        for place in (("text", "matrices"), ("denoiser.blocks", "gains")):
            share = groups[place].averages.share
            assert share is not None and abs(share - most) < 0.05


# silence


@pytest.mark.parametrize("name", third([name for name in NAMES if TECHNIQUES[name].seam != "precision"]))
def test_every_technique_is_silent(name: str) -> None:
    found = audit_plan(with_technique(name), 3)
    assert found.findings == [] and found.seen.steps == 3


MINI = (
    *("data.size_px=16", "data.count=32", "text.width=16", "text.heads=2", "model.depth=2", "model.width=32"),
    *("model.heads=2", "train.batch=8", "run.device=cpu"),
)


@pytest.mark.parametrize(("recipe", "smaller"), [("pocket", ("train.batch=8", "data.count=32")), ("mini", MINI)])
def test_the_recipes_are_silent(recipe: str, smaller: tuple[str, ...]) -> None:
    plan = plan_from_document(packaged.find("plans", recipe), smaller)
    found = audit_plan(plan, 4)
    assert found.findings == []
    assert any("model.compile" in remark for remark in found.remarks) == plan.model.compile


def test_a_plan_with_a_start_is_watched_from_its_weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    train(tiny_plan(), tmp_path / "first", Interrupt())
    first = load_run(tmp_path / "first")[0].modules.state_dict()
    begun: list[dict[str, Tensor]] = []
    watch = run.audit

    def noted(parts: Session, state: TrainState, *more: Any) -> Audit:
        begun.append({name: tensor.clone() for name, tensor in state.modules.state_dict().items()})
        return watch(parts, state, *more)

    monkeypatch.setattr(run, "audit", noted)
    before = sorted((tmp_path / "first").rglob("*"))
    audit_plan(tiny_plan(f"start.folder={tmp_path / 'first'}"), 1)
    assert all(torch.equal(tensor, first[name]) for name, tensor in begun[0].items())
    assert sorted((tmp_path / "first").rglob("*")) == before and list(tmp_path.iterdir()) == [tmp_path / "first"]


# FSDP


@contextmanager
def one_process() -> Iterator[None]:
    store = HashStore()
    torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    try:
        yield
    finally:
        torch.distributed.destroy_process_group()


def shard(blocks: bool, whole: bool) -> Callable[[Session], None]:
    """In bf16 by FSDP, with its casts of inputs to the blocks or to the whole denoiser, or without."""

    def apply(parts: Session) -> None:
        def policy(casts: bool) -> MixedPrecisionPolicy:
            return MixedPrecisionPolicy(param_dtype=torch.bfloat16, cast_forward_inputs=casts)

        for block in parts.denoiser.blocks:
            fully_shard(block, mp_policy=policy(blocks))
        fully_shard(parts.denoiser, mp_policy=policy(whole))
        fully_shard(parts.modules["text"])
        register_fsdp_forward_method(parts.modules["text"], "encode")

    return apply


@pytest.mark.parametrize(
    ("blocks", "whole", "names"),
    [(False, False, set()), (True, False, {"rope-bf16"}), (False, True, {"timestep-bf16"})],
)
def test_the_casts_of_fsdp_are_seen(blocks: bool, whole: bool, names: set[str]) -> None:
    with one_process():
        found = audited(tiny_plan("precision.compute=bf16", techniques=["ema"]), before=shard(blocks, whole), steps=2)
    assert mistakes(found) == names
    if names:
        assert "cast_forward_inputs=False" in found.findings[0].remedy
    if not whole:
        assert found.seen.steps == 2 and found.seen.groups["denoiser.blocks", "matrices"].updates.due > 0


def test_gradients_that_fsdp_spreads_are_looked_at_too() -> None:
    with one_process():
        found = audited(tiny_plan("precision.compute=bf16"), before=shard(False, False), after=not_a_number, steps=1)
    assert found.seen.groups["denoiser.img_in", "matrices"].bad["gradients"].non_finite > 0


# the command


def run_command(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int | str | None:
    monkeypatch.setattr(sys, "argv", ["tintype", "audit", *arguments])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    return ended.value.code


def digests(folder: Path) -> dict[str, tuple[str, int]]:
    return {
        str(path): (hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else "", path.stat().st_mtime_ns)
        for path in sorted(folder.rglob("*"))
    }


def test_a_run_is_audited_from_its_checkpoint_and_not_touched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    train(tiny_plan("run.save_every_steps=3", techniques=["ema"]), tmp_path / "run", Interrupt())
    before = digests(tmp_path)
    assert run_command(monkeypatch, str(tmp_path / "run"), "--json") == 0
    assert digests(tmp_path) == before
    result = json.loads(capsys.readouterr().out)
    assert (result["steps"], result["findings"], result["exit_code"]) == (4, [], 0)
    assert "from the checkpoint of step 6" in result["remarks"]


def test_exit_codes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    plan = tmp_path / "plan.yaml"
    plan.write_text(TINY)
    assert run_command(monkeypatch, str(plan), "--steps", "2") == 0
    assert "nothing found" in capsys.readouterr().out
    assert run_command(monkeypatch, str(plan), "--technique", "bf16-storage", "--steps", "3") == 1
    shown = capsys.readouterr().out
    assert "weights-bf16" in shown and "remedy" in shown
    assert run_command(monkeypatch, str(plan), "--technique", "bf16-storage", "--steps", "3", "--json") == 1
    (first, *_) = json.loads(capsys.readouterr().out)["findings"]
    assert first["name"] == "weights-bf16" and 0 < first["share"] < 1
    for wrong in (["no-such-recipe"], [str(tmp_path)], [str(plan), "--set", "optimizer.lrr=1"]):
        assert run_command(monkeypatch, *wrong) == 2
    assert run_command(monkeypatch, str(tmp_path), "--technique", "ema") == 2
    assert "is a folder with a fixed plan; --set and --technique are only for recipes" in capsys.readouterr().err
