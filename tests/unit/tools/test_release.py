"""Statements of a release agree wherever they stand, and its workflows ask for no more rights than they need."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

import tintype

ROOT = Path(__file__).parents[3]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
GITHUB = ROOT / ".github"
WORKFLOWS = sorted((GITHUB / "workflows").glob("*.yml"))
FORMS = sorted(set((GITHUB / "ISSUE_TEMPLATE").glob("*.yml")) - {GITHUB / "ISSUE_TEMPLATE" / "config.yml"})
SOURCE = PROJECT["urls"]["Source"]


def read(file: Path) -> Any:
    return yaml.load(file.read_text(encoding="utf-8"), Loader=yaml.BaseLoader)  # `on` is a word


def test_the_citation_has_the_version_and_the_address() -> None:
    citation = read(ROOT / "CITATION.cff")
    assert citation["version"] == tintype.__version__
    assert citation["repository-code"] == SOURCE
    assert citation["license"] == PROJECT["license"]


def test_every_address_is_of_one_repository() -> None:
    assert all(url.startswith(SOURCE) for url in PROJECT["urls"].values())
    assert read(GITHUB / "ISSUE_TEMPLATE" / "config.yml")["contact_links"][0]["url"].startswith(SOURCE)


def test_workflows_try_every_python_of_the_classifiers() -> None:
    pattern = r"Programming Language :: Python :: (3\.\d+)"
    known = {found[1] for text in PROJECT["classifiers"] if (found := re.fullmatch(pattern, text))}
    jobs = read(GITHUB / "workflows" / "tests.yml")["jobs"]
    tried = set(jobs["pythons"]["strategy"]["matrix"]["python"])
    assert tried | {"3.11"} == known and PROJECT["requires-python"] == ">=3.11"
    assert "torch>=2.10" in PROJECT["dependencies"]
    assert any("torch==2.10.*" in step.get("run", "") for step in jobs["oldest-torch"]["steps"])


def test_the_changelog_has_a_place_for_what_is_not_released() -> None:
    assert "\n## Unreleased\n" in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("file", WORKFLOWS, ids=lambda file: file.name)
def test_workflows_are_bounded_and_pinned(file: Path) -> None:
    workflow = read(file)
    assert workflow["permissions"] == {"contents": "read"}
    for job in workflow["jobs"].values():
        assert "timeout-minutes" in job
        for step in job["steps"]:
            assert "uses" not in step or re.fullmatch(r"[\w./-]+@[0-9a-f]{40}", step["uses"]), step
            assert "${{" not in step.get("run", ""), "a value in a script is code; give it by env"
    assert "secrets." not in file.read_text(encoding="utf-8")


@pytest.mark.parametrize("file", WORKFLOWS, ids=lambda file: file.name)
def test_workflows_call_targets_that_there_are(file: Path) -> None:
    targets = set(re.findall(r"^([\w./-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    called = re.findall(r"make ([\w./-]+)", "\n".join(run for run in _scripts(read(file))))
    assert set(called) <= targets | {"docs"}


def _scripts(workflow: Any) -> list[str]:
    return [step["run"] for job in workflow["jobs"].values() for step in job["steps"] if "run" in step]


@pytest.mark.parametrize("file", FORMS, ids=lambda file: file.name)
def test_issue_forms_have_what_github_asks_for(file: Path) -> None:
    form = read(file)
    assert form["name"] and form["description"] and form["body"]
    ids = [part["id"] for part in form["body"]]
    assert len(set(ids)) == len(ids)
    assert all(
        part["type"] in ("input", "textarea", "checkboxes") and part["attributes"]["label"] for part in form["body"]
    )


def test_the_image_is_built_from_files_that_it_is_given() -> None:
    """`.dockerignore` leaves everything out but what it lists."""
    given = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    copied = re.findall(r"^COPY (.+) \S+$", (ROOT / "Dockerfile").read_text(), re.MULTILINE)
    assert {name for line in copied for name in line.split()} == given
    assert all((ROOT / name).exists() for name in given)
