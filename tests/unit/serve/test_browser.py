"""The live page in a real browser, at the width of a phone and of a wide screen.

Skips where playwright or Chromium is not installed: `pip install playwright`, and the system's Chromium.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from tests.live_server import Client, serving
from tests.tiny import tiny_plan
from tests.unit.study.example_results import draw_previews, hostile
from tests.unit.study.frozen_page import frozen
from tests.written_runs import Drawer, written_runs
from tintype.runtime.files import append_line
from tintype.runtime.interrupt import Interrupt
from tintype.serve import server as server_module
from tintype.study.folder import stored_study
from tintype.study.lab import prepare_study, run_study
from tintype.study.report import write_report
from tintype.study.runner import tasks_of
from tintype.study.study import load_study
from tintype.train.loop import train

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
WIDTHS = (400, 1400)


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a run, a study that has begun, and one of hostile names and captions that is done."""
    root = tmp_path_factory.mktemp("root")
    train(tiny_plan("train.steps=2"), root / "run", Interrupt())
    train(tiny_plan("train.steps=2", "optimizer.lr=0.0007"), root / "second", Interrupt())
    prepare_study(load_study("pocket", ["seeds=[0,1]", "control_seeds=[]"]), root / "begun")
    for task in tasks_of(stored_study(root / "begun"), root / "begun"):
        task.folder.mkdir(parents=True)
        for step in range(1, 40):
            line = {"step": step, "flow": 1 / step, "grad_norm": 0.1 * task.plan.seed + 1, "seconds": 0.5}
            append_line(task.folder / "metrics.jsonl", line | {"loss": 1 / step})
        append_line(task.folder / "metrics.jsonl", {"step": 40, "validation_loss": 0.5, "seconds": 0.0})
        append_line(task.folder / "events.jsonl", {"event": "loss_spike", "step": 7, "time": 1.0})
    with written_runs(Drawer()):
        changes = ["seeds=[0,1]", "control_seeds=[]", "primary=[validation_loss]", "score_at=[0.5]"]
        run_study(load_study("pocket", changes), root / "drawn", 1)
    results = hostile()
    draw_previews(results, root / "done")
    write_report(results, root / "done")
    (root / "frozen").mkdir()
    write_report(frozen(root / "frozen"), root / "frozen")
    (root / "frozen" / "study.yaml").write_text("name: frozen\n")
    (root / "done" / "study.yaml").write_text("name: done\nquestion: <b>Is it safe?</b>\n")
    return root


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    found = pytest.importorskip("playwright.sync_api", reason="playwright is not installed", exc_type=ImportError)
    if CHROMIUM is None:
        pytest.skip("no Chromium is installed")
    with found.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture(params=WIDTHS)
def page(browser: Any, root: Path, request: pytest.FixtureRequest) -> Iterator[Any]:
    """A page at one width that fails the test on any error of its script or its content policy."""
    with serving(root) as client:
        page = browser.new_page(viewport={"width": request.param, "height": 900}, base_url=client.base)
        problems: list[str] = []
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.on("console", lambda message: problems.append(message.text) if message.type == "error" else None)
        page.on("dialog", lambda dialog: problems.append(f"a script ran: {dialog.message}"))
        page.client = Client(client.server)
        yield page
        page.close()
        assert problems == []


def fits(page: Any) -> bool:
    """Return whether nothing reaches beyond the width of the screen."""
    return bool(page.evaluate("document.documentElement.scrollWidth <= innerWidth"))


