"""Properties of every perceptual loss: where it applies, what it counts, and that its network stays outside."""

from __future__ import annotations

import gc
import weakref
from pathlib import Path
from typing import Any, Literal

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import interpolate

from tests import tiny_dino
from tests.bounds import distance, rounding_bound
from tests.tiny import tiny_plan
from tests.tiny_perceptual import sample_images, view_of, write_alexnet
from tintype.errors import UserError
from tintype.losses.lpips import LpipsLossSettings
from tintype.losses.perceptual import PerceptualPart, PerceptualTerm, resized
from tintype.losses.perceptual_dino import PerceptualDinoSettings
from tintype.plan import Plan
from tintype.runtime.clock import Clock
from tintype.runtime.interrupt import Interrupt
from tintype.techniques.apply import apply_techniques
from tintype.tokenizers.part import TokenizerPart
from tintype.tokenizers.pixels import Pixels
from tintype.train import checkpoint
from tintype.train.loop import train
from tintype.train.record import RunRecord
from tintype.train.session import build_session
from tintype.train.state import new_state
from tintype.train.update import update

CPU = torch.device("cpu")
KINDS = ["lpips", "perceptual-dino"]
every_kind = pytest.mark.parametrize("kind", KINDS)
T_B = torch.tensor([0.2, 0.7, 0.6999, 0.9])
BELOW = torch.tensor([True, False, True, False])


def settings_of(kind: str, **options: Any) -> PerceptualPart:
    if kind == "lpips":
        return LpipsLossSettings(net="alexnet", weights=str(write_alexnet()), **options)
    return PerceptualDinoSettings(source=str(tiny_dino.write_dino()), size_px=tiny_dino.SIZE_PX, **options)


def spec_of(kind: str) -> str:
    settings = settings_of(kind)
    own = ("net", "weights") if kind == "lpips" else ("source", "size_px")
    return f"{kind}:" + ",".join(f"{key}={getattr(settings, key)}" for key in own)


def ready_term(kind: str, **options: Any) -> PerceptualTerm:
    term = PerceptualTerm(settings_of(kind, **options), CPU)
    term.ready()
    return term


def network_of(term: PerceptualTerm) -> nn.Module:
    distance: Any = term._distance
    network: nn.Module = distance.network
    return network


def predictions(seed: int = 1) -> Tensor:
    return Pixels().encode(sample_images(seed))


def plan_with(kind: str, *assignments: str) -> Plan:
    return tiny_plan("data.size_px=32", *assignments, techniques=["x-prediction", spec_of(kind)])


@every_kind
def test_a_perfect_prediction_costs_nothing_and_another_something(kind: str) -> None:
    term = ready_term(kind)
    perfect_B = term.loss(view_of(predictions(0), sample_images(0)))
    assert float(perfect_B.abs().max()) < rounding_bound(64, 1.0), "a square, or one minus a cosine, of small widths"
    assert float(term.loss(view_of(predictions(1), sample_images(0))).min()) > 1e-3


@every_kind
def test_each_sample_has_its_own_loss(kind: str) -> None:
    term, predicted, image = ready_term(kind), predictions(), sample_images(0)
    alone_B = torch.cat([term.loss(view_of(predicted[i : i + 1], image[i : i + 1])) for i in range(4)])
    torch.testing.assert_close(term.loss(view_of(predicted, image)), alone_B)


@every_kind
def test_the_threshold_masks_exactly_the_samples_from_it_on(kind: str) -> None:
    whole_B = ready_term(kind).loss(view_of(predictions(), sample_images(0), T_B))
    predicted = predictions().requires_grad_()
    loss_B = ready_term(kind, threshold=0.7).loss(view_of(predicted, sample_images(0), T_B))
    assert torch.equal(loss_B == 0, ~BELOW)
    torch.testing.assert_close(loss_B[BELOW], whole_B[BELOW])
    (slope_BCHW,) = torch.autograd.grad(loss_B.sum(), predicted)
    assert torch.equal(slope_BCHW.abs().sum((1, 2, 3)) > 0, BELOW)


@every_kind
def test_what_is_masked_cannot_spoil_the_rest(kind: str) -> None:
    predicted = torch.where(BELOW[:, None, None, None], predictions(), torch.nan).requires_grad_()
    loss_B = ready_term(kind, threshold=0.7).loss(view_of(predicted, sample_images(0), T_B))
    (slope_BCHW,) = torch.autograd.grad(loss_B.sum(), predicted)
    assert loss_B.isfinite().all() and slope_BCHW.isfinite().all()


@every_kind
def test_a_batch_with_no_sample_below_the_threshold_gives_zeros(kind: str) -> None:
    loss_B = ready_term(kind, threshold=0.05).loss(view_of(predictions(), sample_images(0), T_B))
    assert torch.equal(loss_B, torch.zeros(4))


@every_kind
@pytest.mark.parametrize("threshold", [1.0, 0.7])
def test_autocast_changes_nothing(kind: str, threshold: float) -> None:
    """The prediction comes in bf16; the network works in fp32."""
    term, predicted = ready_term(kind, threshold=threshold), predictions().bfloat16()
    plain_B = term.loss(view_of(predicted.float(), sample_images(0), T_B))
    with torch.autocast("cpu", torch.bfloat16):
        under_B = term.loss(view_of(predicted, sample_images(0), T_B))
    assert under_B.dtype == torch.float32
    assert torch.equal(under_B, plain_B)


