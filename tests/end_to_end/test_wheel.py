"""The package as it is published: built, checked, installed where the repository is not, and used."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import tintype
from tools.dist import BESIDE, misstated, problems

ROOT = Path(__file__).parents[2]
TINY_STUDY = [
    *("--set", "set=[train.steps=2,data.count=64]"),
    *("--set", "seeds=[0,1]", "--set", "control_seeds=[]"),
    *("--set", "arms=[{techniques: [x-prediction]}]"),
    *("--set", "evaluation={count: 8, reference_count: 8, validation_count: 2, sampler: {steps: 1}, also: []}"),
]


def run(*command: str | Path, cwd: Path) -> str:
    """Run a command with nothing of the repository in its environment, and return what it printed."""
    known = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "PYTEST"))}
    done = subprocess.run(
        list(map(str, command)), cwd=cwd, env={**known, "OMP_NUM_THREADS": "1"}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder with the source distribution, and with the wheel that was built from it."""
    copied = tmp_path_factory.mktemp("repository")
    for folder in ("tintype", "tools", "docs"):
        shutil.copytree(ROOT / folder, copied / folder, ignore=shutil.ignore_patterns("__pycache__"))
    for folder in ("tests", "studies"):
        (copied / folder).mkdir()
        (copied / folder / "test_it.py").touch()
    for name in BESIDE - {"PKG-INFO", "setup.cfg"}:
        shutil.copy(ROOT / name, copied / name)
    run(sys.executable, "-m", "build", "--outdir", copied / "dist", cwd=copied)
    return copied / "dist"


@pytest.fixture(scope="module")
def installed(published: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the programs of an environment that has the wheel, and the dependencies of this one.

    They are found by a path: the file by which this environment finds the repository is not read there.
    """
    environment = tmp_path_factory.mktemp("environment")
    run(sys.executable, "-m", "venv", environment, cwd=environment)
    python = environment / "bin" / "python"
    run(python, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", *published.glob("*.whl"), cwd=environment)
    (own,) = environment.glob("lib/python*/site-packages")
    (own / "dependencies.pth").write_text("\n".join(path for path in sys.path if path.endswith("site-packages")))
    return environment / "bin"


@pytest.mark.slow
def test_the_wheel_has_the_package_and_nothing_else(published: Path) -> None:
    assert not problems(published)
    assert not misstated(published, f"v{tintype.__version__}", "https://github.com/tintype-lab/tintype")
    assert len(misstated(published, "v9.9.9", "https://github.com/another/tintype")) == 2


@pytest.mark.slow
def test_the_wheel_runs_the_pocket_study_and_samples(installed: Path, tmp_path: Path) -> None:
    found = run(installed / "python", "-c", "import tintype; print(tintype.__file__)", cwd=tmp_path)
    assert Path(found.strip()).is_relative_to(installed.parent)
    assert run(installed / "tintype", "--version", cwd=tmp_path).startswith("tintype 0.")
    run(installed / "tintype", "ablate", "pocket", "--out", "study", *TINY_STUDY, cwd=tmp_path)
    assert (tmp_path / "study" / "report.html").is_file()
    chosen = ["--arm", "x-prediction", "--steps", "1", "--out", "images"]
    run(installed / "tintype", "sample", "study", "a red ball", *chosen, cwd=tmp_path)
    assert (tmp_path / "images" / "0000.png").is_file()
