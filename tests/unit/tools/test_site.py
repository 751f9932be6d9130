"""The docs site: what is generated from the code, how links are rewritten, and what the check of links finds."""

from __future__ import annotations

import re
import subprocess
import sys
from fnmatch import fnmatchcase
from pathlib import Path, PurePosixPath
from urllib.parse import unquote

import pytest

from tests.commands import COMMANDS
from tests.tiny import TINY
from tests.written_runs import Drawer, written_runs
from tintype.metrics.table import ON_FEATURES
from tintype.plan import Plan, flat, plan_from_yaml, read_plan
from tintype.runtime.interrupt import Interrupt
from tintype.settings import plain
from tintype.study.lab import run_study
from tintype.study.settings import StudySettings
from tintype.study.study import load_study
from tintype.techniques import TECHNIQUES
from tintype.train.loop import train
from tools.site import disk, links, reference
from tools.site.stage import PAGES, Stage, outside_code

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def pages() -> dict[str, str]:
    return reference.pages()


def test_every_setting_of_a_plan_is_on_a_page(pages: dict[str, str]) -> None:
    text = "\n".join(pages.values())
    keys = [key for key in flat(plain(read_plan("mini"))) if key.partition(".")[0] in Plan.model_fields]
    keys = [key for key in keys if "." in key and not key.endswith(".kind")]
    assert len(keys) > 80
    assert not [key for key in keys if f"`{key}`" not in text]
    assert {f"reference/plan/{name}.md" for name in Plan.model_fields if name != "seed"} <= set(pages)
    assert not [name for name in StudySettings.model_fields if f"`{name}`" not in pages["reference/study.md"]]


def test_defaults_types_and_bounds_stand_beside_a_setting(pages: dict[str, str]) -> None:
    rows = pages["reference/plan/optimizer.md"].splitlines()
    (row,) = [row for row in rows if row.startswith("| `optimizer.beta1`")]
    assert row.startswith(
        "| `optimizer.beta1` | `0.9` | Decay of the running mean of the gradients. *A number, at least"
    )
    (row,) = [row for row in pages["reference/plan/train.md"].splitlines() if row.startswith("| `train.schedule`")]
    assert "`constant`" in row and "*One of `constant`, `cosine`.*" in row


def test_every_command_technique_and_metric_is_on_its_page(pages: dict[str, str]) -> None:
    for name, command in COMMANDS.items():
        assert f"`tintype {name}`" in pages["reference/commands.md"]
        assert all(option in pages["reference/commands.md"] for one in command.params for option in one.opts)
    assert not [name for name in TECHNIQUES if f"\n## {name}\n" not in pages["reference/techniques.md"]]
    assert not [name for name in ON_FEATURES if f"### `{name}`" not in pages["reference/metrics.md"]]
    assert "https://arxiv.org/abs/2502.16982" in pages["reference/techniques.md"]


def test_labels_of_generated_pages_are_there_once(pages: dict[str, str]) -> None:
    text = "\n".join(pages.values())
    labels = re.findall(r"^\(([\w-]+)\)=$", text, re.MULTILINE)
    assert len(labels) == len(set(labels)) > 80
    assert set(re.findall(r"\]\(#([\w-]+)\)", text)) <= set(labels)


def test_every_file_of_a_run_and_a_study_is_on_the_page(tmp_path: Path) -> None:
    with written_runs(Drawer()):
        changes = ["seeds=[0,1]", "control_seeds=[]", "primary=[validation_loss]", "score_at=[0.5]"]
        run_study(load_study("pocket", changes), tmp_path, 1)
    train(plan_from_yaml(TINY, "tiny", ["train.steps=2"]), tmp_path / "runs" / "hash", Interrupt())
    found = [PurePosixPath(one.relative_to(tmp_path)) for one in tmp_path.rglob("*") if one.is_file()]
    assert len(found) > 20
    assert not [str(path) for path in found if not disk.is_known(path)]
    assert not disk.is_known(PurePosixPath("runs/hash/surprise.bin")) and not disk.is_known(PurePosixPath("surprise"))


@pytest.fixture
def small(tmp_path: Path) -> Path:
    """A repository with a page, a study and a file of code."""
    for name, text in {
        "docs/index.md": "# I\n\n```{toctree}\n:glob:\n\npage\nnone*\n```\n\n```{toctree}\n:glob:\n\nmissing/*\n```\n",
        "docs/page.md": "[s](../studies/1_a/README.md#head) [d](../studies/1_a/results.json) "
        "[r](../studies/1_a/report.md)\n"
        "[c](../tool/code.py) [w](https://x.org) [h](#here) `[code](../tool/code.py)` [n](none.md)\n",
        "docs/numbers.json": "{}",
        "studies/README.md": "# Studies\n",
        "studies/1_a/README.md": "# A\n\n## Head\n\n[page](../../docs/page.md) [all](../README.md)\n",
        "studies/1_a/results.json": "{}",
        "studies/1_a/report.html": "<p>report</p>",
        "studies/1_a/report.md": "report",
        "tool/code.py": "x = 1\n",
    }.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


