"""`--to tintype`: any run in a folder that is sampled, scored, described and pushed like the run."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from huggingface_hub import close_session, constants
from PIL import Image
from safetensors import safe_open
from typer.testing import CliRunner

from tests.edit_checked import edit_text
from tests.fake_hub import ACCOUNT, TOKEN, FakeHub, fake_hub
from tests.tiny import tiny_plan
from tests.tiny_export import latent_plan, write_run
from tests.tiny_store import tiny_store
from tests.tiny_tuning import tuned_plan
from tintype.audit.run import audit_run
from tintype.cli import app
from tintype.errors import UserError
from tintype.evaluation.protocol import Protocol
from tintype.evaluation.run import evaluate
from tintype.export.contract import PIXEL, pipeline_for
from tintype.export.model_folder import export_model
from tintype.export.pipeline_folder import export_pipeline
from tintype.export.push import collect
from tintype.export.trained import ExportOptions
from tintype.plan import Plan, diff, plan_from_document, plan_from_folder
from tintype.recipes import packaged
from tintype.runtime.interrupt import Interrupt
from tintype.sampling.generate import SamplerSettings, generate
from tintype.sampling.sample import sample_run
from tintype.techniques.apply import apply_techniques
from tintype.train.load import load_run
from tintype.train.loop import train

QUICK = SamplerSettings(steps=2, batch=4)
PROTOCOL = Protocol(count=8, also=(), reference_count=8, validation_count=2, metrics=("fd",), sampler=QUICK)
REPO = f"{ACCOUNT}/model"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Trained with `words` and an average: as pocket is, and no pipeline of diffusers holds it."""
    folder = tmp_path_factory.mktemp("secret-place") / "run"
    train(tiny_plan(techniques=["ema"]), folder, Interrupt())
    return folder


@pytest.fixture
def model(run: Path, tmp_path: Path) -> Path:
    export_model(run, tmp_path / "model")
    return tmp_path / "model"


def invoke(*words: object) -> str:
    result = CliRunner().invoke(app, [str(word) for word in words])
    if result.exception is not None:
        raise result.exception
    return " ".join(result.output.split())


def pixels(run: Path, out: Path) -> list[bytes]:
    written = sample_run(run, ["a red ball", ""], None, out, QUICK, count=1, seed=3, size_px=None)
    return [Image.open(path).tobytes() for path in written]


def test_samples_and_scores_are_those_of_the_run_bit_for_bit(run: Path, model: Path, tmp_path: Path) -> None:
    shutil.move(model, tmp_path / "elsewhere")
    assert pixels(run, tmp_path / "a") == pixels(tmp_path / "elsewhere", tmp_path / "b")
    ours, theirs = evaluate(run, PROTOCOL), evaluate(tmp_path / "elsewhere", PROTOCOL)
    assert theirs.weights == "average" == ours.weights
    speed = "images_per_s"  # of the training, which an export does not have
    assert theirs.metrics == {name: value for name, value in ours.metrics.items() if name != speed}
    card = invoke("card", tmp_path / "elsewhere", "--license", "mit")
    assert "fd_scenes" in card and "library_name: tintype" in card


def test_it_has_the_chosen_weights_its_card_and_nothing_of_the_training(run: Path, model: Path, tmp_path: Path) -> None:
    files = {file.relative_to(model).as_posix(): file for file in model.rglob("*") if file.is_file()}
    weights = "checkpoints/step-000000006/state.safetensors"
    assert {"README.md", "plan.yaml", "tintype.json", weights} <= set(files)
    assert not {"metrics.jsonl", "events.jsonl", "optimizer.json"} & set(files)
    assert {file.suffix for file in files.values()} <= {".safetensors", ".json", ".yaml", ".md", ".png"}
    with safe_open(files[weights], "pt") as opened:
        assert all(name.startswith("modules/") for name in opened.keys())  # noqa: SIM118
    for file in files.values():
        assert b"secret-place" not in file.read_bytes(), file
    assert "tintype sample model" in files["README.md"].read_text()
    invoke("export", run, "--to", "tintype", "--out", tmp_path / "raw", "--weights", "raw")
    average, raw = (load_run(path)[0].modules.state_dict() for path in (model, tmp_path / "raw"))
    trained = load_run(run, raw=True)[0].modules.state_dict()
    assert any(not torch.equal(average[name], raw[name]) for name in raw)
    assert all(torch.equal(trained[name], raw[name]) for name in raw)


ANY: dict[str, Callable[[], Plan]] = {
    "sprint": lambda: tiny_plan(techniques=["sprint"]),
    "small-vae": lambda: tuned_plan(techniques=[]),
    "taef1": lambda: latent_plan("t5", "taef1", "objective.kind=x-prediction"),
    "flux2": lambda: latent_plan("minilm", "flux2"),
}


