"""Which gradient reaches which part in a step of repa-e, and all that a run with it is."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from tests.bounds import gradient_distance, network_bound
from tests.ranks import run_ranks
from tests.stopping import stop_and_go_on
from tests.tiny import tiny_plan
from tests.tiny_perceptual import write_alexnet
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
from tintype.losses.repa_e.settings import ProbeTerm
from tintype.losses.repa_e.tokenizer import TunedTokenizer
from tintype.losses.repa_e.training import RepaE, RepaEStep
from tintype.metrics.validation import velocity_errors
from tintype.plan import Plan
from tintype.runtime.interrupt import Interrupt
from tintype.sampling.generate import SamplerSettings
from tintype.sampling.sample import sample_run
from tintype.sampling.velocity_bias import velocity_bias
from tintype.seams import Draws, JointBatch
from tintype.techniques.apply import apply_techniques
from tintype.tokenizers.pixels import Pixels
from tintype.tokenizers.small_vae import Vae
from tintype.train import checkpoint
from tintype.train.batch import read_batch
from tintype.train.folder import RunFolder
from tintype.train.load import load_run
from tintype.train.loop import train
from tintype.train.parts import TOKENIZER, build_model
from tintype.train.reconstruct import try_reconstruction
from tintype.train.record import RunRecord
from tintype.train.session import Session, build_session
from tintype.train.state import new_state
from tintype.train.update import micro_batch_losses, update

ALONE = [REPA_E]
BOTH = [REPA, REPA_E]
UNCLIPPED = "train.clip_norm=null"


# which loss reaches what


@pytest.mark.parametrize("techniques", [ALONE, BOTH], ids=["alone", "both"])
def test_no_loss_of_the_denoiser_reaches_the_autoencoder(techniques: list[str]) -> None:
    parts, tuning = ready(tuned_plan(techniques=techniques))
    latents = partial(step_of(parts, tuning).latents, last=True)
    losses = micro_batch_losses(parts, 0, 4, 0, clock(), latents).parts
    for name, loss in losses.items():
        found = torch.autograd.grad(loss, tuning.tuned, retain_graph=True, allow_unused=True)
        assert all(one is None for one in found), name


@pytest.mark.parametrize("techniques", [ALONE, BOTH], ids=["alone", "both"])
def test_the_autoencoders_losses_reach_all_of_it_and_nothing_else(techniques: list[str]) -> None:
    parts, tuning = ready(tuned_plan(techniques=techniques))
    z, losses = step_of(parts, tuning).tune(read_batch(parts, 0, 4, 0, clock()), last=True)
    assert set(losses) == {f"vae/{name}" for name in ("loss", "reconstruction", "kl", "alignment", "perceptual")}
    touched = {name for name, p in parts.modules.named_parameters() if p.grad is not None}
    assert touched == {name for name, _ in parts.modules.named_parameters() if name.startswith(TOKENIZER)}
    assert all(p.grad is not None and p.grad.any() for p in tuning.tuned)
    assert not z.requires_grad
    assert all(p.requires_grad for p in parts.modules.parameters())  # they hold still for the time of it only


def oracle(parts: Session, tuning: RepaE, weight: float) -> dict[str, Tensor]:
    """The gradients of the autoencoder, in float64, from the formulas: no early exit, nothing frozen."""
    settings, network = tuning.settings, copy.deepcopy(tuning.tokenizer.network)
    assert isinstance(network, Vae)
    vae, denoiser = network.double(), copy.deepcopy(parts.denoiser).double()
    norm = tuning.tokenizer.norm
    batch = read_batch(parts, 0, 4, 0, clock())
    assert batch.image_BCHW is not None
    x = batch.image_BCHW.double() / 127.5 - 1
    mean, logvar = vae.encoder(x).chunk(2, dim=1)
    noise = batch.draws.normal("posterior", tuple(mean.shape[1:])).double()
    latent = mean + torch.exp(logvar / 2) * noise
    pixels = (vae.decoder(latent) - x).abs().mean()
    divergence = 0.5 * (mean**2 + logvar.exp() - 1 - logvar).sum(dim=(1, 2, 3)).mean()
    shift, spread = norm.running_mean.double(), (norm.running_var.double() + settings.eps).sqrt()
    clean = (latent - shift[:, None, None]) / spread[:, None, None]
    sample = parts.objective.draw(clean, batch.draws)
    text = replace(batch.text, tokens_BLC=batch.text.tokens_BLC.detach().double())
    t, n = sample.t_B.double(), batch.draws.normal("noise", tuple(clean.shape[1:])).double()
    x_t = (1 - t[:, None, None, None]) * clean + t[:, None, None, None] * n
    token = denoiser(x_t, t, text, taps={settings.block - 1}).features[settings.block - 1]
    projected = copy.deepcopy(tuning.alignment.projector).double()(token.double())
    teacher = batch.seen[tuning.aligner]
    assert teacher is not None
    cosine = (projected * teacher).sum(-1) / (projected.norm(dim=-1) * teacher.double().norm(dim=-1))
    loss = pixels + settings.kl * divergence - weight * cosine.mean()
    named = dict(vae.named_parameters())
    return dict(zip(named, torch.autograd.grad(loss, list(named.values()), allow_unused=True), strict=True))


@pytest.mark.parametrize("weight", [1.5, 300.0])
def test_the_autoencoders_gradient_is_that_of_the_formulas(weight: float) -> None:
    """The second weight is for the alignment, which is small beside a reconstruction at first."""
    parts, tuning = ready(tuned_plan(techniques=[NO_PERCEPTUAL + f",weight={weight},kl=0.01"]))
    expected = oracle(parts, tuning, weight)
    step_of(parts, tuning).tune(read_batch(parts, 0, 4, 0, clock()), last=True)
    found = {name: p.grad for name, p in parts.modules.named_parameters() if name.startswith(TOKENIZER)}
    assert len(found) == len(expected)
    largest = torch.stack([gradient.abs().max() for gradient in expected.values()])
    network = tuning.tokenizer.network
    assert isinstance(network, Vae)
    bound = network_bound(network, largest)
    for name, gradient in expected.items():
        other = found[f"{TOKENIZER}network.{name}"]
        assert other is not None
        torch.testing.assert_close(other.double(), gradient, rtol=1e-3, atol=bound)


def test_the_alignment_alone_moves_the_encoder_and_not_the_decoder() -> None:
    parts, tuning = ready(tuned_plan(techniques=ALONE))
    batch = read_batch(parts, 0, 4, 0, clock())
    network = tuning.tokenizer.network
    assert batch.image_BCHW is not None
    posterior = network.posterior(batch.image_BCHW.float() / 127.5 - 1)
    clean = tuning.tokenizer.norm.by_running(tuning.tokenizer.sampled(posterior, batch.draws))
    loss = step_of(parts, tuning).alignment(batch, clean).mean()
    assert isinstance(network, nn.Module)
    named = dict(network.named_parameters())
    found = torch.autograd.grad(loss, list(named.values()), allow_unused=True)
    for name, gradient in zip(named, found, strict=True):
        assert (gradient is not None and bool(gradient.any())) == name.startswith("encoder"), name


# what becomes of the denoiser


class Given(Pixels):
    """A frozen tokenizer that gives the latents that it is told to."""

    def __init__(self, z_BCHW: Tensor) -> None:
        self.z_BCHW = z_BCHW

    def encode(self, image_BCHW: Tensor, draws: Draws | None = None) -> Tensor:
        return self.z_BCHW


def with_latents_of(monkeypatch: pytest.MonkeyPatch, plan: Plan) -> tuple[Session, Session, list[float]]:
    """A step of the plan, and one of the same plan without tuning on the same latents; the norms of both."""
    seen: list[Tensor] = []

    latents = RepaEStep.latents

    def recorded(step: RepaEStep, batch: JointBatch, last: bool) -> Tensor:
        seen.append(latents(step, batch, last))
        return seen[-1]

    monkeypatch.setattr(RepaEStep, "latents", recorded)
    parts, _ = ready(plan)
    norms = [update(parts, new_state(parts), clock()).grad_norm]
    frozen = build_session(plan.model_copy(update={"tuning": None}))
    frozen.ready()
    frozen = replace(frozen, tokenizer=Given(seen[0]))
    norms.append(update(frozen, new_state(frozen), clock()).grad_norm)
    return parts, frozen, norms


@pytest.mark.parametrize("clip_norm", ["null", "1e-3"])
@pytest.mark.parametrize("techniques", [ALONE, BOTH, [*BOTH, "tread:first=2,last=2"]], ids=["alone", "both", "tread"])
def test_the_denoiser_is_trained_as_without_tuning_on_the_same_latents(
    techniques: list[str], clip_norm: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beside repa its gradients are repa's, alone they are those of no alignment; and clipping takes no notice."""
    plan = tuned_plan(f"train.clip_norm={clip_norm}", techniques=techniques)
    parts, frozen, norms = with_latents_of(monkeypatch, plan)
    assert equal(gradients(parts, without=(TOKENIZER, "losses_repa-e")), gradients(frozen))
    assert norms[0] == norms[1]
    weights = dict(parts.modules.named_parameters())
    assert all(torch.equal(one, weights[name]) for name, one in frozen.modules.named_parameters())


