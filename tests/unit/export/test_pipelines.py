from __future__ import annotations

import json
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from tests.bounds import distance, network_bound
from tests.tiny_export import latent_plan, pixel_plan, write_run
from tests.tiny_text import MAX_TOKENS
from tests.tiny_tuning import NO_PERCEPTUAL
from tintype.errors import UserError
from tintype.evaluation.protocol import Protocol
from tintype.evaluation.run import evaluate
from tintype.export.import_run import import_model
from tintype.export.parity import embedded, measure, open_pipeline
from tintype.export.pipeline_folder import export_pipeline, timesteps
from tintype.export.trained import Exported, ExportOptions, export_file, load_trained
from tintype.flow.path import sampling_times
from tintype.pretrained.packages import pipeline_class, quiet, transformers_package
from tintype.runtime.interrupt import Interrupt
from tintype.sampling.generate import SamplerSettings
from tintype.techniques.apply import apply_techniques
from tintype.train.load import load_run
from tintype.train.loop import train
from tintype.train.reconstruct import reconstruction

pytest.importorskip("diffusers")
pytest.importorskip("transformers")

COMBINATIONS = [
    ("t5", "flux1"),
    ("t5gemma", "dc-ae"),
    ("clip", "e2e-flux"),
    ("t5gemma", "pixels"),
    ("qwen3-vl", "pixels"),
]
PER_CHANNEL = "[0.5,1.0,1.5,-2.0]"


@dataclass(frozen=True)
class Case:
    run: Path
    exported: Exported