@every_kind
def test_only_the_prediction_gets_a_gradient(kind: str) -> None:
    term = ready_term(kind)
    assert not term.loss(view_of(predictions(), sample_images(0))).requires_grad
    assert not any(parameter.requires_grad for parameter in network_of(term).parameters())
    assert not network_of(term).training


@every_kind
def test_the_network_is_no_part_of_what_is_trained_or_saved(kind: str, tmp_path: Path) -> None:
    plan = plan_with(kind, "train.steps=1")
    assert list(build_session(plan).modules) == ["denoiser", "text"]
    saved = []
    for name, one in {"with": plan, "without": plan.model_copy(update={"losses": ()})}.items():
        train(one, tmp_path / name, Interrupt())
        tensors, _ = checkpoint.read(checkpoint.folder_of(RunRecord(tmp_path / name).checkpoints, 1))
        saved.append(set(tensors))
    assert saved[0] == saved[1]


@every_kind
def test_the_loss_is_the_sum_with_its_weight(kind: str) -> None:
    plan = plan_with(kind)
    parts = build_session(plan)
    parts.terms[0].part.ready()
    losses = {name: float(value) for name, value in update(parts, new_state(parts), Clock(CPU)).losses.items()}
    weight = {"lpips": 0.1, "perceptual-dino": 0.01}[kind]
    assert losses["loss"] == pytest.approx(losses["flow"] + weight * losses[kind])


@every_kind
def test_building_loads_nothing_and_release_frees_the_network(kind: str) -> None:
    term = build_session(plan_with(kind)).terms[0].part
    assert isinstance(term, PerceptualTerm)
    with pytest.raises(RuntimeError, match="ready"):
        term.loss(view_of(predictions(), sample_images(0)))
    term.ready()
    network = weakref.ref(network_of(term))
    term.release()
    gc.collect()
    assert network() is None
    with pytest.raises(RuntimeError, match="ready"):
        term.loss(view_of(predictions(), sample_images(0)))


def living_modules() -> list[object]:
    return [thing for thing in gc.get_objects() if issubclass(type(thing), nn.Module)]


@every_kind
def test_fetching_finds_missing_weights_and_keeps_nothing(kind: str, tmp_path: Path) -> None:
    gc.collect()
    before = len(living_modules())
    settings_of(kind).fetch((4, 4))
    gc.collect()
    assert len(living_modules()) == before
    away = str(tmp_path / "away.safetensors")
    lacking: PerceptualPart = (
        LpipsLossSettings(weights=away) if kind == "lpips" else PerceptualDinoSettings(source=away)
    )
    with pytest.raises(UserError, match=away):
        lacking.fetch((4, 4))
    with pytest.raises(UserError, match=away):
        PerceptualTerm(lacking, CPU).ready()


@every_kind
def test_a_study_can_tell_settings_apart(kind: str) -> None:
    assert len({settings_of(kind), settings_of(kind), settings_of(kind, threshold=0.5)}) == 2


@every_kind
def test_is_refused_where_the_model_predicts_no_picture(kind: str) -> None:
    with pytest.raises(UserError, match=rf"'{kind}'.*objective\.kind 'velocity' predicts a velocity; apply x-pred"):
        apply_techniques(tiny_plan("data.size_px=32"), [spec_of(kind)])


class Latents(TokenizerPart):
    kind: Literal["latents"] = "latents"


@every_kind
def test_is_refused_where_the_model_predicts_latents(kind: str) -> None:
    plan = plan_with(kind).model_copy(update={"tokenizer": Latents()})
    with pytest.raises(ValueError, match=rf"'{kind}'.*tokenizer\.kind 'latents'.*use tokenizer.kind=pixels"):
        plan.losses[0].check(plan)


@every_kind
@pytest.mark.parametrize(("shape", "start", "end"), [("until", 6, 7), ("ramp", 6, 9), ("fall", 0, 1)])
def test_is_refused_where_its_weight_is_zero_at_every_step(kind: str, shape: str, start: int, end: int) -> None:
    words = rf"{kind}: the weight of this loss is 0 .*: .*'{shape}' from step {start} to {end}, .* the run has 6 steps"
    with pytest.raises(UserError, match=words):
        never = f"{spec_of(kind)},schedule.kind={shape},schedule.start={start},schedule.end={end}"
        tiny_plan("data.size_px=32", techniques=["x-prediction", never])


@every_kind
@pytest.mark.parametrize("threshold", ["0", "1.01", "-0.5"])
def test_a_threshold_outside_the_times_is_refused(kind: str, threshold: str) -> None:
    with pytest.raises(UserError, match="threshold"):
        tiny_plan("data.size_px=32", techniques=["x-prediction", f"{spec_of(kind)},threshold={threshold}"])


@pytest.mark.parametrize(("height", "width"), [(8, 12), (20, 20), (47, 33)])
def test_a_resize_is_torchs_antialiased_one_with_its_gradient(height: int, width: int) -> None:
    image = torch.randn(2, 3, 20, 24, generator=torch.Generator().manual_seed(0)).requires_grad_()
    ours = resized(image, height, width)
    theirs = interpolate(image, (height, width), mode="bilinear", antialias=True)
    # Torch rounds coordinates of up to 24 px, and with them its weights; five or so of them meet in a pixel each way.
    assert distance(ours, theirs) < rounding_bound(5 + 5, 24 * image)
    pull = torch.randn(ours.shape, generator=torch.Generator().manual_seed(1))
    slopes = [torch.autograd.grad((result * pull).sum(), image)[0] for result in (ours, theirs)]
    assert distance(slopes[0], slopes[1]) < rounding_bound(5 + 5, 24 * pull)
