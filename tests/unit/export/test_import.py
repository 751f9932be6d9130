from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor

from tests.tiny_export import latent_plan, pixel_plan, text_settings, tokenizer_settings, write_run
from tintype.errors import UserError
from tintype.export.architecture import to_diffusers, to_training
from tintype.export.import_run import import_model
from tintype.export.parity import open_pipeline
from tintype.export.pipeline_folder import export_pipeline
from tintype.export.trained import export_file
from tintype.flow.guidance import ClassifierFreeSettings
from tintype.flow.path import sampling_times
from tintype.flow.sampler import euler
from tintype.plan import plan_from_folder
from tintype.pretrained.packages import quiet
from tintype.runtime.files import read_json
from tintype.runtime.interrupt import Interrupt
from tintype.sampling.generate import SamplerSettings, generate
from tintype.settings import plain
from tintype.text.frozen import FrozenTextEncoder
from tintype.train.load import load_run
from tintype.train.loop import train
from tintype.train.parts import Model
from tintype.train.record import RunRecord

pytest.importorskip("diffusers")
pytest.importorskip("transformers")

WEIGHTS = "transformer/diffusion_pytorch_model.safetensors"
SETTINGS = SamplerSettings(steps=3, guidance=ClassifierFreeSettings(scale=2.0))
CPU = "run.device=cpu"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("import")
    return write_run(folder / "run", latent_plan("t5", "flux1", "model.bottleneck=6", "model.resolution_embeds=true"))


@pytest.fixture(scope="module")
def pipeline(run: Path) -> Path:
    return export_pipeline(run, run.parent / "pipeline").path


@pytest.fixture
def own(pipeline: Path, tmp_path: Path) -> Path:
    """A pipeline's folder that may be spoilt."""
    return shutil.copytree(pipeline, tmp_path / "own")


def rewrite(file: Path, change: Callable[[dict[str, Tensor]], None]) -> None:
    tensors = load_file(file)
    change(tensors)
    save_file(tensors, file)


def denoiser_of(run: Path) -> dict[str, Tensor]:
    return load_run(run, "cpu")[0].denoiser.state_dict()


def same(first: dict[str, Tensor], second: dict[str, Tensor]) -> bool:
    return set(first) == set(second) and all(torch.equal(tensor, second[name]) for name, tensor in first.items())


def test_an_imported_run_samples_alike_trains_on_and_says_where_it_comes_from(
    run: Path, pipeline: Path, tmp_path: Path
) -> None:
    fine_tune = ["train.steps=2", "train.batch=2", "precision.compute=fp32", CPU, "ema.decay=0.5", "data.count=8"]
    imported = import_model(pipeline, tmp_path / "run", fine_tune)
    pictures = [
        generate(load_run(one, "cpu")[0], ["a ball"], SETTINGS, seed=1, size_px=16) for one in (run, imported.path)
    ]
    assert torch.equal(*pictures)
    record = read_json(imported.path / "imported.json")
    assert record["sha256"].keys() == {WEIGHTS}
    assert record["exported_from"]["plan"] == plan_from_folder(run).hash
    assert [event["event"] for event in RunRecord(imported.path).events] == ["imported"]
    before = denoiser_of(imported.path)
    outcome = train(plan_from_folder(imported.path), imported.path, Interrupt())
    assert outcome.finished and outcome.step == 2
    after = denoiser_of(imported.path)
    moved = max(float((after[name] - tensor).abs().max()) for name, tensor in before.items())
    assert 0 < moved < 1e-2  # it went on from these weights
    assert RunRecord(imported.path).events[0]["event"] == "imported"


