from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any, Literal

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from tests import tiny_text
from tests.bounds import distance, network_bound
from tests.tiny import tiny_plan
from tintype.data.captions import Captions
from tintype.data.scenes.source import ScenesSettings
from tintype.losses import LossPart
from tintype.losses.alignment import AlignmentTerm
from tintype.optim.ema import Ema
from tintype.runtime.clock import PARTS, Clock
from tintype.schedule import Schedule
from tintype.seams import Draws, LossInputs, LossTerm, Sample
from tintype.text.frozen import FrozenTextEncoder
from tintype.text.packing import Grouping, Packed
from tintype.train import batch as reading
from tintype.train import update as updating
from tintype.train.session import Session, Term, build_session
from tintype.train.state import new_state
from tintype.train.update import TIME_BINS, lr_factor, micro_batch_losses, update


def clock() -> Clock:
    return Clock(torch.device("cpu"))


def weights(parts: Session) -> list[Tensor]:
    return [parameter.detach().clone() for parameter in parts.modules.parameters()]


def same(first: Sequence[Tensor], second: Sequence[Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


def test_training_lowers_the_loss() -> None:
    parts = build_session(tiny_plan("train.steps=60", "optimizer.lr=3e-3"))
    state = new_state(parts)
    losses = [float(update(parts, state, clock()).losses["loss"]) for _ in range(60)]
    assert sum(losses[-10:]) < 0.6 * sum(losses[:10])


def test_accumulated_micro_batches_give_the_gradient_of_the_whole_batch() -> None:
    gradients = []
    for accumulate in (1, 4):
        parts = build_session(tiny_plan(f"train.accumulate={accumulate}", "train.clip_norm=null"))
        for parameter in parts.modules.parameters():
            nn.init.normal_(parameter, std=0.1, generator=torch.Generator().manual_seed(0))
        update(parts, new_state(parts), clock())
        gradients.append(torch.cat([p.grad.flatten() for p in parts.modules.parameters() if p.grad is not None]))
    assert distance(gradients[0], gradients[1]) < network_bound(parts.modules, gradients[0])


def test_a_frozen_text_encoder_reads_the_captions_of_a_step_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Weights and losses are those of captions encoded in each micro-batch, bit for bit, with captions dropped and
    truncated and in stages of other batches."""
    asked, drawn = list[Sequence[str]](), list[int]()
    packed, captions_at = FrozenTextEncoder.packed, reading.captions_at

    def note_draw(parts: Session, first: int, *rest: int) -> Captions:
        drawn.append(first)
        return captions_at(parts, first, *rest)

    def note(self: FrozenTextEncoder, captions: Sequence[str], grouping: Grouping) -> Packed:
        asked.append(captions)
        return packed(self, captions, grouping)

    monkeypatch.setattr(FrozenTextEncoder, "packed", note)
    monkeypatch.setattr(reading, "captions_at", note_draw)
    tiny_text.write_text_encoder("minilm")
    stages = ("data.size_px=32", "train.stages=[{size_px: 16, until: 1, batch: 8}]", "train.accumulate=4")
    plan = tiny_plan(*stages, "captions.dropout=0.3", "captions.max_tokens=6", techniques=[tiny_text.option()])
    found = []
    for each_time in (False, True):
        if each_time:
            monkeypatch.setattr(updating, "read_text", lambda *step: None)
        parts = build_session(plan)
        state = new_state(parts)
        asked.clear()
        losses = [float(update(parts, state, clock()).losses["loss"]) for _ in range(3)]
        found.append((losses, weights(parts), list(asked)))
    (losses, trained, at_once), (wanted, wanted_weights, one_by_one) = found
    assert losses == wanted and same(trained, wanted_weights)
    assert len(at_once) == 3 and len(one_by_one) == 3 * 4
    assert drawn[: 3 * 4] == drawn[3 * 4 :] and len(set(drawn)) == 3 * 4, "captions are drawn once"
    for step, captions in enumerate(at_once):
        every = [caption for some in one_by_one[4 * step : 4 * step + 4] for caption in some]
        assert list(captions) == list(dict.fromkeys(every)) and len(captions) > 1


@dataclass(frozen=True)
class Poisoned:
    """The real objective, but the loss of one sample position is not a number."""

    inner: object
    bad: float

    def draw(self, x_BCHW: Tensor, draws: Draws) -> Sample:
        sample: Sample = self.inner.draw(x_BCHW, draws)  # type: ignore[attr-defined]
        return sample

    def target(self, sample: Sample) -> Tensor:
        target: Tensor = self.inner.target(sample)  # type: ignore[attr-defined]
        return target * torch.tensor([1.0, self.bad, 1.0, 1.0])[:, None, None, None]

    def velocity(self, prediction_BCHW: Tensor, x_t_BCHW: Tensor, t_B: Tensor) -> Tensor:
        return prediction_BCHW

    noise_scale = 1.0

    def x_weight(self, t_B: Tensor) -> Tensor:
        raise NotImplementedError

    def noise_weight(self, t_B: Tensor) -> Tensor:
        raise NotImplementedError


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_non_finite_step_never_reaches_weights_optimizer_or_average(bad: float) -> None:
    parts = build_session(tiny_plan(techniques=["ema"]))
    state = new_state(parts)
    update(parts, state, clock())
    before, tensors = weights(parts), {k: v.clone() for k, v in state.tensors().items()}
    poisoned = replace(parts, objective=Poisoned(parts.objective, bad))
    result = update(poisoned, state, clock())
    assert not result.finite
    assert same(before, weights(parts))
    assert all(torch.equal(value, tensors[key]) for key, value in state.tensors().items())
    assert (state.step, state.images_seen) == (2, 8)
    assert update(parts, state, clock()).finite


def test_arms_of_one_seed_see_the_same_images_noise_and_times() -> None:
    seen = []
    for techniques in ([], ["short-captions"], ["x-prediction"]):
        parts = build_session(tiny_plan(techniques=techniques))
        spy = Spy(parts.objective)
        update(replace(parts, objective=spy), new_state(parts), clock())
        seen.append(spy.samples[0])
    for other in seen[1:]:
        assert torch.equal(seen[0].x_BCHW, other.x_BCHW)
        assert torch.equal(seen[0].noise_BCHW, other.noise_BCHW)
        assert torch.equal(seen[0].t_B, other.t_B)


class Spy(Poisoned):
    def __init__(self, inner: object) -> None:
        super().__init__(inner, 1.0)
        object.__setattr__(self, "samples", [])

    samples: list[Sample]

    def draw(self, x_BCHW: Tensor, draws: Draws) -> Sample:
        self.samples.append(super().draw(x_BCHW, draws))
        return self.samples[-1]


class FeatureNormSettings(LossPart):
    kind: Literal["feature_norm"] = "feature_norm"


class FeatureNorm(nn.Module, LossTerm):
    """A loss term with a parameter of its own: a projected feature of the middle block should be one."""

    taps = frozenset({1})

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(0.5))
        self.tokens: Tensor | None = None

    def loss(self, view: LossInputs) -> Tensor:
        self.tokens = view.output.tokens_at(1)
        return (self.scale * view.output.features[1].square().mean((1, 2)) - 1).square()


def test_a_loss_term_sees_the_routed_tokens_and_its_weight_follows_the_step() -> None:
    parts = build_session(tiny_plan(techniques=["tread"]))
    term = FeatureNorm()
    settings = FeatureNormSettings(weight=2.0, schedule=Schedule(kind="until", end=1))
    routed = replace(parts, terms=(Term(settings, term),))
    first = micro_batch_losses(routed, 0, 4, 0, clock()).parts
    later = micro_batch_losses(routed, 0, 4, 1, clock()).parts
    assert set(later) == {"loss", "flow"}
    added = (first["loss"] - later["loss"]).item()
    assert added == pytest.approx(2.0 * first["feature_norm"].item(), rel=1e-4)
    assert term.tokens is not None and term.tokens.shape == (4, 8)
    first["loss"].backward()
    assert term.scale.grad is not None and float(term.scale.grad) != 0


@pytest.mark.parametrize(("kind", "factors"), [("ramp", [0.25, 0.5, 0.75, 1.0]), ("cosine", [1.0, 0.853553, 0.5])])
def test_the_weight_of_a_term_follows_its_schedule(kind: Literal["ramp", "cosine"], factors: list[float]) -> None:
    parts = build_session(tiny_plan())
    settings = FeatureNormSettings(weight=2.0, schedule=Schedule(kind=kind, end=4))
    with_term = replace(parts, terms=(Term(settings, FeatureNorm()),))
    for step, factor in enumerate(factors):
        found = micro_batch_losses(with_term, 0, 4, step, clock()).parts
        added = (found["loss"] - found["flow"]).item()
        assert added == pytest.approx(2.0 * factor * found["feature_norm"].item(), rel=1e-4)


def test_a_term_is_told_all_settings_of_its_data() -> None:
    for data in ("data.seed=0", "data.seed=1", "data.max_objects=1"):
        plan = tiny_plan(data, techniques=["repa:teacher=scenes,hidden=8"])
        term = build_session(plan).terms[0].part
        assert isinstance(term, AlignmentTerm)
        assert ScenesSettings.model_validate_json(term._context.data_key) == plan.data


def test_errors_by_time_are_those_of_the_velocity_and_not_weighted() -> None:
    plain, weighted = (build_session(tiny_plan(techniques=names)) for names in ([], ["min-snr"]))
    spy = Spy(plain.objective)
    found = micro_batch_losses(replace(plain, objective=spy), 0, 4, 0, clock())
    sample = spy.samples[0]
    error_B = (sample.noise_BCHW - sample.x_BCHW).square().flatten(1).mean(1)  # the untrained model predicts zero
    expected = torch.zeros(2, TIME_BINS)
    for error, t in zip(error_B, sample.t_B.tolist(), strict=True):
        expected[0, int(t * TIME_BINS)] += error
        expected[1, int(t * TIME_BINS)] += 1
    torch.testing.assert_close(found.by_time, expected)
    other = micro_batch_losses(weighted, 0, 4, 0, clock())
    torch.testing.assert_close(other.by_time, expected)
    assert other.parts["flow"] != found.parts["flow"]


def test_learning_rate_schedule() -> None:
    plan = tiny_plan("train.steps=10", "train.warmup_steps=4", "train.schedule=cosine")
    factors = [lr_factor(plan, step) for step in range(10)]
    assert factors[:4] == [0.25, 0.5, 0.75, 1.0]
    assert factors[4] == 1.0 and factors[7] == pytest.approx(0.5) and factors[9] < 0.1
    constant = tiny_plan("train.steps=10", "train.warmup_steps=0")
    assert {lr_factor(constant, step) for step in range(10)} == {1.0}


def test_clipping_bounds_the_gradient() -> None:
    parts = build_session(tiny_plan("train.clip_norm=0.01"))
    result = update(parts, new_state(parts), clock())
    clipped = torch.cat([p.grad.flatten() for p in parts.modules.parameters() if p.grad is not None]).norm()
    assert result.grad_norm > 0.01 and float(clipped) == pytest.approx(0.01, rel=1e-3)


def test_the_average_of_a_fixed_decay_is_fp32_and_follows_its_formula() -> None:
    weight = torch.ones(3, dtype=torch.bfloat16)
    ema = Ema(0.9, {"w": weight}, ramp=False)
    for value in (2.0, 3.0):
        weight.fill_(value)
        ema.update(torch.zeros(()))
    weight.fill_(9.0)
    ema.update(torch.ones(()))  # a skipped step
    assert ema.average["w"].dtype == torch.float32
    assert ema.average["w"].tolist() == pytest.approx([0.9 * (0.9 * 1 + 0.1 * 2) + 0.1 * 3] * 3)


class Counting(TorchDispatchMode):
    """Counts torch's operations: a clock that no other work on the machine delays."""

    count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += 1
        return func(*args, **(kwargs or {}))


def test_the_clock_accounts_for_every_part(monkeypatch: pytest.MonkeyPatch) -> None:
    parts = build_session(tiny_plan())
    state = new_state(parts)
    with Counting() as operations:  # type: ignore[no-untyped-call]
        monkeypatch.setattr("tintype.runtime.clock.time", SimpleNamespace(perf_counter=lambda: operations.count))
        watch = clock()
        update(parts, state, watch)
        total, split = watch.read()
    assert set(split) == set(PARTS)
    assert all(split[part] > 0 for part in ("text", "forward", "losses", "backward", "optimizer"))
    assert 0.5 * total < sum(split.values()) <= total


def test_storage_is_fp32_under_bf16_compute() -> None:
    parts = build_session(tiny_plan("precision.compute=bf16", techniques=["ema"]))
    state = new_state(parts)
    for _ in range(3):
        assert update(parts, state, clock()).finite
    assert {tensor.dtype for name, tensor in state.tensors().items() if name != "ema/updates"} == {torch.float32}


@pytest.mark.parametrize("techniques", [[], ["bf16-storage"]], ids=["fp32", "bf16-storage"])
def test_a_loss_scale_of_a_power_of_two_changes_no_bit(techniques: list[str]) -> None:
    """Exponents have room for it, in fp32 and in bf16 alike: that is why neither needs one."""
    found = []
    for scale in (1, 1024, 2**-10):
        parts = build_session(
            tiny_plan(
                f"precision.loss_scale={scale}", "train.accumulate=2", "train.clip_norm=0.05", techniques=techniques
            )
        )
        state = new_state(parts)
        results = [update(parts, state, clock()) for _ in range(3)]
        found.append(([(float(one.losses["loss"]), one.grad_norm) for one in results], weights(parts)))
    for numbers, after in found[1:]:
        assert numbers == found[0][0] and same(after, found[0][1])


def test_a_loss_scale_that_overflows_is_a_skipped_step() -> None:
    parts = build_session(tiny_plan("precision.loss_scale=1e38"))
    state = new_state(parts)
    for parameter in parts.denoiser.final_layer.parameters():
        nn.init.normal_(parameter, generator=torch.Generator().manual_seed(0))
    before = weights(parts)
    result = update(parts, state, clock())
    assert not result.finite and math.isfinite(float(result.losses["loss"])) and same(before, weights(parts))