def test_alone_it_trains_a_projector_of_its_own() -> None:
    parts, tuning = ready(tuned_plan(techniques=ALONE))
    assert isinstance(tuning.alignment, ProbeTerm)
    before = [p.detach().clone() for p in tuning.probe]
    state = new_state(parts)
    for _ in range(2):
        found = update(parts, state, clock())
    assert not any(torch.equal(one, now) for one, now in zip(before, tuning.probe, strict=True))
    assert "repa-e" in found.losses


def test_beside_repa_its_projector_serves_both_and_the_teacher_looks_once(monkeypatch: pytest.MonkeyPatch) -> None:
    parts, tuning = ready(tuned_plan(techniques=BOTH))
    (term,) = parts.terms
    assert tuning.alignment is term.part
    looks: list[int] = []
    look = tuning.alignment.look

    def counted(image_BCHW: Tensor, ids: Sequence[int]) -> Tensor:
        looks.append(len(ids))
        return look(image_BCHW, ids)

    monkeypatch.setattr(tuning.alignment, "look", counted)
    update(parts, new_state(parts), clock())
    assert looks == [4]


# the step as a whole


def test_the_autoencoder_is_clipped_by_itself() -> None:
    parts, tuning = ready(tuned_plan(techniques=[REPA_E + ",clip_norm=1e-3"]))
    result = update(parts, new_state(parts), clock())
    norm = torch.stack([p.grad.norm() for p in tuning.tuned if p.grad is not None]).norm()
    assert float(result.losses["vae/grad_norm"]) > 0.1
    assert float(norm) == pytest.approx(1e-3, rel=1e-3)