def test_the_first_page_follows_studies_and_runs(page: Any, root: Path) -> None:
    page.goto("/")
    page.get_by_role("link", name="run", exact=True).wait_for()
    page.locator(".card .quiet", has_text="Reading").first.wait_for(state="detached")
    assert page.locator(".card").count() == 4 and str(root) == page.locator(".kicker").inner_text()
    begun, drawn = (page.locator(".card", has=page.locator(f"[href='/study/{name}']")) for name in ("begun", "drawn"))
    assert "0 of 6 runs done, no worker is running" in begun.inner_text() and begun.locator("progress").count() == 1
    assert "6 of 6 runs done" in drawn.inner_text() and drawn.locator(".chip").count() > 0
    image = drawn.locator("img")
    image.scroll_into_view_if_needed()
    assert image.evaluate("image => image.decode().then(() => image.naturalWidth)") > 0
    drawn.get_by_role("link").first.focus()
    task = tasks_of(stored_study(root / "begun"), root / "begun")[0]
    image.evaluate("image => { window.before = image }")
    (task.folder / f"{page.viewport_size['width']}.txt").touch()
    begun.get_by_text("active just now").wait_for(timeout=8000)
    assert image.evaluate("image => image === window.before"), "an image that is still there is not loaded again"
    assert fits(page)


LOOKS = ({"color_scheme": "light"}, {"color_scheme": "dark"}, {"media": "print", "color_scheme": "dark"})
_CONTRAST = """() => {
  const linear = (c) => (c <= 0.03928 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4);
  const light = (colour) => {
    const [r, g, b] = colour.match(/[\\d.]+/g).map((one) => linear(one / 255));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const behind = (one) => {
    const own = getComputedStyle(one).backgroundColor;
    if (own !== "rgba(0, 0, 0, 0)") return own;
    return one.parentElement ? behind(one.parentElement) : "rgb(255, 255, 255)";
  };
  const ratio = (one) => {
    const [a, b] = [light(getComputedStyle(one).color), light(behind(one))].sort((x, y) => y - x);
    return (a + 0.05) / (b + 0.05);
  };
  const texts = "h1, h2, h3, p, li, td, th, dt, dd, label, button, select, code, summary, .chip, .minor";
  return [...document.querySelectorAll(texts)].filter((one) => one.offsetParent && !one.disabled && ratio(one) < 4.4)
    .map((one) => `${ratio(one)} ${one.outerHTML.slice(0, 80)}`);
}"""
"""Elements whose text has too little contrast to be read (WCAG asks for 4.5; washes are rounded)."""


@pytest.mark.parametrize("look", LOOKS, ids=["light", "dark", "print"])
def test_pages_can_be_read_and_fit(page: Any, root: Path, look: dict[str, str]) -> None:
    runs = "&".join(
        f"run=drawn/runs/{task.folder.name}" for task in tasks_of(stored_study(root / "drawn"), root / "drawn")[:2]
    )
    page.emulate_media(**look)
    for address in ("/", "/study/begun", "/study/done", "/study/drawn", "/run/run", f"/compare?{runs}", "/playground"):
        page.goto(address)
        page.locator("#connection", has_text="this page follows" if "play" not in address else "connected").wait_for()
        page.locator("[data-fragment] > .quiet", has_text="Reading").first.wait_for(state="detached")
        assert fits(page) or (look.get("media") == "print" and page.viewport_size["width"] == 400), address
        assert page.evaluate(_CONTRAST) == [], address


def test_curves_are_drawn_followed_and_read(page: Any, root: Path) -> None:
    page.goto("/study/begun")
    page.wait_for_selector("#charts svg .curve", state="attached")
    names = ["Loss of the objective", "Validation loss", "Grad norm"]  # no loss: it is the objective's
    assert page.locator("#charts figcaption").all_inner_texts() == names and page.locator("#charts .event").count() > 0
    assert page.locator("#charts figure").nth(1).locator("circle").count() == 3, "one point is a dot"
    assert page.locator("#charts figure").first.locator("circle").count() == 0
    assert page.locator("#connection").inner_text() == "live: this page follows the files"
    chart = page.locator("#charts svg").first
    before = chart.locator("polyline").first.get_attribute("points")
    page.locator("[name=logy]").check()
    assert chart.locator("polyline").first.get_attribute("points") != before
    page.locator("[name=axis]").select_option("1")
    assert "seconds" in chart.locator("title").first.text_content()
    chart.focus()
    page.keyboard.press("ArrowRight")
    assert "second" in page.locator("#charts .values").first.inner_text()
    page.locator("#legend input").first.uncheck()
    assert chart.locator(".curve").count() == 2
    task = tasks_of(stored_study(root / "begun"), root / "begun")[1]
    width = page.viewport_size["width"]
    append_line(
        task.folder / "metrics.jsonl",
        {"step": 41 + width, "flow": 5000.0 + width, "loss": 5000.0 + width, "seconds": 0.5},
    )
    page.locator("[name=axis]").select_option("0")
    chart.focus()
    page.keyboard.press("Escape")  # from here on, the newest values are shown
    page.locator("#charts .values b", has_text=f"{5000 + width:,}").first.wait_for(timeout=8000)
    assert fits(page)