def test_a_pipeline_that_tintype_did_not_write_tells_its_plan(run: Path, own: Path, tmp_path: Path) -> None:
    (own / "tintype.json").unlink()
    (own / "scheduler" / "scheduler_config.json").write_text('{"shift": 3.0, "num_train_timesteps": 1000}')
    plan = import_model(own, tmp_path / "run", [CPU]).plan
    theirs = plan_from_folder(run)
    assert plan.time.shift == plan.sampling.shift == 3.0
    assert (plan.text.kind, plan.tokenizer.kind, plan.objective.kind) == ("t5", "flux1", "velocity")
    assert plan.model == theirs.model
    assert plan.data.size_px == 16
    assert same(denoiser_of(run), denoiser_of(tmp_path / "run"))


def test_the_transformer_alone_needs_its_other_parts_named(run: Path, pipeline: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="has no text encoder"):
        import_model(pipeline / "transformer", tmp_path / "run", [CPU])
    with pytest.raises(UserError, match="needs latents with 4 channels"):
        import_model(pipeline / "transformer", tmp_path / "run", [*text_settings("t5"), CPU])
    parts = [*text_settings("t5"), tokenizer_settings("flux1")[0], CPU]
    import_model(pipeline / "transformer", tmp_path / "run", parts)
    assert same(denoiser_of(run), denoiser_of(tmp_path / "run"))


def test_a_single_file_has_prxs_names_and_a_header_and_comes_back(run: Path, tmp_path: Path) -> None:
    exported = export_file(run, tmp_path / "model.safetensors")
    with safe_open(exported.path, "pt") as opened:
        header = opened.metadata()
    plan = plan_from_folder(run)
    assert header["tintype.plan"] == plan.hash and header["tintype.step"] == "1" and header["tintype.weights"] == "raw"
    assert header["tintype.architecture"] == "PRXTransformer2DModel"
    assert str(tmp_path.parent) not in header["tintype"] and "tiny-text" not in header["tintype"]
    names = set(load_file(exported.path))
    assert {"blocks.0.qk_norm.query_norm.scale", "blocks.2.attn_out.weight", "img_in.0.weight"} <= names
    assert not any("attention." in name for name in names)
    imported = import_model(
        exported.path, tmp_path / "run", [*text_settings("t5"), tokenizer_settings("flux1")[0], CPU]
    )
    assert same(denoiser_of(run), denoiser_of(imported.path))
    assert imported.plan.model == plan.model and imported.plan.time == plan.time
    again = export_file(imported.path, tmp_path / "again.safetensors")
    assert same(load_file(exported.path), load_file(again.path))


def test_a_file_of_prxs_training_has_average_and_raw_weights(run: Path, tmp_path: Path) -> None:
    tensors = denoiser_of(run)
    raw = {f"denoiser.{to_training(name)}": tensor for name, tensor in tensors.items()}
    average = {f"ema_denoiser.model.{to_training(name)}": tensor * 0.5 for name, tensor in tensors.items()}
    save_file({**raw, **average, "vae.encoder.weight": torch.zeros(1)}, tmp_path / "prx.safetensors")
    parts = [*text_settings("t5"), tokenizer_settings("flux1")[0], "data.size_px=16", CPU]
    found = import_model(tmp_path / "prx.safetensors", tmp_path / "average", parts)
    assert found.record["weights"] == "average"
    assert same(denoiser_of(found.path), {name: tensor * 0.5 for name, tensor in tensors.items()})
    assert found.plan.model == plan_from_folder(run).model  # read off the tensors
    import_model(tmp_path / "prx.safetensors", tmp_path / "raw", parts, "raw")
    assert same(denoiser_of(tmp_path / "raw"), tensors)
    with pytest.raises(UserError, match="name the tokenizer"):
        import_model(tmp_path / "prx.safetensors", tmp_path / "none", [*text_settings("t5"), CPU])


def test_names_go_there_and_back(run: Path) -> None:
    names = list(denoiser_of(run))
    assert [to_diffusers(to_training(name)) for name in names] == names
    assert sum(to_training(name) != name for name in names) == 6 * 3