@pytest.mark.parametrize("case", list(ANY))
def test_any_run_is_exported_and_opens_without_what_its_plan_named(case: str, tmp_path: Path) -> None:
    pytest.importorskip("diffusers")
    plan = ANY[case]()
    run = write_run(tmp_path / "run", plan)
    export_model(run, tmp_path / "model")
    portable = plan_from_folder(tmp_path / "model")
    for section in ("tokenizer", "text"):
        place = getattr(getattr(portable, section), "weights", None) or getattr(
            getattr(portable, section), "folder", None
        )
        assert place is None or Path(place).is_relative_to(tmp_path / "model")
    made = [
        generate(load_run(path)[0], ["a red ball"], QUICK, seed=1, size_px=plan.data.size_px, first_index=0)
        for path in (run, tmp_path / "model")
    ]
    assert torch.equal(*made)


def test_a_store_is_named_by_its_last_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = tiny_store(tmp_path, 20)
    run = tmp_path / "run"
    train(tiny_plan("data.kind=store", f"data.path={store}", "train.steps=2"), run, Interrupt())
    said = invoke("export", run, "--to", "tintype", "--out", tmp_path / "model")
    assert "names data by the last name" in said and "path: store\n" in (tmp_path / "model" / "plan.yaml").read_text()
    alone = PROTOCOL.model_copy(update={"encoders": (), "count": 2, "reference_count": 2})
    monkeypatch.chdir(tmp_path)
    assert "validation_loss" in evaluate(tmp_path / "model", alone).metrics


def test_what_was_damaged_or_changed_is_refused(model: Path) -> None:
    weights = next(model.rglob("state.safetensors"))
    plan, whole = model / "plan.yaml", weights.read_bytes()
    weights.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    with pytest.raises(UserError, match=r"weights in .* are damaged: .*checksum.* export or download"):
        load_run(model)
    weights.write_bytes(whole)
    load_run(model)
    edit_text(plan, "shift: 1.0", "shift: 2.0")
    with pytest.raises(UserError, match=r"SHA-256 of .*plan\.yaml .*export or download"):
        load_run(model)
    plan.unlink()
    with pytest.raises(UserError, match="is not a run"):
        load_run(model)
    (model / "tintype.json").write_text("{")
    with pytest.raises(UserError, match=r"tintype\.json is damaged"):
        train(tiny_plan(), model, Interrupt())


def test_it_is_not_trained_on_but_others_start_from_it(run: Path, model: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"cannot be resumed.*sft:from=\S+,weights=average"):
        train(tiny_plan(techniques=["ema"]), model, Interrupt())
    with pytest.raises(UserError, match="cannot be resumed"):
        audit_run(model, 1)
    plan = tiny_plan("train.steps=2")
    with pytest.raises(UserError, match=r"only the average weights; use start.weights=average"):
        train(apply_techniques(plan, [f"sft:from={model}"]), tmp_path / "raw", Interrupt())
    train(apply_techniques(plan, [f"sft:from={model},weights=average"]), tmp_path / "tuned", Interrupt())
    with pytest.raises(UserError, match=r"only the run.s average weights"):
        export_model(model, tmp_path / "again", ExportOptions("raw"))
    export_model(model, tmp_path / "again")
    assert (tmp_path / "again" / "plan.yaml").read_text() == (model / "plan.yaml").read_text()


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHub]:
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    with fake_hub() as running:
        monkeypatch.setenv("HF_TOKEN", TOKEN)
        monkeypatch.setattr(constants, "ENDPOINT", running.url)
        yield running
        close_session()


@pytest.mark.filterwarnings("ignore:Use 'content=:DeprecationWarning")  # huggingface_hub's own, in LFS
def test_it_is_pushed_without_what_scoring_left(hub: FakeHub, run: Path, tmp_path: Path) -> None:
    model = tmp_path / "model"
    invoke("export", run, "--to", "tintype", "--out", model, "--license", "mit", "--push", REPO, "--yes")
    sent = hub.repos[REPO]
    assert {"README.md", "plan.yaml", "tintype.json"} < set(sent)
    evaluate(model, PROTOCOL)
    assert set(collect(model).files) == set(sent)
    invoke("push", model, "--repo", REPO, "--yes")
    assert hub.commits == 1


def test_a_run_that_is_pushed_names_the_command_that_works(run: Path) -> None:
    with pytest.raises(UserError, match=rf"tintype export {re.escape(str(run))} --to tintype --out DIR --push {REPO}"):
        invoke("push", run, "--repo", REPO, "--yes")


def test_the_refusal_of_diffusers_names_every_way_out(run: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError) as refused:
        export_pipeline(run, tmp_path / "out")
    said = str(refused.value)
    assert "\n- text:" in said and "\n- objective:" in said
    assert f"`tintype export {run} --to tintype --out DIR`" in said and "pocket-diffusers" in said
    techniques = re.findall(r"--technique (\S+)", said)
    assert f"tintype train {run}/plan.yaml --technique" in said and len(techniques) == 2
    assert pipeline_for(apply_techniques(plan_from_folder(run), techniques)) == PIXEL


@pytest.mark.parametrize("name", ["pocket", "mini"])
def test_each_recipe_has_a_twin_that_diffusers_opens(name: str) -> None:
    plan, twin = (plan_from_document(packaged.find("plans", one)) for one in (name, f"{name}-diffusers"))
    assert pipeline_for(twin) == PIXEL
    assert {key.partition(".")[0] for key in diff(plan, twin)} == {"text", "objective"}