def test_curves_are_drawn_over_operations(page: Any) -> None:
    page.goto("/study/begun")
    page.wait_for_selector("#charts svg .curve", state="attached")
    page.locator("[name=axis]").select_option(label="FLOPs")
    chart = page.locator("#charts svg").first
    page.locator("#charts figure").first.locator(".curve").nth(2).wait_for(state="attached", timeout=20_000)
    assert "over FLOPs" in chart.locator("title").first.text_content()
    assert "tintype plan cost" in page.locator("#uncounted").inner_text()
    chart.focus()
    page.keyboard.press("ArrowRight")
    assert "FLOP" in page.locator("#charts .values").first.inner_text()
    page.locator("[name=axis]").select_option(label="steps")
    assert page.locator("#uncounted").is_hidden() and fits(page)


def test_runs_are_compared_side_by_side(page: Any) -> None:
    page.goto("/compare")
    for index, name in enumerate(("run", "second")):
        page.locator(".play select").nth(index).select_option(label=name)
    page.get_by_role("button", name="Compare").click()
    page.wait_for_selector("#charts svg .curve", state="attached")
    assert page.locator("#charts figure").first.locator(".curve").count() == 2
    assert "optimizer.lr" in page.locator("#differences").inner_text()
    assert page.locator(".play select").count() == 3, "a third one can be added"
    page.locator("[name=axis]").select_option(label="FLOPs")
    page.locator("#charts figure").first.locator(".curve").nth(1).wait_for(state="attached", timeout=20_000)
    assert "No two of these runs have images" in page.locator("#images").inner_text()
    page.get_by_role("link", name="The playground").click()
    page.wait_for_url("**/playground?run=run&beside=second")
    assert page.locator("[name=beside]").input_value() == "second"
    assert fits(page)


def test_images_of_compared_runs_have_a_slider_and_a_wipe(page: Any, root: Path) -> None:
    first, second, *_ = tasks_of(stored_study(root / "drawn"), root / "drawn")
    page.goto(f"/compare?run=drawn/runs/{first.folder.name}&run=drawn/runs/{second.folder.name}")
    page.wait_for_selector("#images .image")
    page.locator("#images .step").focus()
    page.keyboard.press("ArrowLeft")
    assert page.locator("#images output").inner_text() == "300"
    page.get_by_role("button", name="Compare", exact=True).last.click()
    left, right = (page.locator(f"#wipe-{end}").get_attribute("src") for end in "ab")
    assert first.folder.name in left and second.folder.name in right and "000300" in left
    assert page.locator("#wipe-a").evaluate("image => image.decode().then(() => image.naturalWidth)") > 0
    page.locator("#wipe-at").focus()
    page.keyboard.press("ArrowRight")
    assert "51%" in page.locator("#wipe-b").evaluate("image => image.style.clipPath")
    page.keyboard.press("Escape")
    assert fits(page)


def test_hostile_text_is_shown_as_text_and_images_open(page: Any) -> None:
    page.goto("/study/done")
    assert page.locator("h1").inner_text() == "<b>Is it safe?</b>"
    page.wait_for_selector("#images .image")
    page.locator("#images .image").nth(1).click()
    assert page.locator("#zoom").is_visible()
    assert page.locator("#zoom-image").evaluate("image => image.decode().then(() => image.naturalWidth)") > 0
    page.keyboard.press("Escape")
    assert not page.locator("#zoom").is_visible()
    page.locator(".wipe-open").click()
    edge = page.locator("#wipe-b").evaluate("image => image.style.clipPath")
    page.locator("#wipe-at").focus()
    page.keyboard.press("ArrowRight")
    assert page.locator("#wipe-b").evaluate("image => image.style.clipPath") != edge
    page.keyboard.press("Escape")
    assert fits(page)