def test_shards_are_read(run: Path, own: Path, tmp_path: Path) -> None:
    tensors = load_file(own / WEIGHTS)
    names = sorted(tensors)
    halves = {"a.safetensors": names[::2], "b.safetensors": names[1::2]}
    for file, some in halves.items():
        save_file({name: tensors[name] for name in some}, own / "transformer" / file)
    (own / WEIGHTS).unlink()
    index = {"weight_map": {name: file for file, some in halves.items() for name in some}}
    (own / f"{WEIGHTS}.index.json").write_text(json.dumps(index))
    import_model(own, tmp_path / "run", [CPU])
    assert same(denoiser_of(run), denoiser_of(tmp_path / "run"))
    (own / "transformer" / "b.safetensors").unlink()
    with pytest.raises(UserError, match=r"has no b\.safetensors"):
        import_model(own, tmp_path / "other", [CPU])
    (own / f"{WEIGHTS}.index.json").write_text('{"weight_map": {"x": "../../elsewhere.safetensors"}}')
    with pytest.raises(UserError, match="does not list"):
        import_model(own, tmp_path / "other", [CPU])


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda tensors: tensors.pop("blocks.1.up_proj.weight"), "1 missing: blocks.1.up_proj.weight"),
        (lambda tensors: tensors.pop("txt_in.weight"), "1 missing: txt_in.weight"),
        (lambda tensors: tensors.update({"txt_in.weight": torch.zeros(32, 12)}), "needs text embeddings of width 12"),
        (lambda tensors: tensors.update({"fusion.weight": torch.zeros(2)}), "1 too many: fusion.weight"),
        (lambda tensors: tensors.update({"txt_in.bias": torch.zeros(3)}), r"txt_in.bias is fp32 \[3\] and not \[32\]"),
        (lambda tensors: tensors["txt_in.bias"].fill_(float("nan")), "txt_in.bias is not finite"),
        (lambda tensors: tensors.update({"txt_in.bias": torch.zeros(32, dtype=torch.int64)}), "int64"),
    ],
)
def test_wrong_tensors_are_named_and_nothing_is_written(
    own: Path, tmp_path: Path, change: Callable[[dict[str, Tensor]], None], words: str
) -> None:
    rewrite(own / WEIGHTS, change)
    with pytest.raises(UserError, match=words):
        import_model(own, tmp_path / "run", [CPU])
    assert [entry.name for entry in tmp_path.iterdir()] == ["own"]


@pytest.mark.parametrize(
    ("file", "key", "value", "words"),
    [
        (
            "transformer/config.json",
            "_class_name",
            "FluxTransformer2DModel",
            "is a model of the class 'FluxTransformer2DModel'",
        ),
        ("transformer/config.json", "guidance_embeds", True, "has the setting guidance_embeds"),
        ("transformer/config.json", "depth", "many", "'many' for 'depth'"),
        ("transformer/config.json", "axes_dim", [4, 12], r"axes_dim is \[4, 12\]"),
        ("model_index.json", "_class_name", "FluxPipeline", "a pipeline 'FluxPipeline'"),
        ("vae/config.json", "_class_name", "AutoencoderKLFlux2", "AutoencoderKLFlux2"),
        ("tintype.json", "format", 2, "another version"),
    ],
)
def test_other_architectures_are_refused(
    own: Path, tmp_path: Path, file: str, key: str, value: object, words: str
) -> None:
    stated = json.loads((own / file).read_text())
    (own / file).write_text(json.dumps({**stated, key: value}))
    with pytest.raises(UserError, match=words):
        import_model(own, tmp_path / "run", [CPU])


@pytest.mark.parametrize(("stated", "found"), [('"noise_scale": 3.0,', 3.0), ("", 2.0)])
def test_the_deviation_of_the_noise_is_read(foreign_pixels: Path, tmp_path: Path, stated: str, found: float) -> None:
    own = shutil.copytree(foreign_pixels, tmp_path / "own")
    file = own / "model_index.json"
    file.write_text(file.read_text().replace('"noise_scale": 1.0,', stated))
    imported = import_model(own, tmp_path / "run", [CPU])
    assert imported.plan.objective.noise_scale == found
    again = export_pipeline(imported.path, tmp_path / "again")
    assert json.loads((again.path / "model_index.json").read_text())["noise_scale"] == found