def test_accumulated_micro_batches_give_the_mean(monkeypatch: pytest.MonkeyPatch) -> None:
    """With running statistics that stay, since those of smaller batches are others."""
    found = []
    for accumulate in (1, 2):
        plan = tuned_plan(UNCLIPPED, f"train.accumulate={accumulate}", techniques=[REPA_E + ",clip_norm=1e9"])
        parts, tuning = ready(plan)
        norm = tuning.tokenizer.norm
        monkeypatch.setattr(norm, "by_batch", lambda raw_BCHW, world, norm=norm: norm.by_running(raw_BCHW).detach())
        result = update(parts, new_state(parts), clock())
        found.append((result.losses, gradients(parts)))
    (losses, one), (others, two) = found
    assert losses.keys() == others.keys() and one.keys() == two.keys()
    for name in losses:
        assert float(losses[name]) == pytest.approx(float(others[name]), rel=1e-4), name
    assert gradient_distance(one, two) < 0.01  # ten of 3,072 numbers across a kink are 0.3%, a sum for a mean is 100%


def test_the_loss_scale_leaves_the_gradients_as_they_are() -> None:
    found = []
    for scale in (1, 1024):
        parts, _ = ready(tuned_plan(f"precision.loss_scale={scale}.0", techniques=BOTH))
        update(parts, new_state(parts), clock())
        found.append(gradients(parts))
    assert found[0].keys() == found[1].keys()
    for name, gradient in found[0].items():
        torch.testing.assert_close(found[1][name], gradient, rtol=1e-4, atol=1e-8)  # a power of two rounds nothing