def test_one_slider_moves_all_images_through_training(page: Any) -> None:
    page.goto("/study/drawn")
    page.wait_for_selector("#images .image")
    sources = "all => all.map((one) => one.getAttribute('src'))"
    assert all("000600" in one for one in page.locator("#images .image img").evaluate_all(sources)[:3])
    page.locator("#images .step").focus()
    page.keyboard.press("ArrowLeft")
    assert page.locator("#images output").inner_text() == "300"
    assert all(
        "000300" in one for one in page.locator("#images tbody tr").first.locator("img").evaluate_all(sources)[:3]
    )
    assert page.locator("#verdicts .chip").count() > 0


def test_a_finished_study_begins_with_its_verdicts_however_late_it_is_read(
    page: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The page of a study of hundreds of runs is answered before the files are read."""
    monkeypatch.setattr(server_module, "_FIRST_PAINT_S", 0.0)
    page.goto("/study/drawn")
    page.wait_for_selector("#queue [data-over]", state="attached")
    headings = page.locator("#main h2").all_inner_texts()
    assert headings[:3] == ["Verdicts", "Runs", "Curves"]
    assert [one.strip() for one in page.locator("nav a").all_inner_texts()[:3]] == ["tintype", "Verdicts", "Runs"]


def test_the_words_that_an_image_got_wrong_are_marked(page: Any) -> None:
    page.goto("/study/drawn")
    page.wait_for_selector("#images .image")
    cells = page.locator("#images tbody td")
    wrong = cells.first.locator("mark.wrong")
    assert wrong.count() == 1 and wrong.get_attribute("title") == "drawn red, asked blue"
    assert "(drawn red, asked blue)" in wrong.text_content()  # for screen readers
    assert "underline" in wrong.evaluate("one => getComputedStyle(one).textDecorationLine")
    assert "✓ as asked" in page.locator("#images tbody tr").nth(1).locator("td").first.inner_text()
    cells.first.locator(".image").click()
    assert page.locator("#zoom-title mark").count() == 1
    assert "drawn red, asked blue" in page.locator("#zoom-wrong").inner_text()
    page.keyboard.press("Escape")
    page.locator("#images .step").focus()
    page.keyboard.press("ArrowLeft")
    assert wrong.first.get_attribute("title") == "not drawn"
    assert "and 2 more" in cells.first.inner_text()
    assert fits(page)


def test_a_stored_report_opens_from_the_page_of_its_study(page: Any) -> None:
    page.goto("/study/done")
    page.get_by_role("link", name="Report").click()
    page.wait_for_url("**/report/done")
    assert page.locator("#answer").count() == 1


@pytest.mark.parametrize("through", ["file", "server"])
def test_the_report_is_the_frozen_page(page: Any, root: Path, through: str) -> None:
    """Its script runs from the file and through the server, whose policy lets that one alone run."""
    page.goto(f"file://{root}/frozen/report.html" if through == "file" else "/report/frozen")
    assert page.locator(".in-words li").count() == 2 and page.locator("header .chart").count() == 1
    slider = page.locator(".steps input").first
    assert slider.is_visible()
    image = page.locator(".ranking img[data-at]").first
    before = image.get_attribute("src")
    slider.focus()
    page.keyboard.press("ArrowLeft")
    assert page.locator(".steps output").first.inner_text() == "1,125"
    assert image.get_attribute("src") != before and image.get_attribute("src").startswith("data:image/webp")
    sample = page.locator(".sample").first
    assert sample.locator(".read mark").first.get_attribute("title") == "not drawn"
    assert "and 2 more" in sample.locator(".read").inner_text()
    page.keyboard.press("ArrowRight")
    assert image.get_attribute("src") == before
    assert sample.locator(".read mark").first.get_attribute("title") == "drawn red, asked blue"
    sample.locator("img").evaluate(
        "i => { const {1125: _, ...at} = JSON.parse(i.dataset.at); i.dataset.at = JSON.stringify(at) }"
    )
    slider.focus()
    page.keyboard.press("ArrowLeft")
    words = sample.locator(".read mark").first.get_attribute("title")
    assert words == "drawn red, asked blue", "the last image is shown, so its words are"
    chart = page.locator("#along svg").first
    chart.scroll_into_view_if_needed()
    chart.focus()
    page.keyboard.press("ArrowRight")
    values = page.locator("#along .values").first
    assert values.inner_text().startswith("steps 375") and "short_captions" in values.inner_text()
    box = chart.bounding_box()
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    assert "steps 375" not in values.inner_text() and values.locator("b").count() == 4
    assert page.get_by_role("link", name="Picked by hand").count() == 1
    assert fits(page)


def test_the_report_is_read_without_a_script(browser: Any, root: Path) -> None:
    page = browser.new_page(java_script_enabled=False)
    page.goto(f"file://{root}/frozen/report.html")
    assert not page.locator(".steps").first.is_visible(), "no control that does nothing"
    assert page.locator(".in-words").first.is_visible() and page.locator(".ranking img").first.is_visible()
    page.locator(".ranking summary").first.click()
    assert page.locator(".ranking summary .prompt mark").first.is_visible()
    page.close()


def test_an_image_is_made_in_the_playground(page: Any) -> None:
    page.goto("/playground?prompt=a+red+ball&steps=4")
    page.get_by_role("button", name="Generate").click()
    page.wait_for_selector("#gallery figure img", timeout=20_000)
    assert page.locator("#play-state").inner_text() == "done"
    link = page.locator("#gallery a").first.get_attribute("href")
    assert "prompt=a+red+ball" in link and "steps=4" in link
    assert fits(page)


def test_weights_are_chosen_and_an_image_is_sent_to_the_report(page: Any, root: Path) -> None:
    page.goto("/playground?prompt=a+red+ball&steps=2&run=run")
    assert page.locator("[name=ema]").is_disabled()
    page.locator("[name=weights]").select_option("length")
    assert page.locator("[name=ema]").is_enabled()
    page.get_by_role("button", name="Generate").click()
    page.locator("#play-problem", has_text="no snapshots of weight averages").wait_for(timeout=20_000)
    page.locator("[name=weights]").select_option("raw")
    page.locator("[name=seed]").fill(str(page.viewport_size["width"]))
    page.get_by_role("button", name="Generate").click()
    page.wait_for_selector("#gallery figure img", timeout=20_000)
    assert "weights=raw" in page.locator("#gallery a").first.get_attribute("href")
    page.get_by_role("button", name="send to report").click()
    page.locator("#gallery figcaption", has_text="kept beside its run").wait_for(timeout=8000)
    assert fits(page)
    page.goto("/run/run")
    picked = page.locator("#picked figure", has_text=f"seed {page.viewport_size['width']}")
    assert "raw weights" in picked.inner_text()
    picked.locator(".image").click()
    assert page.locator("#zoom-title").inner_text() == "Picked by hand: a red ball"
    page.keyboard.press("Escape")
    assert fits(page)


def test_every_control_has_a_name(page: Any) -> None:
    for address in ("/", "/study/begun", "/study/done", "/run/run", "/playground", "/compare?run=run&run=second"):
        page.goto(address)
        page.wait_for_load_state("domcontentloaded")
        nameless = page.evaluate(
            """[...document.querySelectorAll("button, input, select, a[href], img, progress")].filter((one) =>
              !one.closest("[aria-hidden=true]") && !one.closest("dialog") && !one.labels?.length
              && !(one.getAttribute("aria-label") || one.getAttribute("alt") || one.textContent.trim()
              || one.querySelector("img[alt]"))).map((one) => one.outerHTML)"""
        )
        assert nameless == []
        levels = page.evaluate("[...document.querySelectorAll('h1, h2, h3, h4')].map((one) => +one.tagName[1])")
        assert levels[0] == 1 and all(after - before <= 1 for before, after in pairwise(levels))
