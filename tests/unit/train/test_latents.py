"""Runs on latents, and the check of their scale before the first step."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from safetensors.torch import load_file, save_file

from tests.bounds import network_bound
from tests.stopping import stop_and_go_on, train_to
from tests.tiny import tiny_plan
from tests.tiny_autoencoders import CHANNELS, option, write_autoencoder
from tintype.data.order import ids_at
from tintype.errors import UserError
from tintype.evaluation.protocol import Protocol
from tintype.evaluation.reference import ScoredData, held_out
from tintype.metrics.validation import velocity_errors
from tintype.plan import Plan
from tintype.runtime.files import write_checked
from tintype.runtime.interrupt import Interrupt
from tintype.sampling.generate import SamplerSettings
from tintype.sampling.sample import sample_run
from tintype.seams import Draws
from tintype.tokenizers.pixels import Pixels
from tintype.train import checkpoint
from tintype.train.load import load_run
from tintype.train.loop import train
from tintype.train.parts import build_model
from tintype.train.prepare import MOST_IMAGES
from tintype.train.record import RunRecord
from tintype.train.session import build_session


def latent_plan(kind: str = "flux1", *assignments: str, options: str = "") -> Plan:
    write_autoencoder(kind)
    return tiny_plan(*assignments, techniques=[option(kind) + options])


def weights_of(folder: Path) -> dict[str, torch.Tensor]:
    checkpoints = RunRecord(folder).checkpoints
    return checkpoint.read(checkpoint.folder_of(checkpoints, checkpoint.steps(checkpoints)[-1]))[0]


def latents_of(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "latents.json").read_text())
    return found


@pytest.mark.parametrize("posterior", ["mean", "sample"])
def test_a_latent_run_trains_resumes_bit_exactly_and_samples(posterior: str, tmp_path: Path) -> None:
    plan = latent_plan("flux1", "run.save_every_steps=1", options=f",to.posterior={posterior}")
    assert train(plan, tmp_path / "whole", Interrupt()).finished
    stop_and_go_on(plan, tmp_path / "stopped", 3)
    whole, stopped = weights_of(tmp_path / "whole"), weights_of(tmp_path / "stopped")
    assert set(whole) == set(stopped) and all(torch.equal(whole[name], stopped[name]) for name in whole)
    assert not any("tokenizer" in name for name in whole)
    settings = SamplerSettings(steps=2)
    made = sample_run(tmp_path / "whole", ["a red ball"], None, tmp_path / "out", settings, count=2, seed=0, size_px=32)
    with Image.open(made[0]) as image:
        assert image.size == (32, 32)
    with pytest.raises(UserError, match="--size 18: this model can only sample sizes that are multiples of 4"):
        sample_run(tmp_path / "whole", ["a"], None, tmp_path / "out", settings, count=1, seed=0, size_px=18)


def test_validation_sees_the_same_latents_in_any_batches(tmp_path: Path) -> None:
    parts = build_model(latent_plan("flux2", options=",to.posterior=sample"))
    source = held_out(ScoredData(parts.plan.data), Protocol())
    whole, cut = (velocity_errors(parts, source, 6, batch, seed=0) for batch in (6, 4))
    assert torch.allclose(whole, cut, rtol=1e-4)


def test_the_latents_are_measured_as_training_sees_them(tmp_path: Path) -> None:
    plan = latent_plan("taef1", "data.count=300", "train.batch=50")
    train(plan, tmp_path / "run", Interrupt())
    parts = build_session(plan)
    ids = ids_at(plan.seed, 0, MOST_IMAGES, 300).tolist()
    z = parts.tokenizer.encode(parts.source.images(ids), Draws(plan.seed, torch.arange(MOST_IMAGES))).double()
    found = latents_of(tmp_path / "run")
    assert found["images"] == MOST_IMAGES and len(found["mean"]) == CHANNELS
    tokenizer: Any = parts.tokenizer
    bound = network_bound(tokenizer.network.encoder, z)
    assert found["mean"] == pytest.approx(z.mean((0, 2, 3)).tolist(), abs=bound)
    assert found["std"] == pytest.approx(z.std((0, 2, 3), correction=0).tolist(), abs=bound)


def test_a_short_run_is_looked_at_whole_and_pixels_too(tmp_path: Path) -> None:
    plan = tiny_plan("train.steps=2")
    train(plan, tmp_path / "run", Interrupt())
    found = latents_of(tmp_path / "run")
    assert found["images"] == 8 and len(found["std"]) == 3


@pytest.mark.parametrize("wrong", ["to.scale=0.18215", "to.scale=40.0", "to.shift=-9.0"])
def test_latents_far_from_mean_0_and_deviation_1_are_refused_with_the_numbers_that_are_right(
    wrong: str, tmp_path: Path
) -> None:
    plan = latent_plan("flux1", options=f",{wrong}")
    with pytest.raises(
        UserError, match=r"tokenizer 'flux1' failed a check on the first 24 images: the latents have mean"
    ) as refusal:
        train(plan, tmp_path / "run", Interrupt())
    assert latents_of(tmp_path / "run")["images"] == 24 and not (tmp_path / "run" / "metrics.jsonl").exists()
    said = str(refusal.value)
    right = {key: said.partition(f"tokenizer.{key}=")[2].split()[0].rstrip(",") for key in ("shift", "scale")}
    mended = latent_plan("flux1", options=f",to.shift={right['shift']},to.scale={right['scale']}")
    assert train(mended, tmp_path / "run", Interrupt()).finished
    found = latents_of(tmp_path / "run")
    assert abs(sum(found["mean"])) / CHANNELS < 0.02


def test_one_bad_channel_is_found_though_all_together_are_good() -> None:
    tokenizer = build_session(latent_plan("flux1")).tokenizer
    assert tokenizer.check_latents(torch.zeros(4), torch.tensor([1.0, 1.0, 1.0, 0.5])) is None
    said = tokenizer.check_latents(torch.zeros(4), torch.tensor([1.0, 1.0, 1.0, 0.05]))
    assert said is not None and "1 of 4 channels" in said and "channel 3 has 0 and 0.05" in said
    scale = json.loads(said.partition("tokenizer.scale=")[2])
    assert scale[3] == pytest.approx(20 * scale[0], rel=1e-3)


def test_values_that_are_not_numbers_are_refused() -> None:
    tokenizer = build_session(latent_plan("flux1")).tokenizer
    nan = torch.full((4,), float("nan"))
    assert tokenizer.check_latents(nan, nan) is not None


def test_pixels_are_refused_without_contrast_only() -> None:
    dark, bright = torch.full((3,), -0.9), torch.full((3,), 0.9)
    assert (
        Pixels().check_latents(dark, torch.full((3,), 0.1)) is None
        and Pixels().check_latents(bright, dark.abs()) is None
    )
    assert "nearly all of one colour" in str(Pixels().check_latents(dark, torch.full((3,), 0.001)))


def test_a_run_goes_on_and_samples_with_the_weights_it_began_with_only(tmp_path: Path) -> None:
    plan = latent_plan("taef1")
    folder = tmp_path / "weights"
    folder.mkdir()
    for file in write_autoencoder("taef1").iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    tokenizer = plan.tokenizer.model_copy(update={"weights": str(folder)})
    plan = Plan(**{**dict(plan), "tokenizer": tokenizer})
    train_to(plan, tmp_path / "run", 2)
    load_run(tmp_path / "run")
    (file,) = folder.glob("*.safetensors")
    save_file({name: tensor + 1e-3 for name, tensor in load_file(file).items()}, file, {"format": "pt"})
    with pytest.raises(UserError, match=r"identity of 'tokenizer' .*another --out"):
        train(plan, tmp_path / "run", Interrupt())
    with pytest.raises(UserError, match=r"identity of 'tokenizer' .*put the first one back"):
        load_run(tmp_path / "run")


def test_a_resumed_run_is_not_measured_again(tmp_path: Path) -> None:
    plan = latent_plan("taef1")
    train_to(plan, tmp_path / "run", 2)
    write_checked(tmp_path / "run" / "latents.json", {"kept": True})
    train(plan, tmp_path / "run", Interrupt())
    assert latents_of(tmp_path / "run")["kept"]