@pytest.fixture(scope="module")
def make(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Each combination's run and its export, once for all tests here."""

    @lru_cache
    def made(text: str, tokenizer: str) -> Case:
        folder = tmp_path_factory.mktemp(f"{text}-{tokenizer}")
        own = [] if tokenizer != "e2e-flux" else [f"tokenizer.scale={PER_CHANNEL}", "tokenizer.shift=[0.1,-0.2,0.3,0]"]
        plan = pixel_plan(text) if tokenizer == "pixels" else latent_plan(text, tokenizer, *own)
        run = write_run(folder / "run", plan)
        return Case(run, export_pipeline(run, folder / "out"))

    return made


@pytest.mark.parametrize(("text", "tokenizer"), COMBINATIONS)
def test_the_pipeline_makes_tintypes_pictures(make: Any, text: str, tokenizer: str) -> None:
    case = make(text, tokenizer)
    figures = measure(load_trained(case.run, None).parts, case.exported.path, case.exported.about, steps=4)
    assert [figure.guidance for figure in figures] == [1.0, 3.5]
    for figure in figures:
        assert figure.latents < 1e-3
        assert figure.images < 1e-3


@pytest.mark.parametrize(("text", "tokenizer"), COMBINATIONS)
def test_import_and_export_again_is_the_identity_on_weights(
    make: Any, text: str, tokenizer: str, tmp_path: Path
) -> None:
    case = make(text, tokenizer)
    imported = import_model(case.exported.path, tmp_path / "run", ["run.device=cpu"])
    again = export_pipeline(imported.path, tmp_path / "again")
    first, second = (_weights(folder) for folder in (case.exported.path, again.path))
    assert set(first) == set(second)
    assert any("transformer" in name for name in first)
    for name, tensors in first.items():
        assert set(tensors) == set(second[name])
        for key, tensor in tensors.items():
            assert tensor.dtype == torch.float32 or not tensor.is_floating_point()
            assert torch.equal(tensor, second[name][key]), (name, key)
    for key in ("objective", "time", "model", "size_px", "call"):
        assert again.about[key] == case.exported.about[key]


def _weights(folder: Path) -> dict[str, dict[str, torch.Tensor]]:
    return {str(file.relative_to(folder)): load_file(file) for file in sorted(folder.rglob("*.safetensors"))}


@pytest.mark.parametrize(("text", "tokenizer"), [COMBINATIONS[0], COMBINATIONS[3]])
def test_diffusers_saves_it_again(make: Any, text: str, tokenizer: str, tmp_path: Path) -> None:
    exported = make(text, tokenizer).exported
    with quiet("diffusers", "transformers"):
        pipe = open_pipeline(exported.path, exported.about)
        image = pipe(**embedded(pipe, "a ball", ""), num_inference_steps=2, use_resolution_binning=False).images[0]
        pipe.save_pretrained(tmp_path)
    assert image.size == (16, 16)
    there = json.loads((tmp_path / "model_index.json").read_text())
    assert there["_class_name"] == exported.about["pipeline"]
    assert there["default_sample_size"] == 16


def test_transformers_has_the_text_encoder_again_where_it_was_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    pipeline_class("PRXPipeline")
    transformers = transformers_package()
    monkeypatch.delattr(transformers, "T5GemmaEncoder")
    pipeline_class("PRXPipeline")
    assert hasattr(transformers, "T5GemmaEncoder")


def test_the_tokenizer_cuts_where_training_did(make: Any) -> None:
    exported = make("t5", "flux1").exported
    stated = json.loads((exported.path / "tokenizer" / "tokenizer_config.json").read_text())
    assert stated["model_max_length"] == MAX_TOKENS
    pixel = json.loads((make("t5gemma", "pixels").exported.path / "model_index.json").read_text())
    assert pixel["prompt_max_tokens"] == MAX_TOKENS
    assert pixel["noise_scale"] == 1.0


def test_a_missing_shift_is_zero_and_not_null(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", latent_plan("t5", "flux1", "tokenizer.shift=0.0"))
    exported = export_pipeline(run, tmp_path / "out")
    assert json.loads((exported.path / "vae" / "config.json").read_text())["shift_factor"] == 0.0


def test_numbers_of_each_channel_are_folded_into_the_autoencoder(make: Any) -> None:
    """Encoding too: mean and deviation of the posterior are the run's."""
    case = make("clip", "e2e-flux")
    stated = json.loads((case.exported.path / "vae" / "config.json").read_text())
    assert (stated["scaling_factor"], stated["shift_factor"]) == (1.0, 0.0)
    tokenizer: Any = load_trained(case.run, None).parts.tokenizer
    with quiet("diffusers", "transformers"), torch.no_grad():
        vae = open_pipeline(case.exported.path, case.exported.about).vae
        x = torch.rand(1, 3, 16, 16, generator=torch.Generator().manual_seed(0)) * 2 - 1
        ours, theirs = tokenizer.network.encode(x).latent_dist, vae.encode(x).latent_dist
        scale = tokenizer.normalisation.scale_CHW
        encoder, mean = tokenizer.network.encoder, tokenizer.normalisation.apply(ours.mean)
        assert distance(theirs.mean, mean) < network_bound(encoder, mean)
        assert distance(theirs.std, ours.std * scale.abs()) < network_bound(encoder, theirs.std)


def test_the_steps_are_tintypes(make: Any) -> None:
    about = make("t5", "flux1").exported.about
    grid = sampling_times(28, 3.0)
    assert about["call"]["timesteps"] == [t * 1000 for t in grid[:-1]] == timesteps(28, 3.0)
    assert about["call"]["use_resolution_binning"] is False
    scheduler = json.loads((make("t5", "flux1").exported.path / "scheduler" / "scheduler_config.json").read_text())
    assert scheduler["shift"] == 1.0


def test_where_the_empty_prompt_reads_as_nothing_the_null_captions_token_is_told(make: Any) -> None:
    assert make("qwen3-vl", "pixels").exported.about["call"]["negative_prompt"] == "<eos>"
    assert "negative_prompt" not in make("t5", "flux1").exported.about["call"]


@pytest.mark.parametrize(("text", "tokenizer"), [("t5", "flux1"), ("t5gemma", "dc-ae")])
def test_no_path_of_this_machine_is_in_the_folder(make: Any, text: str, tokenizer: str) -> None:
    case = make(text, tokenizer)
    for file in case.exported.path.rglob("*.json"):
        content = file.read_text(encoding="utf-8")
        assert "/tmp/" not in content and "tiny-text" not in content and "tiny-autoencoders" not in content, file


def test_average_and_raw_weights_differ_and_bf16_is_rounded(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", latent_plan("t5", "flux1", "ema.decay=0.9"))
    name = "transformer/diffusion_pytorch_model.safetensors"
    average = export_pipeline(run, tmp_path / "average")
    raw = export_pipeline(run, tmp_path / "raw", ExportOptions("raw", "bf16"))
    assert (average.about["weights"], raw.about["weights"]) == ("average", "raw")
    first, second = load_file(average.path / name), load_file(raw.path / name)
    assert second["txt_in.weight"].dtype == torch.bfloat16
    assert torch.equal((2 * first["txt_in.weight"]).bfloat16(), second["txt_in.weight"])
    figures = measure(load_trained(run, "raw").parts, raw.path, raw.about, steps=2)
    assert 1e-4 < figures[0].latents < 0.1  # opens, and is off by the rounding of the weights


def test_the_average_of_a_length_is_exported_as_it_is_scored(tmp_path: Path) -> None:
    run, length = tmp_path / "run", 0.15
    train(latent_plan("t5", "flux1", "ema.kind=power", "ema.lengths=[0.1, 0.2]"), run, Interrupt())
    (run / "snapshots" / "step-000000006").rename(tmp_path / "away")  # the checkpoint is of a later step
    exported = export_pipeline(run, tmp_path / "out", ExportOptions(ema_length=length))
    found = load_file(exported.path / "transformer/diffusion_pytorch_model.safetensors")
    wanted = load_run(run, "cpu", reconstruction(run, length))[0].denoiser.state_dict()
    usual = load_run(run, "cpu")[0].denoiser.state_dict()
    assert all(torch.equal(found[name], wanted[name]) for name in wanted)
    assert not torch.equal(found["txt_in.weight"], usual["txt_in.weight"])
    about = json.loads((exported.path / "tintype.json").read_text())
    assert (about["weights"], about["step"], about["ema"]["length"]) == ("average 0.15", 5, 0.15)
    assert "The weights are the average of length 0.15 (a share of the training) at step 5" in card_of(exported.path)
    protocol = Protocol(count=8, also=(), reference_count=8, validation_count=2, sampler=SamplerSettings(steps=1))
    evaluate(run, protocol, average=reconstruction(run, length))
    again = export_pipeline(run, tmp_path / "scored", ExportOptions(ema_length=length))
    assert "### Step 5, average 0.15 weights" in card_of(again.path)
    assert not any("scores" in warning for warning in again.warnings)
    single = export_file(run, tmp_path / "one.safetensors", ExportOptions(ema_length=length)).path
    assert torch.equal(load_file(single)["txt_in.weight"], wanted["txt_in.weight"])
    with pytest.raises(UserError, match="--ema-length chooses a weight average, but --weights raw"):
        export_pipeline(run, tmp_path / "neither", ExportOptions("raw", ema_length=length))


def card_of(folder: Path) -> str:
    return (folder / "README.md").read_text(encoding="utf-8")


def test_a_tuned_autoencoder_is_exported_with_its_running_statistics(tmp_path: Path) -> None:
    plan = apply_techniques(latent_plan("t5", "flux1"), [NO_PERCEPTUAL])
    run = write_run(tmp_path / "run", plan)
    exported = export_pipeline(run, tmp_path / "out")
    figures = measure(load_trained(run, None).parts, exported.path, exported.about, steps=2)
    assert max(figure.images for figure in figures) < 1e-3