@pytest.mark.parametrize("where", ["autoencoder", "probe", "denoiser", "latents"])
def test_a_gradient_that_is_not_finite_leaves_all_as_it_was(where: str) -> None:
    parts, tuning = ready(tuned_plan(techniques=[REPA_E, "ema"]))
    state = new_state(parts)
    update(parts, state, clock())
    before = everything(state)
    if where == "latents":  # then the statistics of the norm are not finite either
        with torch.no_grad():
            tuning.tuned[0].fill_(torch.nan)
        before = everything(state)
    else:
        poisoned = {"autoencoder": tuning.tuned[0], "probe": tuning.probe[0], "denoiser": parts.denoiser.txt_in.weight}
        poisoned[where].register_hook(lambda gradient: gradient * torch.nan)
    assert not update(parts, state, clock()).finite
    after = state.tensors()
    assert all(torch.equal(tensor.nan_to_num(7), after[name].nan_to_num(7)) for name, tensor in before.items())


def test_recomputed_activations_change_nothing() -> None:
    """Activation checkpointing runs blocks a second time, within the backward pass of the autoencoder."""
    found = []
    for recompute in ("false", "true"):
        parts, _ = ready(tuned_plan(f"model.activation_checkpointing={recompute}", techniques=ALONE))
        update(parts, new_state(parts), clock())
        found.append(gradients(parts))
    assert equal(*found)


@pytest.mark.filterwarnings("ignore:.torch.jit:DeprecationWarning")  # torch's own, when dynamo is imported
@pytest.mark.filterwarnings("ignore:The .grad attribute:UserWarning")
@pytest.mark.slow
def test_compiled_blocks_are_compiled_for_the_two_passes_once(monkeypatch: pytest.MonkeyPatch) -> None:
    from torch._dynamo.utils import counters

    compile_block = nn.Module.compile
    monkeypatch.setattr(nn.Module, "compile", lambda self, **how: compile_block(self, backend="eager", **how))
    torch._dynamo.reset()
    counters.clear()
    plain, _ = ready(tuned_plan(techniques=BOTH))
    parts, _ = ready(tuned_plan("model.compile=true", techniques=BOTH))
    state, other = new_state(parts), new_state(plain)
    graphs = []
    for _ in range(3):
        found, expected = update(parts, state, clock()), update(plain, other, clock())
        graphs.append(counters["stats"]["unique_graphs"])
        assert {name: float(loss) for name, loss in found.losses.items()} == pytest.approx(
            {name: float(loss) for name, loss in expected.losses.items()}, rel=1e-4
        )
    assert len(set(graphs)) == 1 and not counters["graph_break"]
    torch._dynamo.reset()


# the optimizer, the average and the precision


@pytest.mark.parametrize("optimizer", [[], ["muon"]], ids=["adamw", "muon"])
def test_the_autoencoder_has_a_group_of_its_own_with_its_own_learning_rate(
    optimizer: list[str], tmp_path: Path
) -> None:
    plan = tuned_plan("train.warmup_steps=4", techniques=[REPA_E + ",lr=5e-4", *optimizer])
    parts, tuning = ready(plan)
    state = new_state(parts)
    *others, last = state.optimizer.param_groups
    assert [id(p) for p in last["params"]] == [id(p) for p in tuning.tuned]
    assert last["base_lr"] == 5e-4
    assert not {id(p) for group in others for p in group["params"]} & {id(p) for p in tuning.tuned}
    update(parts, state, clock())
    assert last["lr"] == pytest.approx(5e-4 / 4)
    assert all("exp_avg" in state.optimizer.state[p] for p in tuning.tuned)
    RunFolder(tmp_path).write_about(parts)
    about = RunRecord(tmp_path).read("optimizer.json")
    assert about["tuning"]["names"] == [f"{TOKENIZER}{name}" for name, _ in tuning.tokenizer.named_parameters()]
    listed = sorted(name for group in about.values() for name in group["names"])
    assert listed == sorted(name for name, _ in parts.modules.named_parameters())


