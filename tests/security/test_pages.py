"""Reports and the live page show text from outside without control characters, and without passwords."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import yaml

from tests.fault.promises import Promise
from tests.live_server import serving
from tests.tiny import TINY
from tests.unit.study.example_results import draw_previews, hostile
from tintype import cli
from tintype.page import template
from tintype.runtime.printable import acts
from tintype.study.lab import prepare_study
from tintype.study.report import markdown, write_report
from tintype.study.study import load_study

PASSWORD, TOKEN = "s3cret", "hf_t0ken"
ADDRESS = f"https://al:{PASSWORD}@host.example/runs?part=1&token={TOKEN}"
MARK = "outside"
CONTROL = "".join(map(chr, (*range(1, 9), *range(11, 32), *range(0x7F, 0xA0), 0x202E, 0x2066, 0xFEFF)))
ACTING = f"{CONTROL}\x1b]0;title\x07\x1b[2J{MARK} {ADDRESS}"
"""All control characters, then those that set the title and clear the screen."""


def is_clean(text: str) -> bool:
    return MARK in text and not acts(text) and PASSWORD not in text and TOKEN not in text


def reported(folder: Path) -> dict[str, str]:
    """Return the files of a report whose names, captions, errors and events are hostile."""
    results = hostile(ACTING)
    draw_previews(results, folder)
    write_report(results, folder)
    return {name: (folder / name).read_text() for name in ("report.html", "report.md", "results.csv", "results.json")}


@contextmanager
def live_page(folder: Path) -> Iterator[dict[str, str]]:
    """Yield the pages of a server over a study whose question and arm are hostile."""
    with serving(prepared(folder).parent) as client:
        pages = {target: client.get(target).text for target in ("/", "/study/study")}
        parts = dict(client.events("/events/study/study", 1))["fragments"]
        assert isinstance(parts, dict)
        yield pages | {"fragments": "".join(parts.values())}


def prepared(folder: Path) -> Path:
    (folder / "plan.yaml").write_text(TINY)
    (folder / "study.yaml").write_text(yaml.safe_dump(study_in(folder)))
    prepare_study(load_study(str(folder / "study.yaml")), folder / "served" / "study")
    return folder / "served" / "study"


def study_in(folder: Path) -> dict[str, object]:
    arms = [{"name": ACTING, "techniques": ["ema"]}]
    return {"question": ACTING, "recipe": str(folder / "plan.yaml"), "seeds": [0, 1], "arms": arms}


@pytest.mark.promise(27)
def test_no_report_has_control_characters_or_passwords(promise: Promise, tmp_path: Path) -> None:
    """Write a report with all control characters and an address with a password in names, captions and errors."""
    for name, text in reported(tmp_path).items():
        if name == "results.json":  # for programs: JSON has its own codes
            promise.count(PASSWORD not in text and TOKEN not in text, name)
        else:
            promise.count(is_clean(text), name)


@pytest.mark.promise(27)
def test_no_live_page_has_control_characters_or_passwords(promise: Promise, tmp_path: Path) -> None:
    """Serve a study whose question and arm have control characters and an address with a password."""
    with live_page(tmp_path) as pages:
        for name, text in pages.items():
            promise.count(is_clean(text), name)


@pytest.mark.promise(27)
def test_no_command_prints_a_password(
    promise: Promise, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Show the plan of a study whose question has an address with a password; read the log of its commands."""
    prepared(tmp_path)
    command = ["tintype", "ablate", str(tmp_path / "study.yaml"), "--set", f"question={ADDRESS}"]
    monkeypatch.setattr(sys, "argv", [*command, "--dry-run", "--out", str(tmp_path / "out")])
    with pytest.raises(SystemExit):
        cli.main()
    said = capsys.readouterr()
    promise.count(PASSWORD not in said.out + said.err and "(hidden)@host.example" in said.out, said)
    monkeypatch.setattr(sys, "argv", [*command, "--prepare", "--out", str(tmp_path / "out")])
    with pytest.raises(SystemExit):
        cli.main()
    promise.count(PASSWORD not in (tmp_path / "out" / "commands.jsonl").read_text(), "commands.jsonl")


@pytest.mark.promise(27, control="pages show text as it is")
def test_control_without_the_check_pages_have_both(
    promise: Promise, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Write the same report, and serve the same study, without the check."""
    for module in (template, markdown):
        monkeypatch.setattr(module, "visible", lambda text: text)
    pages = reported(tmp_path)
    with live_page(tmp_path) as served:
        for name in ("report.html", "report.md"):
            promise.count(is_clean(pages[name]), name)
        for name, text in served.items():
            promise.count(is_clean(text), name)
    assert promise.tries == len(promise.broken)