def test_links_out_of_docs_lead_to_copies(small: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tools.site.stage.reference.pages", dict)
    monkeypatch.setattr("tools.site.stage.results.page", lambda root: ["# Results"])
    Stage(small, small / "out").write()
    page = (small / "out/source/page.md").read_text()
    assert "[s](results/1_a/index.md#head)" in page
    assert '<a href="results/1_a/results.json">d</a> <a href="results/1_a/report.html">r</a>' in page
    assert "[c](code/tool/code.py.md) [w](https://x.org) [h](#here) `[code](../tool/code.py)` [n](none.md)" in page
    assert "x = 1" in (small / "out/source/code/tool/code.py.md").read_text()
    assert (small / "out/files/results/1_a/results.json").is_file()
    assert "[page](../../page.md) [all](../studies.md)" in (small / "out/source/results/1_a/index.md").read_text()
    index = (small / "out/source/index.md").read_text()
    assert "none*" not in index and index.count("toctree") == 1


def test_code_is_left_as_it_is() -> None:
    text = "a `a` a\n```sh\na\n```\na `` a\n"
    assert outside_code(text, str.upper) == "A `a` A\n```sh\na\n```\nA `` A\n"


def test_the_check_finds_dead_links_and_what_is_loaded_from_elsewhere(tmp_path: Path) -> None:
    (tmp_path / "a.html").write_text(
        '<h1 id="top">A</h1><a href="b.html#x">b</a><a href="https://x.org">x</a><a href="#top">t</a>'
    )
    (tmp_path / "b.html").write_text('<p id="x">B</p><img src="a.html">')
    assert links.problems(tmp_path) == []
    (tmp_path / "b.html").write_text(
        '<a href="a.html#none">a</a><a href="c.html">c</a>'
        '<script src="https://cdn.org/x.js"></script><img src="no.png">'
    )
    (tmp_path / "c.css").write_text("@import url(//fonts.org/x.css);")
    assert links.problems(tmp_path) == [
        "a.html: the link b.html#x leads to no heading of its page",
        "b.html: loads https://cdn.org/x.js",
        "b.html: loads no.png, which is missing",
        "b.html: the link a.html#none leads to no heading of its page",
        "b.html: the link c.html leads nowhere",
        "c.css: loads from elsewhere",
    ]


def test_every_page_of_docs_is_in_the_navigation() -> None:
    index = (ROOT / "docs" / "index.md").read_text(encoding="utf-8")
    trees = re.findall(r"```\{toctree\}\n(.*?)```", index, re.DOTALL)
    patterns = [line for tree in trees for line in tree.splitlines() if line and not line.startswith(":")]
    pages = [path.relative_to(ROOT / "docs") for path in (ROOT / "docs").rglob("*.md")]
    names = [page.with_suffix("").as_posix() for page in pages if page.as_posix() != "index.md"]
    assert not [name for name in names if not any(fnmatchcase(name, pattern) for pattern in patterns)]


def headings_of(page: Path) -> set[str]:
    """Return the anchors that GitHub gives the headings of a page, and those that the page sets itself."""
    text = page.read_text(encoding="utf-8")
    headings = re.findall(r"^#+ (.+)$", re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL), re.MULTILINE)
    words = [re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).lower() for heading in headings]
    return {re.sub(r"[^\w\- ]", "", one).replace(" ", "-") for one in words} | set(re.findall(r'<a id="([^"]+)"', text))


def dead_links(page: Path, root: Path) -> list[str]:
    """Return the links and images of a page whose file or heading is not in the repository."""
    found: list[str] = []

    def check(text: str) -> str:
        for target in re.findall(r"\]\(([^)\s]+)\)", text):
            path, _, heading = unquote(target).partition("#")
            place = page.parent / path if path else page
            if "://" in target or target.startswith("mailto:"):
                continue
            there = place.exists() and place.resolve().is_relative_to(root.resolve())
            if not there or (heading and place.suffix == ".md" and heading not in headings_of(place)):
                found.append(f"{page.relative_to(root)}: {target}")
        return text

    outside_code(page.read_text(encoding="utf-8"), check)
    return found


def test_every_link_of_the_repositorys_pages_leads_to_a_file_and_heading_of_it() -> None:
    pages = [
        *ROOT.glob("*.md"),
        *(one for name in ("docs", "studies", "examples") for one in ROOT.glob(f"{name}/**/*.md")),
    ]
    assert len(pages) > 60
    assert not [link for page in pages for link in dead_links(page, ROOT)]


def test_a_dead_link_is_found(tmp_path: Path) -> None:
    (tmp_path / "there.md").write_text('# A `b`: c\n\n<a id="set"></a>\n\n```sh\n# no heading\n```\n')
    page = tmp_path / "page.md"
    page.write_text(
        "# Page\n[1](there.md#a-b-c) [2](there.md#set) [3](#page) [4](https://x.org/none) `[5](none.md)`\n"
        "![6](none.png) [7](there.md#no-heading) [8](#none) [9](..)\n"
    )
    dead = ["none.png", "there.md#no-heading", "#none", ".."]
    assert dead_links(page, tmp_path) == [f"page.md: {target}" for target in dead]


def test_the_readme_fits_on_two_screens() -> None:
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= 85


@pytest.mark.slow
def test_the_site_is_built_without_a_warning(tmp_path: Path) -> None:
    pytest.importorskip("furo", reason="the extra docs is not installed")
    built = subprocess.run(
        [sys.executable, "-m", "tools.site", "--out", str(tmp_path)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert built.returncode == 0, built.stdout + built.stderr
    assert (tmp_path / "html" / "index.html").is_file() and (tmp_path / PAGES / "reference").is_dir()