def test_no_average_follows_the_autoencoder() -> None:
    parts, _ = ready(tuned_plan(techniques=[REPA_E, "ema"]))
    state = new_state(parts)
    assert state.ema is not None
    averaged = {n for n, _ in parts.modules.named_parameters() if not n.startswith(TOKENIZER)}
    assert set(state.ema.tensors()) == {"updates", *averaged}


def test_bf16_storage_leaves_the_autoencoder_in_fp32() -> None:
    parts, tuning = ready(tuned_plan("precision.compute=bf16", techniques=[REPA_E, "bf16-storage"]))
    assert {p.dtype for p in tuning.tuned} == {torch.float32}
    assert parts.denoiser.txt_in.weight.dtype == torch.bfloat16
    update(parts, new_state(parts), clock())
    assert {p.dtype for p in tuning.tuned} == {torch.float32}


def test_the_autoencoder_computes_as_its_own_setting_says() -> None:
    losses = []
    for compute in ("fp32", "bf16"):
        parts, _ = ready(tuned_plan("precision.compute=bf16", techniques=[REPA_E + f",compute={compute}"]))
        losses.append(update(parts, new_state(parts), clock()).losses["vae/reconstruction"])
    plain, _ = ready(tuned_plan(techniques=ALONE))
    exact = update(plain, new_state(plain), clock()).losses["vae/reconstruction"]
    assert torch.equal(losses[0], exact)
    assert losses[1] != exact and float(losses[1]) == pytest.approx(float(exact), rel=0.02)


# ranks


RANKED = {"both": [REPA, NO_PERCEPTUAL, "ema:decay=0.8"], "alone": [NO_PERCEPTUAL]}
"""Without the perceptual distance, whose network has kinks at which rounding decides."""


def trained_by_ranks(folder: str) -> None:
    """With an eps that keeps AdamW from making steps of what rounding left."""
    for name, techniques in RANKED.items():
        plan = tuned_plan("train.batch=12", "train.accumulate=2", "optimizer.eps=1e-3", techniques=techniques)
        assert train(plan, Path(folder) / name, Interrupt()).finished


@pytest.mark.slow
def test_two_ranks_train_what_one_process_trains(tmp_path: Path) -> None:
    write_small_vae()
    trained_by_ranks(str(tmp_path / "one"))
    run_ranks(2, trained_by_ranks, str(tmp_path / "two"))
    for case in RANKED:
        folders = [tmp_path / name / case for name in ("one", "two")]
        first, second = (checkpoint.read(folder / "checkpoints" / "step-000000006")[0] for folder in folders)
        assert first.keys() == second.keys()
        for name in first:
            torch.testing.assert_close(first[name], second[name], rtol=1e-4, atol=2e-6, msg=f"{case}: {name}")
        for key in ("vae/loss", "vae/alignment", "vae/grad_norm", "loss"):
            lines = [RunRecord(folder).lines[-1][key] for folder in folders]
            assert lines[0] == pytest.approx(lines[1], rel=1e-4), key


# a run


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("run") / "run"
    assert train(tuned_plan(techniques=[*BOTH, "ema"]), folder, Interrupt()).finished
    return folder


def test_the_log_has_the_autoencoders_losses_and_its_time(run: Path) -> None:
    line = RunRecord(run).lines[-1]
    for name in ("loss", "reconstruction", "kl", "alignment", "perceptual", "grad_norm"):
        assert isinstance(line[f"vae/{name}"], float)
    assert line["parts"]["tokenizer"] > 0
    assert set(RunRecord(run).read("loaded.json")) == {"tokenizer", "repa", "perceptual"}


