"""Record in a run's folder of the code that made it."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import tintype
from tintype.runtime.machine import code_commit, environment

pytestmark = pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")


def git(folder: Path, *arguments: str) -> str:
    identity = ("-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false")
    command = ["git", "-C", str(folder), *identity, *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A repository with one commit of a package."""
    (tmp_path / "tintype").mkdir()
    (tmp_path / "tintype" / "__init__.py").write_text("")
    git(tmp_path, "init", "--quiet")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "--quiet", "--message=first")
    return tmp_path


@pytest.fixture(autouse=True)
def _forget() -> Iterator[None]:
    yield
    code_commit.cache_clear()


def commit_of(package: Path, monkeypatch: pytest.MonkeyPatch) -> str | None:
    """The commit that a run of this package would record."""
    monkeypatch.setattr(tintype, "__file__", str(package / "__init__.py"))
    code_commit.cache_clear()
    found: str | None = environment(torch.device("cpu")).get("commit")
    return found


def test_a_checkout_has_its_commit_and_says_whether_it_was_changed(
    checkout: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    head = git(checkout, "rev-parse", "HEAD")
    (checkout / "notes.txt").write_text("beside the package, and not tracked")
    assert commit_of(checkout / "tintype", monkeypatch) == head
    (checkout / "tintype" / "__init__.py").write_text("changed = True")
    assert commit_of(checkout / "tintype", monkeypatch) == f"{head} with uncommitted changes"


def test_an_installed_package_does_not_take_the_commit_of_the_project_around_it(
    checkout: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    installed = checkout / ".venv" / "site-packages" / "tintype"
    installed.mkdir(parents=True)
    assert commit_of(installed, monkeypatch) is None


def test_without_git_there_is_no_commit(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    assert commit_of(checkout / "tintype", monkeypatch) is None
