from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tests.tiny_export import latent_plan, pixel_plan, write_run
from tintype.cli import app
from tintype.errors import UserError
from tintype.export.pipeline_folder import export_pipeline
from tintype.export.trained import export_file

pytest.importorskip("diffusers")
pytest.importorskip("transformers")

DOCS = Path(__file__).parents[3] / "docs" / "export.md"


def invoke(*words: object) -> str:
    result = CliRunner().invoke(app, [str(word) for word in words])
    if result.exception is not None:
        raise result.exception
    return " ".join(result.output.split())


def test_export_with_its_check_and_import(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", pixel_plan("t5"))
    said = invoke("export", run, "--to", "diffusers", "--out", tmp_path / "out", "--check")
    assert "raw weights of step 1 in fp32" in said
    figures = [float(number) for number in re.findall(r"images in \[0, 1\] by (\S+)", said)]
    assert len(figures) == 2
    assert max(figures) < 1e-3
    said = invoke("import", tmp_path / "out", "--out", tmp_path / "again", "--set", "run.device=cpu")
    assert "at step 0" in said
    assert (tmp_path / "again" / "checkpoints" / "step-000000000").is_dir()
    said = invoke("export", tmp_path / "again", "--to", "safetensors", "--out", tmp_path / "one.safetensors")
    assert "step 0" in said


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_run(tmp_path_factory.mktemp("trained") / "run", pixel_plan("t5"))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--to", "safetensors", "--check"], "--check compares"),
        (["--to", "safetensors", "--license", "mit"], "--license applies only to a folder with a model card"),
        (["--to", "safetensors", "--push", "a/b", "--yes"], "--push applies only to a folder with a model card"),
        (["--to", "diffusers", "--private"], "--private applies only to --push"),
        (["--to", "diffusers", "--push", "nowhere", "--yes"], "OWNER/NAME"),
        (["--to", "diffusers", "--license", "My Own"], '--license "My Own"'),
    ],
)
def test_wrong_options_are_named(trained: Path, tmp_path: Path, words: list[str], message: str) -> None:
    for run, words_of in ((tmp_path / "run", "is not a run"), (trained, message)):
        with pytest.raises(UserError, match=words_of):
            invoke("export", run, "--out", tmp_path / "out", *words)
    assert list(tmp_path.iterdir()) == []


def test_a_single_file_is_named_so(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"the name of one file that ends in \.safetensors"):
        export_file(tmp_path / "run", tmp_path / "out")


@pytest.mark.parametrize(("option", "value"), [("--to", "onnx"), ("--dtype", "fp8"), ("--weights", "ema")])
def test_unknown_choices_are_named(tmp_path: Path, option: str, value: str) -> None:
    words = ["export", str(tmp_path / "run"), "--out", str(tmp_path / "out"), "--to", "diffusers", option, value]
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 2 and option in result.output and f"'{value}' is not one of" in result.output


@pytest.mark.slow
@pytest.mark.parametrize("space", ["latents", "pixels"])
def test_the_script_of_the_docs_runs(space: str, tmp_path: Path) -> None:
    """In a process of its own, in which nothing was imported before."""
    pytest.importorskip("ftfy", reason="the pipelines clean prompts with it")
    plan = latent_plan("t5gemma", "flux1") if space == "latents" else pixel_plan("qwen3-vl")
    exported = export_pipeline(write_run(tmp_path / "run", plan), tmp_path / "exported")
    script = re.search(r"```python\n(.*?)```", DOCS.read_text(encoding="utf-8"), re.DOTALL)
    assert script is not None
    command = [sys.executable, "-c", script[1].replace("PRXPipeline", exported.about["pipeline"])]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert sorted(file.name for file in tmp_path.glob("*.png")) == ["0.png", "1.png"]