def test_the_first_latents_are_normal(run: Path) -> None:
    found = json.loads((RunFolder(run).path / "latents.json").read_text())
    assert max(map(abs, found["mean"])) < 0.2
    assert all(0.5 < std < 1.2 for std in found["std"])


def test_a_loaded_run_has_its_own_autoencoder_and_statistics(run: Path) -> None:
    parts, step = load_run(run)
    stored, _ = checkpoint.read(run / "checkpoints" / f"step-{step:09d}")
    fresh = build_model(parts.plan)
    tokenizer = parts.tokenizer
    assert isinstance(tokenizer, TunedTokenizer) and isinstance(fresh.tokenizer, TunedTokenizer)
    for name, tensor in tokenizer.state_dict().items():
        assert torch.equal(tensor, stored[f"modules/{TOKENIZER}{name}"])
    image = parts.source.images([0, 1, 2])
    assert not torch.equal(tokenizer.encode(image), fresh.tokenizer.encode(image))
    assert not any(name.startswith(f"ema/{TOKENIZER}") for name in stored)
    assert torch.isfinite(velocity_errors(parts, parts.source, 4, 2, 0)).all()
    out = sample_run(run, ["a ball"], None, run.parent / "out", SamplerSettings(steps=2), count=1, seed=0, size_px=16)
    assert out[0].exists()


def test_decoding_undoes_the_norm_with_the_eps_under_the_root(run: Path) -> None:
    parts, _ = load_run(run)
    tokenizer = parts.tokenizer
    assert isinstance(tokenizer, TunedTokenizer)
    tokenizer.norm.running_var.fill_(1e-4)  # as large as eps: left out it would be a factor of √2
    raw = torch.randn(2, 3, 4, 4)
    torch.testing.assert_close(tokenizer.norm.undo(tokenizer.norm.by_running(raw)), raw)
    image = parts.source.images([0])
    posterior = tokenizer.network.posterior(image.float() / 127.5 - 1)
    expected = ((tokenizer.network.decode_raw(posterior.mean_BCHW) + 1) * 127.5).round().clamp(0, 255)
    assert (tokenizer.decode(tokenizer.encode(image)).float() - expected).abs().max() <= 1


def test_the_bias_of_the_velocity_is_that_of_the_latents_as_they_are_now() -> None:
    """Others keep it by their plan, which does not say what became of a tuned tokenizer."""
    parts = build_model(tuned_plan(techniques=[NO_PERCEPTUAL, "contrastive"]))
    tokenizer = parts.tokenizer
    assert isinstance(tokenizer, TunedTokenizer)
    before = velocity_bias(parts, 16)
    tokenizer.norm.running_mean += 1
    after = velocity_bias(parts, 16)
    assert before is not None and after is not None
    assert not torch.allclose(before.mean_CHW, after.mean_CHW, atol=0.1)


def test_an_average_of_another_step_than_the_tokenizer_is_noted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    train(tuned_plan(techniques=[NO_PERCEPTUAL, "power-ema:snapshots=6"]), tmp_path / "run", Interrupt())
    for step, notes in ((6, 0), (4, 1)):
        parts, found = load_run(tmp_path / "run", average=try_reconstruction(tmp_path / "run", 0.1, step))
        assert found == step
        assert capsys.readouterr().err.count("the weight average is that of step 4; the tuned tokenizer") == notes
        assert isinstance(parts.tokenizer, TunedTokenizer)


@pytest.mark.slow
def test_an_accumulated_run_goes_on_bit_for_bit(tmp_path: Path) -> None:
    plan = tuned_plan("train.accumulate=2", techniques=[*BOTH, "tread:first=2,last=2"])
    train(plan, tmp_path / "whole", Interrupt())
    stop_and_go_on(plan, tmp_path / "stopped", 3)
    first, second = (
        checkpoint.read(tmp_path / name / "checkpoints" / "step-000000006")[0] for name in ("whole", "stopped")
    )
    assert equal(first, second)


# plans


