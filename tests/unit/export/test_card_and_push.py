"""An export has its card, and `--push` sends both."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from huggingface_hub import close_session, constants
from typer.testing import CliRunner, Result

from tests.fake_hub import ACCOUNT, TOKEN, FakeHub, fake_hub
from tests.tiny_export import latent_plan, pixel_plan, write_run
from tests.tiny_start import trained
from tintype.cli import app
from tintype.config.strict import parse, read_yaml
from tintype.errors import UserError
from tintype.evaluation.protocol import Protocol
from tintype.evaluation.run import evaluate
from tintype.export import pipeline_folder
from tintype.export.model_card import CardOptions
from tintype.export.pipeline_folder import export_pipeline
from tintype.export.trained import Dtype, ExportOptions
from tintype.techniques.apply import apply_techniques

pytest.importorskip("diffusers")
pytest.importorskip("transformers")
pytestmark = pytest.mark.filterwarnings("ignore:Use 'content=:DeprecationWarning")  # huggingface_hub's own, in LFS
REPO = f"{ACCOUNT}/model"
EVALUATION = "{count: 8, also: [], reference_count: 8, validation_count: 2, metrics: [fd], sampler: {steps: 1}}"


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHub]:
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    with fake_hub() as running:
        monkeypatch.setenv("HF_TOKEN", TOKEN)
        monkeypatch.setattr(constants, "ENDPOINT", running.url)
        yield running
        close_session()


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = write_run(tmp_path_factory.mktemp("secret-place") / "run", pixel_plan("t5"))
    evaluate(path, parse(Protocol, read_yaml(EVALUATION, "protocol")))
    return path


def export(run: Path, out: Path, *words: str) -> Result:
    return CliRunner().invoke(app, ["export", str(run), "--to", "diffusers", "--out", str(out), *words])


def test_what_is_pushed_is_the_export_with_its_card(hub: FakeHub, run: Path, tmp_path: Path) -> None:
    done = export(run, tmp_path / "out", "--license", "mit", "--name", "Mine", "--push", REPO, "--private", "--yes")
    assert done.exception is None, done.output
    assert "a new private repository" in " ".join(done.output.split()) and "sent as commit" in done.output
    written = {
        file.relative_to(tmp_path / "out").as_posix(): file.read_bytes()
        for file in (tmp_path / "out").rglob("*")
        if file.is_file()
    }
    assert hub.repos[REPO] == written and hub.private[REPO]
    assert {"README.md", "card-samples/sample-1.png", "tintype.json", "model_index.json"} <= set(written)
    card = written["README.md"].decode()
    for words in (
        "license: mit",
        "library_name: diffusers",
        "# Mine",
        f'snapshot_download("{REPO}")',
        "scene accuracy",
    ):
        assert words in card
    assert "secret-place" not in card


@pytest.mark.parametrize(
    ("token", "words", "message"),
    [
        (TOKEN, ["--push", REPO], "pass --yes"),
        ("hf_wrong", ["--push", REPO, "--yes"], "does not accept the token"),
        ("", ["--push", REPO, "--yes"], "no access token for the hub"),
    ],
)
def test_what_could_not_be_sent_is_not_even_written(
    hub: FakeHub, run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, token: str, words: list[str], message: str
) -> None:
    monkeypatch.setenv("HF_TOKEN", token)
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "none"))
    refused = export(run, tmp_path / "out", *words)
    assert isinstance(refused.exception, UserError) and message in str(refused.exception)
    assert not (tmp_path / "out").exists() and not hub.repos


def test_a_push_that_fails_leaves_the_export_and_says_how_to_send_it(hub: FakeHub, run: Path, tmp_path: Path) -> None:
    hub.failures = {"commit/main": 403}
    failed = export(run, tmp_path / "out", "--push", REPO, "--yes")
    assert isinstance(failed.exception, UserError)
    assert f"`tintype push {tmp_path / 'out'} --repo {REPO}` sends it" in str(failed.exception)
    hub.failures = {}
    sent = CliRunner().invoke(app, ["push", str(tmp_path / "out"), "--repo", REPO, "--yes"])
    assert sent.exit_code == 0 and "README.md" in hub.repos[REPO]


def test_without_its_card_there_is_no_export(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(pipeline_folder, "write_card", fail)
    with pytest.raises(UserError, match="No space left"):
        export_pipeline(run, tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("space", ["latents", "pixels"])
def test_the_code_of_the_card_runs(space: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("ftfy", reason="the pipelines clean prompts with it")
    from tintype.pretrained.packages import quiet

    plan = latent_plan("t5gemma", "flux1") if space == "latents" else pixel_plan("qwen3-vl")
    dtype: Dtype = "bf16" if space == "latents" else "fp32"
    out = export_pipeline(write_run(tmp_path / "run", plan), tmp_path / "out", ExportOptions(dtype=dtype)).path
    script = re.search(r"```python\n(.*?)```", (out / "README.md").read_text(encoding="utf-8"), re.DOTALL)
    assert script is not None and 'snapshot_download("OWNER/NAME")' in script[1]
    monkeypatch.setattr("huggingface_hub.snapshot_download", lambda repo: str(out))
    monkeypatch.chdir(tmp_path)
    with quiet("diffusers", "transformers"):
        exec(script[1], {})
    assert (tmp_path / "image.png").is_file()


@pytest.mark.parametrize("kind", ["sft", "mixture:add.other.data.style=photo", "resolution-stages", "caption-mix"])
def test_runs_of_every_kind_of_phase_are_exported(kind: str, tmp_path: Path) -> None:
    base = pixel_plan("t5", "data.size_px=32", "train.steps=2")
    technique = f"sft:from={trained(base)},steps=2" if kind == "sft" else kind
    exported = export_pipeline(
        trained(apply_techniques(base, [technique])), tmp_path / "out", ExportOptions(card=CardOptions("mit"))
    )
    text = (exported.path / "README.md").read_text(encoding="utf-8")
    assert ("from random weights" in text) == (kind != "sft")
    assert exported.about["step"] == 2
