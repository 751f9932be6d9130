"""`tintype serve studies` in a fresh clone: the committed studies, which have no runs, are shown whole."""

from __future__ import annotations

import json
import os
import re
import shutil
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import urldefrag, urljoin

import pytest
from markupsafe import escape

from tests.live_server import Client, serving
from tests.unit.study.example_results import draw_previews, example
from tintype.runtime.files import write_sealed
from tintype.serve import overview, server
from tintype.serve.links import Links
from tintype.serve.live import LiveStudy
from tintype.serve.overview import LiveIndex
from tintype.study.lab import prepare_study
from tintype.study.report import write_report
from tintype.study.report.findings import SHOWN_BESIDE
from tintype.study.results import StudyResults, read_results_file
from tintype.study.runner import tasks_of
from tintype.study.study import load_study

STUDIES = Path(__file__).parents[3] / "studies"
COMMITTED = sorted(file.parent for file in STUDIES.glob("*/results.json"))


class Addresses(HTMLParser):
    """The addresses of this server that a page leads to or loads."""

    def __init__(self, page: str, text: str) -> None:
        super().__init__()
        self.page, self.found, self.images = page, set[str](), 0
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note links, images, those of other steps, styles and scripts."""
        given = {key: value or "" for key, value in attrs}
        self.images += tag == "img" and bool(given.get("src"))
        named = [given[key] for key in ("href", "src") if key in given]
        named += json.loads(given["data-at"]).values() if "data-at" in given else []
        addresses = [urldefrag(urljoin(self.page, one))[0] for one in named if one]
        self.found |= {one for one in addresses if one.startswith("/")}


def walk(client: Client, first: str) -> dict[str, Addresses]:
    """Open every address that a page leads to; return the pages. Each address must have an answer."""
    pages, waiting, seen = dict[str, Addresses](), [first], {"/", first}
    while waiting:
        address = waiting.pop()
        answer = client.get(address)
        assert answer.status == 200, f"{address}: {answer.status}"
        if not answer.headers["Content-Type"].startswith("text/html"):
            continue
        pages[address] = Addresses(address.partition("?")[0], answer.text)
        new = pages[address].found - seen
        seen |= new
        waiting += sorted(new)
    return pages


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a page wait for all its parts, however busy the machine is."""
    monkeypatch.setattr(server, "_FIRST_PAINT_S", 30.0)


def test_the_first_page_has_every_committed_study() -> None:
    with serving(STUDIES) as client:
        live = client.server.index
        while live.step():
            pass
        index = client.get("/").text
        addresses = Addresses("/", index)
        images = [one for one in addresses.found if one.startswith(("/kept/", "/image/"))]
        assert images and all(client.get(one).status == 200 for one in images)
        assert not client.server._lives, "no study was read whole for its image"
    cards = index.split('<li class="card')[1:]
    assert len(cards) == addresses.images == len(COMMITTED) >= 17
    for folder, card in zip(COMMITTED, cards, strict=True):
        results = read_results_file(folder / "results.json")
        runs = sum(len(arm.runs) for arm in results.arms)
        assert f"<b>{runs}</b> of {runs} runs done" in card
        verdicts = {row.verdict for row in results.rows(primary=True) if row.kind == "arm"}
        assert all(f"</span> {verdict}</span>" in card for verdict in verdicts & {"better", "worse"})
        assert {f"/study/{folder.name}", f"/report/{folder.name}"} <= addresses.found


def test_the_first_page_reads_what_has_changed_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for folder in COMMITTED[:2]:
        shutil.copytree(folder, tmp_path / folder.name)
    read = list[str]()

    def noted(file: Path) -> StudyResults:
        read.append(file.parent.name)
        return read_results_file(file)

    monkeypatch.setattr(overview, "read_results_file", noted)
    live = LiveIndex(tmp_path, Links(tmp_path))
    for _ in range(5):
        live.step()
    names = [folder.name for folder in COMMITTED[:2]]
    assert read == names and live.version == 1
    os.utime(tmp_path / names[1] / "results.json")
    shutil.rmtree(tmp_path / names[0])
    live._rested_s = 0.0
    live.step()
    assert read == [*names, names[1]] and live.fragments["index"].count("<h3>") == 1


def test_a_study_with_a_link_that_leads_out_is_not_read_for_the_first_page(tmp_path: Path) -> None:
    shutil.copytree(COMMITTED[0], tmp_path / "served" / "study")
    (tmp_path / "served" / "study" / "runs").symlink_to(tmp_path)
    live = LiveIndex(tmp_path / "served", Links(tmp_path / "served"))
    live.step()
    assert "leads out" in live.fragments["index"] and "runs done" not in live.fragments["index"]