def test_the_paper_is_the_default() -> None:
    tuning = tuned_plan(techniques=["repa-e"]).tuning
    assert tuning is not None
    assert (tuning.weight, tuning.reconstruction, tuning.kl, tuning.lr, tuning.clip_norm) == (1.5, 1.0, 1e-6, 1e-4, 1.0)
    assert (tuning.perceptual.kind, tuning.perceptual.weight) == ("lpips", 1.0)
    assert (tuning.momentum, tuning.eps, tuning.block) == (0.1, 1e-4, 2)
    assert tuning.teacher.kind == "dinov2"
    without = tuned_plan(techniques=["repa-e:perceptual=none"]).tuning
    assert without is not None and without.perceptual.kind == "none"


def test_lpips_without_its_weights_names_the_way_out(tmp_path: Path) -> None:
    missing = f"perceptual.kind=lpips,perceptual.weights={tmp_path / 'none.safetensors'}"
    parts = build_session(tuned_plan(techniques=[f"repa-e:teacher=scenes,hidden=32,{missing}"]))
    with pytest.raises(UserError, match=r"repa-e:perceptual=none \(or scenes\)"):
        parts.ready()


def test_lpips_is_a_part_of_the_loss() -> None:
    lpips = f"perceptual.net=alexnet,perceptual.weights={write_alexnet()}"
    option = f"repa-e:teacher=scenes,hidden=32,{lpips}"
    parts, tuning = ready(tuned_plan("data.size_px=32", techniques=[option]))
    losses = update(parts, new_state(parts), clock()).losses
    parts_of_it = [losses[f"vae/{name}"] for name in ("reconstruction", "kl", "alignment", "perceptual")]
    expected = sum(w * float(one) for w, one in zip((1.0, 1e-6, 1.5, 1.0), parts_of_it, strict=True))
    assert float(losses["vae/loss"]) == pytest.approx(expected, rel=1e-5)
    assert float(losses["vae/perceptual"]) > 0 and tuning.settings.perceptual.kind == "lpips"


def test_what_repa_says_is_the_default_beside_it() -> None:
    plan = tuned_plan(techniques=["repa:teacher=scenes,hidden=8,block=1,cache=memory", "repa-e"])
    assert plan.tuning is not None
    assert (plan.tuning.teacher.kind, plan.tuning.hidden, plan.tuning.block) == ("scenes", 8, 1)
    assert plan.tuning.cache == "memory"


@pytest.mark.parametrize(
    ("build", "reason"),
    [
        (lambda: tiny_plan(techniques=["repa-e"]), "'pixels' cannot be tuned: it has no network"),
        (lambda: tuned_plan(techniques=[REPA, REPA_E + ",block=1"]), "block is 1 in tuning and 2 in losses"),
        (lambda: tuned_plan(techniques=["repa:teacher=vgg16", REPA_E]), "teacher is .*scenes.* in tuning and .*vgg16"),
        (lambda: tuned_plan(techniques=[REPA + ",schedule.kind=until,schedule.end=3", REPA_E]), "at every step"),
        (lambda: tuned_plan(techniques=[REPA_E + ",block=4"]), "block 4 does not exist; model.depth is 3"),
        (lambda: tuned_plan("run.distribution.kind=fsdp"), "distribution.kind is fsdp.*use ddp"),
        (
            lambda: tuned_plan(techniques=[REPA_E.replace("kind=scenes", "kind=lpips,perceptual.net=alexnet")]),
            "lpips with alexnet needs data.size_px of at least 31",
        ),
    ],
)
def test_plans_that_cannot_be_are_refused_with_the_reason(build: Callable[[], Plan], reason: str) -> None:
    with pytest.raises(UserError, match=reason):
        build()


def test_settings_that_only_frozen_tokenizers_read_are_refused() -> None:
    with pytest.raises(UserError, match=r"tokenizer\.posterior is sample, but only a frozen .* to mean"):
        tuned_plan("tokenizer.posterior=sample")


def test_tuning_is_part_of_the_hash() -> None:
    tuned = tuned_plan()
    frozen = tuned.model_copy(update={"tuning": None})
    assert tuned.hash != frozen.hash
    assert apply_techniques(frozen, ALONE) == tuned
