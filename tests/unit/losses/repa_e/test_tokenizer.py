"""The norm of tuned latents against torch's, and tuned autoencoders that are saved and used frozen."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from typer.testing import CliRunner

from tests.ranks import run_ranks
from tests.tiny import TINY, tiny_plan
from tests.tiny_autoencoders import chosen, sample_images
from tests.tiny_tuning import NO_PERCEPTUAL, tuned_plan
from tintype import cli
from tintype.errors import UserError
from tintype.losses.repa_e.tokenizer import LatentNorm, TunedTokenizer
from tintype.plan import Plan, plan_from_yaml
from tintype.runtime.clock import Clock
from tintype.runtime.dist import ALONE, current
from tintype.runtime.interrupt import Interrupt
from tintype.seams import Draws
from tintype.techniques.apply import apply_techniques
from tintype.tokenizer_lab.save_tuned import save_tuned
from tintype.tokenizers import TOKENIZERS
from tintype.tokenizers.flux1 import E2eFluxSettings, Flux1Settings
from tintype.tokenizers.part import TokenizerPart
from tintype.tokenizers.small_vae import SmallVaeSettings
from tintype.train.load import load_run
from tintype.train.loop import train
from tintype.train.parts import build_model
from tintype.train.session import build_session
from tintype.train.state import new_state
from tintype.train.update import update

CPU = torch.device("cpu")
MOMENTUM, EPS = 0.3, 1e-2


def batches(count: int = 5) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    shift, spread = torch.tensor([1.0, -20.0, 0.1]), torch.tensor([0.2, 3.0, 1.0])
    drawn = [torch.randn(4, 3, 5, 2, generator=generator) for _ in range(count)]
    return [one * spread[:, None, None] + shift[:, None, None] for one in drawn]


def torchs_norm() -> nn.BatchNorm2d:
    return nn.BatchNorm2d(3, eps=EPS, momentum=MOMENTUM, affine=False)


def test_the_norm_is_torchs_batch_norm() -> None:
    ours, theirs = LatentNorm(3, MOMENTUM, EPS), torchs_norm()
    for raw in batches():
        torch.testing.assert_close(ours.by_batch(raw, ALONE), theirs.train()(raw), rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(ours.running_mean, theirs.running_mean)
        torch.testing.assert_close(ours.running_var, theirs.running_var)
        torch.testing.assert_close(ours.by_running(raw), theirs.eval()(raw), rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(ours.undo(ours.by_running(raw)), raw, rtol=1e-4, atol=1e-4)


def test_only_settled_latents_have_a_gradient_and_leave_the_statistics() -> None:
    norm, raw = LatentNorm(3, MOMENTUM, EPS), batches(1)[0].requires_grad_(True)
    before = norm.statistics_copy()
    assert norm.by_running(raw).requires_grad
    assert all(torch.equal(then, now) for then, now in zip(before, norm.statistics_copy(), strict=True))
    assert not norm.by_batch(raw, ALONE).requires_grad
    assert not torch.equal(before[0], norm.running_mean)


def test_statistics_are_put_back_only_where_the_step_was_skipped() -> None:
    norm = LatentNorm(3, MOMENTUM, EPS)
    before = norm.statistics_copy()
    norm.by_batch(batches(1)[0], ALONE)
    moved = norm.statistics_copy()
    norm.restore(before, torch.zeros(()))
    assert torch.equal(norm.running_var, moved[1])
    norm.by_batch(torch.full((2, 3, 2, 2), torch.nan), ALONE)
    norm.restore(moved, torch.ones(()))
    assert torch.equal(norm.running_mean, moved[0]) and torch.equal(norm.running_var, moved[1])


def normalised_by_ranks() -> tuple[Tensor, Tensor, Tensor]:
    norm, world = LatentNorm(3, MOMENTUM, EPS), current()
    for raw in batches():
        z = norm.by_batch(raw.chunk(world.size)[world.rank], world)
    return z, norm.running_mean, norm.running_var


@pytest.mark.slow
def test_ranks_have_the_statistics_of_all_their_batches() -> None:
    norm = LatentNorm(3, MOMENTUM, EPS)
    for raw in batches():
        z = norm.by_batch(raw, ALONE)
    found = run_ranks(2, normalised_by_ranks)
    torch.testing.assert_close(torch.cat([one[0] for one in found]), z)
    for _, mean, var in found:
        torch.testing.assert_close(mean, norm.running_mean)
        torch.testing.assert_close(var, norm.running_var)
    assert torch.equal(found[0][2], found[1][2])


# saved


def run_of(plan: Plan, folder: Path) -> Path:
    assert train(plan, folder, Interrupt()).finished
    return folder


def flux_plan(kind: str) -> Plan:
    document = f"{TINY}\ntokenizer: {json.dumps(chosen(kind))}"
    return apply_techniques(plan_from_yaml(document, "flux", ["model.patch=1"]), [NO_PERCEPTUAL])


def same_latents(run: Path, saved: TokenizerPart) -> None:
    parts, _ = load_run(run)
    tokenizer, image = saved.build(CPU), sample_images(8)
    draws = Draws(0, torch.arange(8))
    z = parts.tokenizer.encode(image, draws)
    torch.testing.assert_close(tokenizer.encode(image, draws), z, rtol=1e-5, atol=1e-5)
    assert (tokenizer.decode(z).int() - parts.tokenizer.decode(z).int()).abs().max() <= 1
    began = build_model(parts.plan).tokenizer
    assert not torch.allclose(began.encode(image, draws), z, atol=1e-2)


def test_a_saved_small_vae_gives_the_latents_of_the_run(tmp_path: Path) -> None:
    run = run_of(tuned_plan(techniques=[NO_PERCEPTUAL + ",lr=1e-2", "ema"]), tmp_path / "run")
    saved = save_tuned(run, tmp_path / "vae")
    same_latents(run, SmallVaeSettings(folder=str(tmp_path / "vae")))
    assert saved.step == 6
    record = json.loads((tmp_path / "vae" / "vae.json").read_text())
    assert record["sha256"] in saved.words
    assert record["trained"]["statistics"]["mean"] == list(saved.statistics.mean)
    option = f"tokenizer:to.kind=small-vae,to.folder={tmp_path / 'vae'}"
    frozen = tiny_plan(techniques=[option])
    assert frozen.model.patch == 1
    train(frozen, tmp_path / "frozen", Interrupt())


def test_it_is_a_command(tmp_path: Path) -> None:
    run = run_of(tuned_plan("train.steps=1", techniques=[NO_PERCEPTUAL]), tmp_path / "run")
    ask = ["tokenizer", "save", str(run), "--out", str(tmp_path / "vae")]
    result = CliRunner().invoke(cli.app, ask, catch_exceptions=False)
    assert result.exit_code == 0
    for words in ("autoencoder of step 1", "shift of its latents: [", "scale of its latents: [", "kind: small-vae"):
        assert words in result.output
    with pytest.raises(UserError, match="contains other files"):
        CliRunner().invoke(cli.app, ask, catch_exceptions=False)


def test_a_run_that_tunes_nothing_has_nothing_to_save(tmp_path: Path) -> None:
    run = run_of(tiny_plan("train.steps=1"), tmp_path / "run")
    with pytest.raises(UserError, match="did not tune its tokenizer \\('pixels'\\)"):
        save_tuned(run, tmp_path / "vae")
    assert not (tmp_path / "vae").exists()


@pytest.mark.parametrize(("kind", "part"), [("flux1", Flux1Settings), ("e2e-flux", E2eFluxSettings)])
def test_autoencoders_of_diffusers_are_tuned_and_saved_too(
    kind: str, part: type[TokenizerPart], tmp_path: Path
) -> None:
    plan = flux_plan(kind)
    tuning = plan.tuning
    assert tuning is not None
    plan = plan.model_copy(update={"tuning": tuning.model_copy(update={"lr": 1e-2})})
    run = run_of(plan, tmp_path / "run")
    save_tuned(run, tmp_path / "vae")
    same_latents(run, part(**{**chosen(kind), "weights": str(tmp_path / "vae")}))


def test_every_weight_of_diffusers_network_is_trained() -> None:
    parts = build_session(flux_plan("flux1"))
    parts.ready()
    assert parts.joint is not None
    update(parts, new_state(parts), Clock(CPU))
    assert all(
        p.grad is not None and bool(p.grad.isfinite().all()) for p in parts.joint.modules["tokenizer"].parameters()
    )


# refused


@pytest.mark.parametrize("part", TOKENIZERS, ids=lambda part: part.kind_name())
def test_each_kind_says_why_it_cannot_be_tuned(part: type[TokenizerPart]) -> None:
    settings = part(folder="nowhere") if "folder" in part.model_fields else part()  # type: ignore[call-arg]
    reason = settings.why_frozen()
    assert (reason is None) == (part.kind_name() in ("small-vae", "flux1", "e2e-flux"))
    assert reason is None or "take small-vae" in reason


def test_a_frozen_networks_arithmetic_is_refused() -> None:
    assert "tuning.compute" in str(Flux1Settings(compute="bf16").why_frozen())


def test_a_tuned_tokenizer_takes_images_that_its_latents_cover() -> None:
    tokenizer = build_model(tuned_plan()).tokenizer
    assert isinstance(tokenizer, TunedTokenizer)
    with pytest.raises(UserError, match="multiples of 4"):
        tokenizer.encode(torch.zeros(1, 3, 18, 16, dtype=torch.uint8))
    with pytest.raises(TypeError, match="uint8"):
        tokenizer.encode(torch.zeros(1, 3, 16, 16))
    assert tokenizer.check_latents(torch.zeros(3), torch.ones(3)) is None
    assert "not finite" in str(tokenizer.check_latents(torch.full((3,), torch.nan), torch.ones(3)))