@pytest.mark.parametrize("folder", COMMITTED, ids=lambda folder: str(folder.name))
def test_every_link_and_image_of_a_committed_study_has_an_answer(folder: Path) -> None:
    """No part of its page is read for ever, and curves come by its stream."""
    address, results = f"/study/{folder.name}", read_results_file(folder / "results.json")
    with serving(STUDIES) as client:
        pages, text = walk(client, address), client.get(address).text
        events = dict(client.events(f"/events{address}", 2))
    assert {address, f"/report/{folder.name}", "/compare", "/playground"} <= pages.keys()
    assert text.count("Reading …") == 1, "the charts, which a script fills from the stream"
    assert events.keys() == {"fragments", "curves"}
    assert f"<b>{sum(len(arm.runs) for arm in results.arms)}</b> done" in text
    shown = results.by_resolution()
    assert pages[address].images == sum(8 * (len(view.arms) + bool(view.resolution.real_previews)) for view in shown)
    assert text.index('id="s-verdicts"') < text.index('id="s-queue"'), "a finished study begins with what it found"
    assert 'role="alert" hidden' in text and "Images appear when" not in text


def test_images_of_a_stored_study_come_from_its_report(tmp_path: Path) -> None:
    """Where the files of the images are gone, the report has them; no other name is answered."""
    results = example()
    draw_previews(results, tmp_path)
    write_report(results, tmp_path)
    for file in tmp_path.rglob("*.png"):
        file.unlink()
    (tmp_path / "study.yaml").write_text("name: x\n")
    with serving(tmp_path) as client:
        page = client.get("/study/").text
        first = next(one for one in Addresses("/", page).found if one.startswith("/kept/"))
        image = client.get(first)
        assert image.headers["Content-Type"] == "image/png" and image.content.startswith(b"\x89PNG")
        assert client.get("/kept/?image=study.yaml").status == client.get("/kept/").status == 404
    (tmp_path / "report.html").unlink()
    with serving(tmp_path) as client:
        assert client.get(first).status == 404
        assert "/kept/" not in client.get("/study/").text


def test_a_running_study_links_the_runs_that_are_there(tmp_path: Path) -> None:
    changes = ["seeds=[0,1]", "control_seeds=[]", "primary=[validation_loss]"]
    study = load_study("pocket", changes)
    prepare_study(study, tmp_path / "study")
    first = tasks_of(study, tmp_path / "study")[0]
    first.folder.mkdir(parents=True)
    write_sealed(first.folder / "plan.yaml", first.plan.to_yaml())
    with serving(tmp_path) as client:
        pages, text = walk(client, "/study/study"), client.get("/study/study").text
    assert text.index('id="s-queue"') < text.index('id="s-verdicts"')
    assert [address for address in pages if "/run/" in address] == [f"/run/study/runs/{first.plan.hash}"]


@pytest.mark.parametrize("folder", COMMITTED, ids=lambda folder: str(folder.name))
def test_verdicts_are_written_as_the_report_writes_them(folder: Path) -> None:
    """With the rows' words, numbers that can be read, and metrics by their labels."""
    live, results = LiveStudy(folder, "x"), read_results_file(folder / "results.json")
    live.step()
    shown = live.fragments["verdicts"]
    for row in results.rows():
        if row.comparison and (row.kind != "control" or row.primary):
            assert str(escape(row.words)) in shown and (row.kind == "trend" or row.change in shown)
    notes = [note for note in results.notes() if note.kind not in (*SHOWN_BESIDE, "lost_run")]
    assert notes and all(str(escape(note.text)) in shown for note in notes)
    text = re.sub(r"<[^>]*>", " ", "".join(live.fragments.values()))
    assert not re.search(r"\d,\d{3},\d{3},\d{3}", text)
    assert not any(re.search(rf"\b{metric.name}\b", text) for metric in results.metrics if "_" in metric.name)


def test_events_of_a_stored_study_are_shown() -> None:
    live = LiveStudy(STUDIES / "2026-11-15_phases-mini", "x")
    live.step()
    assert "No event was logged" not in live.fragments["events"]


def test_stored_curves_have_no_seconds() -> None:
    live = LiveStudy(COMMITTED[0], "x")
    live.step()
    arm, name = next(iter(live.curves.versions)), live.curves.names()[0]
    assert {point[1] for point in live.curves.band(arm, name)} == {None}