def test_latents_of_scaled_noise_are_no_prx_pipeline(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", latent_plan("t5", "flux1", "objective.noise_scale=2.0"))
    with pytest.raises(UserError, match=r"noise_scale is 2, and PRXPipeline starts from noise of deviation 1"):
        export_pipeline(run, tmp_path / "out")


@torch.no_grad()
def velocity_of(parts: Model, prompt: str, scale: float, x_t: Tensor, t: float) -> Tensor:
    """Guided by the empty prompt."""
    t_B = torch.full((1,), t)
    strong, weak = (parts.velocity(x_t, t_B, parts.text.encode([text])) for text in (prompt, ""))
    return torch.lerp(weak, strong, scale)


@pytest.mark.parametrize("foreign", ["PRXPipeline", "PRXPixelPipeline"], indirect=True)
@pytest.mark.parametrize(("height", "width"), [(16, 32), (32, 16)])
def test_a_foreign_model_makes_its_pipelines_images_of_any_shape(
    foreign: Path, height: int, width: int, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """By the same weights, noise and times, on prompts that cleaning changes."""
    pytest.importorskip("ftfy", reason="the pipelines clean prompts with it")
    name = request.node.callspec.params["foreign"]
    if name == "PRXPixelPipeline":
        foreign = shutil.copytree(foreign, tmp_path / "pixels")
        file = foreign / "model_index.json"
        file.write_text(file.read_text().replace('"noise_scale": 1.0', '"noise_scale": 2.0'))
    imported = import_model(foreign, tmp_path / "run", [CPU, "text.compute=fp32", "precision.compute=fp32"])
    parts = load_run(imported.path, "cpu")[0]
    with quiet("diffusers", "transformers"):
        pipe = open_pipeline(foreign, {"pipeline": name})
        pipe.scheduler = pipe.scheduler.from_config(pipe.scheduler.config, shift=1.0)
        for prompt in (DIRTY[0], DIRTY[2], DIRTY[4]):
            stride = parts.tokenizer.stride_px
            noise = torch.randn(1, parts.tokenizer.channels, height // stride, width // stride)
            noise = noise * parts.objective.noise_scale
            times = sampling_times(4, 3.0)
            theirs = pipe(
                prompt,
                height=height,
                width=width,
                latents=noise,
                timesteps=[t * 1000 for t in times[:-1]],
                guidance_scale=2.0,
                use_resolution_binning=False,
                output_type="latent",
            ).images
            ours = euler(partial(velocity_of, parts, prompt, 2.0), noise, times)
            torch.testing.assert_close(ours, theirs, atol=1e-4, rtol=1e-3)


@pytest.mark.parametrize("name", ["model.pth", "model.safetensors", "nothing.safetensors", "folder"])
def test_what_is_no_model_is_named(tmp_path: Path, name: str) -> None:
    place = tmp_path / name
    if name == "folder":
        place.mkdir()
    elif not name.startswith("nothing"):
        place.write_bytes(b"not a model")
    words = {"model.pth": "pickle", "model.safetensors": "cannot be read", "folder": "not a PRX model"}
    with pytest.raises(UserError, match=words.get(name, "does not exist")):
        import_model(place, tmp_path / "run", [CPU])


DIRTY = [
    "A RED ball &amp; a cube",
    "a &lt;b&gt;small ball on the grass",
    "one cone, see https://example.org/a.png ... #123 !!",
    "a ball 红色 and 🙂 two cubes (large)",
    '"the green-ball_on_the-left"',
    "cafÃ© with a red ball",
    "",
]
"""Prompts that cleaning changes: entities, tags, addresses, numbers, other scripts, quotes, broken letters."""


@pytest.fixture(scope="module")
def foreign_pixels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("foreign-pixels")
    path = export_pipeline(write_run(folder / "run", pixel_plan("t5")), folder / "pipeline").path
    (path / "tintype.json").unlink()
    return path


@pytest.fixture
def foreign(own: Path, foreign_pixels: Path, request: pytest.FixtureRequest) -> Path:
    """A pipeline's folder that tintype did not write."""
    (own / "tintype.json").unlink()
    return own if request.param == "PRXPipeline" else foreign_pixels


@pytest.mark.parametrize(
    ("foreign", "pipeline_name", "clean"),
    [("PRXPipeline", "PRXPipeline", "prx"), ("PRXPixelPipeline", "PRXPixelPipeline", "prx-pixel")],
    indirect=["foreign"],
)
def test_prompts_are_cleaned_as_the_foreign_pipeline_cleans_them(
    foreign: Path, pipeline_name: str, clean: str, tmp_path: Path
) -> None:
    pytest.importorskip("ftfy", reason="the pipelines clean prompts with it")
    imported = import_model(foreign, tmp_path / "run", [CPU, "text.compute=fp32"])
    assert plain(imported.plan.text)["clean"] == imported.record["text_cleaning"] == clean
    assert any(f"as diffusers' {pipeline_name} cleans prompts" in note for note in imported.notes)
    text = load_run(imported.path, "cpu")[0].text
    assert isinstance(text, FrozenTextEncoder)
    with quiet("diffusers", "transformers"):
        pipe = open_pipeline(foreign, {"pipeline": pipeline_name})
        ids_BL, mask_BL = pipe._tokenize_prompts(DIRTY, torch.device("cpu"))
        embedding_BLC = pipe.encode_prompt(DIRTY, torch.device("cpu"), do_classifier_free_guidance=False)[0]
    theirs = [row[mask].tolist() for row, mask in zip(ids_BL, mask_BL, strict=True)]
    assert text.token_ids(DIRTY) == theirs
    ours = text.encode(DIRTY)
    torch.testing.assert_close(ours.tokens_BLC[ours.mask_BL], embedding_BLC[mask_BL], atol=1e-5, rtol=1e-4)
    uncleaned = import_model(foreign, tmp_path / "uncleaned", [CPU, "text.clean=false"])
    left = load_run(uncleaned.path, "cpu")[0].text
    assert isinstance(left, FrozenTextEncoder)
    assert left.token_ids(DIRTY) != theirs, "the control: these prompts show what cleaning does"
    assert any("are not cleaned" in note for note in uncleaned.notes)
    event = RunRecord(imported.path).events[0]
    assert event["event"] == "imported" and event["text_cleaning"] == clean


def test_a_folder_that_tintype_wrote_is_read_as_it_was_trained(pipeline: Path, tmp_path: Path) -> None:
    imported = import_model(pipeline, tmp_path / "run", [CPU])
    assert imported.record["text_cleaning"] is False and imported.notes == ()


def test_a_transformer_alone_says_that_prompts_are_not_cleaned(pipeline: Path, tmp_path: Path) -> None:
    parts = [*text_settings("t5"), tokenizer_settings("flux1")[0], CPU]
    imported = import_model(pipeline / "transformer", tmp_path / "run", parts)
    (note,) = imported.notes
    assert "are not cleaned" in note and "--set text.clean=prx" in note


def test_an_imported_run_is_exported_with_its_cleaning(own: Path, tmp_path: Path) -> None:
    pytest.importorskip("ftfy", reason="the pipelines clean prompts with it")
    (own / "tintype.json").unlink()
    imported = import_model(own, tmp_path / "run", [CPU])
    again = export_pipeline(imported.path, tmp_path / "again")
    assert "skip_text_cleaning" not in again.about["call"], "the pipeline cleans as training did"
    assert import_model(again.path, tmp_path / "third", [CPU]).plan.text.model_dump()["clean"] == "prx"
