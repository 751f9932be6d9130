"""The discriminator of repa-e: whom its two losses reach, and what becomes of it in a run."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import torch
from torch import Tensor

from tests.bounds import gradient_distance, network_bound
from tests.ranks import run_ranks
from tests.slow import slow_unless
from tests.stopping import stop_and_go_on
from tests.tiny_tuning import (
    NO_PERCEPTUAL,
    REPA,
    REPA_E,
    clock,
    equal,
    everything,
    gradients,
    ready,
    step_of,
    tuned_plan,
    write_small_vae,
)
from tintype.errors import UserError
from tintype.losses.discriminator import Discriminator
from tintype.losses.repa_e.training import RepaE
from tintype.plan import Plan
from tintype.runtime.interrupt import Interrupt
from tintype.tokenizers.part import to_floats
from tintype.train import checkpoint
from tintype.train.batch import read_batch
from tintype.train.folder import RunFolder
from tintype.train.load import load_run
from tintype.train.loop import train
from tintype.train.parts import JOINT_ONLY, TOKENIZER
from tintype.train.record import RunRecord
from tintype.train.session import Session, build_session
from tintype.train.state import new_state
from tintype.train.update import update

LATE = 3
"""Steps, of the six of a tiny run, that come before a discriminator that does not begin at once."""


def judged(start: int = 0, weight: float = 0.1, base: str = NO_PERCEPTUAL) -> str:
    return f"{base},adversarial.weight={weight},adversarial.start_step={start},adversarial.width=8"


def judged_plan(*assignments: str, techniques: Sequence[str]) -> Plan:
    """On pictures that are large enough for the discriminator."""
    return tuned_plan("data.size_px=32", *assignments, techniques=techniques)


def judge_of(tuning: RepaE) -> Discriminator:
    assert tuning.discriminator is not None
    return tuning.discriminator


def after_tuning(techniques: Sequence[str], step: int = 0) -> tuple[Session, RepaE, dict[str, Tensor]]:
    """With the gradients of a first micro-batch, and its losses."""
    parts, tuning = ready(judged_plan(techniques=techniques))
    _, losses = step_of(parts, tuning).tune(read_batch(parts, 0, 4, step, clock()), last=True)
    return parts, tuning, losses


def seen_and_true(parts: Session, tuning: RepaE) -> tuple[Tensor, Tensor]:
    batch = read_batch(parts, 0, 4, 0, clock())
    assert batch.image_BCHW is not None
    x = to_floats(batch.image_BCHW)
    network = tuning.tokenizer.network
    return network.decode_raw(tuning.tokenizer.sampled(network.posterior(x), batch.draws)), x


# which loss reaches what


@pytest.mark.parametrize("techniques", [[judged(base=REPA_E)], [REPA, judged(base=REPA_E)]], ids=["alone", "both"])
def test_its_losses_reach_the_autoencoder_and_the_discriminator_and_nothing_else(techniques: list[str]) -> None:
    parts, tuning, losses = after_tuning(techniques)
    assert {"vae/adversarial", "vae/discriminator"} <= set(losses)
    names = {name for name, _ in parts.modules.named_parameters()}
    assert set(gradients(parts)) == {name for name in names if name.startswith((TOKENIZER, JOINT_ONLY))}
    assert all(p.requires_grad for p in parts.modules.parameters())
    assert not any(id(p) in {id(one) for one in tuning.tuned} for p in tuning.judging)


def test_the_autoencoder_gets_the_generators_gradient_and_none_of_the_discriminators() -> None:
    weight = 30.0  # beside a reconstruction that would hide it
    parts, tuning, losses = after_tuning([judged(weight=weight)])
    plain, _, others = after_tuning([NO_PERCEPTUAL])
    seen, _ = seen_and_true(parts, tuning)
    loss = -judge_of(tuning)(seen).mean()
    expected = torch.autograd.grad(loss, tuning.tuned)
    without = gradients(plain)
    named = {name: p for name, p in parts.modules.named_parameters() if name.startswith(TOKENIZER)}
    for (name, parameter), gradient in zip(named.items(), expected, strict=True):
        assert parameter.grad is not None and gradient.any(), name
        scale = float(gradient.abs().max())
        torch.testing.assert_close(parameter.grad - without[name], weight * gradient, rtol=1e-3, atol=1e-3 * scale)
    total = float(others["vae/loss"]) + weight * float(losses["vae/adversarial"])
    assert float(losses["vae/loss"]) == pytest.approx(total, rel=1e-5)
    assert float(losses["vae/adversarial"]) == pytest.approx(loss.item(), rel=1e-5)


@pytest.mark.parametrize("weight", [0.1, 30.0])
def test_the_discriminator_gets_its_own_gradient_whatever_the_generators_weight(weight: float) -> None:
    parts, tuning, losses = after_tuning([judged(weight=weight)])
    seen, true = (picture.detach().double() for picture in seen_and_true(parts, tuning))
    judge = copy.deepcopy(judge_of(tuning)).double()
    logit, true_logit = (judge.layers(picture) for picture in (seen, true))
    loss = 0.5 * ((1 - true_logit).clamp_min(0).mean() + (1 + logit).clamp_min(0).mean())
    expected = torch.autograd.grad(loss, list(judge.parameters()))
    assert float(losses["vae/discriminator"]) == pytest.approx(loss.item(), rel=1e-5)
    for parameter, gradient in zip(tuning.judging, expected, strict=True):
        assert parameter.grad is not None
        torch.testing.assert_close(parameter.grad.double(), gradient, rtol=1e-3, atol=network_bound(judge, gradient))


def test_the_denoiser_takes_no_notice() -> None:
    """Logged numbers of a first step, before which all is the same: its gradients, their norm and so its weights."""
    found = []
    for technique in (judged(), NO_PERCEPTUAL):
        parts, _ = ready(judged_plan(techniques=[REPA, technique]))
        norm = update(parts, new_state(parts), clock()).grad_norm
        found.append((norm, gradients(parts, without=(TOKENIZER, JOINT_ONLY))))
    assert found[0][0] == found[1][0]
    assert equal(found[0][1], found[1][1])


# when


def test_before_its_first_step_all_is_as_without_it() -> None:
    found = []
    for technique in (judged(LATE), NO_PERCEPTUAL):
        parts, _ = ready(judged_plan(techniques=[technique, "ema"]))
        state = new_state(parts)
        for _ in range(LATE):
            losses = update(parts, state, clock()).losses
            assert not {"vae/adversarial", "vae/discriminator"} & set(losses)
        tensors = {n: t for n, t in everything(state).items() if not n.startswith(f"modules/{JOINT_ONLY}")}
        assert not any(JOINT_ONLY in name for name in tensors)
        found.append(tensors)
        if technique != NO_PERCEPTUAL:
            assert {"vae/adversarial", "vae/discriminator"} <= set(update(parts, state, clock()).losses)
            assert any(name.startswith(f"optimizer/{JOINT_ONLY}") for name in state.tensors())
    assert equal(*found)


def test_without_a_weight_there_is_none() -> None:
    parts, tuning = ready(judged_plan(techniques=[f"{NO_PERCEPTUAL},adversarial.start_step=0"]))
    assert tuning.discriminator is None and "adversary" not in parts.modules
    assert len(new_state(parts).optimizer.param_groups) == 2
    assert "adversary" not in parts.optimized()


# the step as a whole


def test_it_is_clipped_by_itself() -> None:
    parts, tuning = ready(judged_plan(techniques=[judged() + ",clip_norm=1e-3"]))
    update(parts, new_state(parts), clock())
    for parameters in (tuning.judging, tuning.tuned):
        norm = torch.stack([p.grad.norm() for p in parameters if p.grad is not None]).norm()
        assert float(norm) == pytest.approx(1e-3, rel=1e-2)


@pytest.mark.parametrize("assignment", ["train.accumulate=2", "precision.loss_scale=1024.0"])
def test_micro_batches_and_a_loss_scale_leave_its_gradient_as_it_is(assignment: str) -> None:
    found = []
    for assignments in ([], [assignment]):
        parts, tuning = ready(judged_plan(*assignments, techniques=[judged() + ",clip_norm=1e9"]))
        result = update(parts, new_state(parts), clock())
        of_it = {f"{JOINT_ONLY}{name}": p.grad for name, p in judge_of(tuning).named_parameters() if p.grad is not None}
        found.append((float(result.losses["vae/discriminator"]), of_it))
    assert found[0][0] == pytest.approx(found[1][0], rel=1e-5)
    assert gradient_distance(found[1][1], found[0][1]) < 0.01


def test_a_gradient_of_it_that_is_not_finite_leaves_all_as_it_was() -> None:
    parts, tuning = ready(judged_plan(techniques=[judged(), "ema"]))
    state = new_state(parts)
    update(parts, state, clock())
    before = everything(state)
    tuning.judging[0].register_hook(lambda gradient: gradient * torch.nan)
    assert not update(parts, state, clock()).finite
    assert equal(before, state.tensors())


@pytest.mark.parametrize("optimizer", [[], ["muon"]], ids=["adamw", "muon"])
def test_it_has_a_group_of_its_own_and_no_average(optimizer: list[str], tmp_path: Path) -> None:
    technique = judged() + ",lr=5e-4,adversarial.lr=3e-4"
    parts, tuning = ready(judged_plan("train.warmup_steps=4", techniques=[technique, "ema", *optimizer]))
    state = new_state(parts)
    *others, tuned, last = state.optimizer.param_groups
    assert [id(p) for p in last["params"]] == [id(p) for p in tuning.judging]
    assert [id(p) for p in tuned["params"]] == [id(p) for p in tuning.tuned]
    assert (tuned["base_lr"], last["base_lr"]) == (5e-4, 3e-4)
    assert not {id(p) for group in others for p in group["params"]} & {id(p) for p in tuning.judging}
    update(parts, state, clock())
    assert last["lr"] == pytest.approx(3e-4 / 4)
    assert all("exp_avg" in state.optimizer.state[p] for p in tuning.judging)
    assert state.ema is not None and not any(JOINT_ONLY in name for name in state.ema.tensors())
    RunFolder(tmp_path).write_about(parts)
    about = RunRecord(tmp_path).read("optimizer.json")
    assert about["adversary"]["names"] == [f"{JOINT_ONLY}{name}" for name, _ in judge_of(tuning).named_parameters()]
    listed = sorted(name for group in about.values() for name in group["names"])
    assert listed == sorted(name for name, _ in parts.modules.named_parameters())


def test_it_stays_in_fp32_and_computes_as_the_autoencoder_does() -> None:
    losses = []
    for compute in ("fp32", "bf16"):
        technique = judged() + f",compute={compute}"
        parts, tuning = ready(judged_plan("precision.compute=bf16", techniques=[technique, "bf16-storage"]))
        losses.append(float(update(parts, new_state(parts), clock()).losses["vae/discriminator"]))
        assert {p.dtype for p in tuning.judging} == {torch.float32}
        assert {p.grad.dtype for p in tuning.judging if p.grad is not None} == {torch.float32}
    plain, _ = ready(judged_plan(techniques=[judged()]))
    exact = float(update(plain, new_state(plain), clock()).losses["vae/discriminator"])
    assert losses[0] == exact
    assert losses[1] != exact and losses[1] == pytest.approx(exact, rel=0.02)


# a run


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[Plan, Path]:
    folder = tmp_path_factory.mktemp("judged") / "run"
    plan = judged_plan("train.accumulate=2", techniques=[REPA, judged(LATE), "ema"])
    assert train(plan, folder, Interrupt()).finished
    return plan, folder


def last_state(folder: Path) -> dict[str, Tensor]:
    return checkpoint.read(folder / "checkpoints" / "step-000000006")[0]


@pytest.mark.parametrize("stop", slow_unless(lambda stop: stop == LATE, [1, LATE, LATE + 1, 5]))
def test_a_stopped_run_goes_on_bit_for_bit(whole: tuple[Plan, Path], stop: int, tmp_path: Path) -> None:
    """Before its first step the discriminator has no moments to save."""
    plan, folder = whole
    stop_and_go_on(plan, tmp_path / "stopped", stop)
    first, second = last_state(folder), last_state(tmp_path / "stopped")
    assert any(name.startswith(f"optimizer/{JOINT_ONLY}") for name in first)
    assert equal(first, second)


def test_the_log_has_its_losses_from_its_first_step_on(whole: tuple[Plan, Path]) -> None:
    lines = RunRecord(whole[1]).lines
    for name in ("vae/adversarial", "vae/discriminator"):
        assert [line["step"] for line in lines if isinstance(line.get(name), float)] == [LATE + 1, LATE + 2, LATE + 3]


def test_it_moves_and_sampling_does_without_it(whole: tuple[Plan, Path]) -> None:
    plan, folder = whole
    stored, fresh = last_state(folder), build_session(plan).modules["adversary"]
    *inner, _ = fresh.named_parameters()  # the last bias moves both logits alike, and none is beyond its hinge yet
    for name, parameter in inner:
        assert not torch.equal(parameter, stored[f"modules/{JOINT_ONLY}{name}"]), name
    assert not any(name.startswith(f"ema/{JOINT_ONLY}") for name in stored)
    parts, _ = load_run(folder)
    assert "adversary" not in parts.modules


def trained_by_ranks(folder: str) -> None:
    """With an eps that keeps AdamW from making steps of what rounding left."""
    plan = judged_plan(
        "train.batch=12",
        "train.accumulate=2",
        "optimizer.eps=1e-3",
        techniques=[judged(2, weight=1.0) + ",adversarial.lr=1e-2"],
    )
    assert train(plan, Path(folder), Interrupt()).finished


@pytest.mark.slow
def test_two_ranks_train_what_one_process_trains(tmp_path: Path) -> None:
    write_small_vae()
    folders = [tmp_path / "one", tmp_path / "two"]
    trained_by_ranks(str(folders[0]))
    run_ranks(2, trained_by_ranks, str(folders[1]))
    first, second = (last_state(folder) for folder in folders)
    assert first.keys() == second.keys()
    for name in first:
        torch.testing.assert_close(first[name], second[name], rtol=1e-4, atol=1e-5, msg=name)
    for key in ("vae/adversarial", "vae/discriminator", "vae/grad_norm", "loss"):
        lines = [RunRecord(folder).lines[-1][key] for folder in folders]
        assert lines[0] == pytest.approx(lines[1], rel=1e-4), key


# plans


@pytest.mark.parametrize(
    ("build", "reason"),
    [
        (lambda: tuned_plan(techniques=[judged()]), "discriminator needs data.size_px of at least 24, but it is 16"),
        (
            lambda: judged_plan(techniques=[judged(6)]),
            r"adversarial.start_step \(6\) is not before the last of 6 steps",
        ),
        (lambda: judged_plan(techniques=[judged() + "4"]), "width"),
    ],
)
def test_plans_that_cannot_be_are_refused_with_the_reason(build: Callable[[], Plan], reason: str) -> None:
    with pytest.raises(UserError, match=reason):
        build()


def test_without_a_weight_nothing_is_refused() -> None:
    off = tuned_plan(techniques=[judged(6, weight=0)]).tuning
    default = tuned_plan().tuning
    assert off is not None and default is not None
    assert off.adversarial.weight == default.adversarial.weight == 0
