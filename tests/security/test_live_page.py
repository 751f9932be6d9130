"""The live page answers its own pages and nobody else, serves nothing outside its folder, and shows text as text."""

from __future__ import annotations

import json
import os
import re
import shutil
import time
from collections.abc import Iterator
from http.client import HTTPException
from pathlib import Path

import pytest
from PIL import Image

from tests.fault.promises import Promise
from tests.live_server import Client, serving
from tests.unit.study.example_results import HOSTILE, draw_previews, hostile
from tintype.page.template import inline_script
from tintype.serve import links as links_module
from tintype.serve import server as server_module
from tintype.serve.guard import Guard, RefusedError, inside, is_local
from tintype.serve.links import Links
from tintype.serve.live import LiveStudy
from tintype.serve.playground import Job, Made, Request
from tintype.study.folder import stored_study
from tintype.study.lab import prepare_study
from tintype.study.picked import keep_image, read_picked
from tintype.study.report import write_report
from tintype.study.report.html import SCRIPTS
from tintype.study.runner import tasks_of
from tintype.study.study import load_study

SECRET = b"nobody may read this"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A served folder with a study of hostile names and captions, and secrets beside it."""
    outer = tmp_path_factory.mktemp("outer")
    root = outer / "served"
    study = root / "study"
    results = hostile()
    study.mkdir(parents=True)
    draw_previews(results, study)
    write_report(results, study)
    (study / "study.yaml").write_text("name: x\nquestion: '<script>alert(1)</script>'\n")
    (outer / "secret.png").write_bytes(SECRET)
    (outer / "served-too").mkdir()
    Image.new("RGB", (4, 4)).save(outer / "served-too" / "image.png")
    (root / "no-image.png").write_bytes(SECRET)
    (root / ".hidden").mkdir()
    Image.new("RGB", (4, 4)).save(root / ".hidden" / "image.png")
    (root / "link.png").symlink_to(outer / "served-too" / "image.png")
    (root / "linked").symlink_to(outer / "served-too", target_is_directory=True)
    (outer / "secret.yaml").write_bytes(SECRET)
    (root / "linked-plan").mkdir()
    (root / "linked-plan" / "plan.yaml").symlink_to(outer / "secret.yaml")
    return root


@pytest.fixture(scope="module")
def client(folder: Path) -> Iterator[Client]:
    with serving(folder) as found:
        yield found


@pytest.mark.parametrize(
    "target",
    [
        "/image/../secret.png",
        "/image/%2e%2e/secret.png",
        "/image/..%2fsecret.png",
        "/image/%2e%2e%2fserved-too%2fimage.png",
        "/image/study/../../served-too/image.png",
        "/image//etc/passwd",
        "/image/%00.png",
        "/image/%ff.png",
        "/image/..\\served-too\\image.png",
        "/image/link.png",
        "/image/linked/image.png",
        "/image/.hidden/image.png",
        "/image/no-image.png",
        "/image/study/results.json",
        "/image/study",
        "/report/../served-too",
        "/run/%2e%2e",
        "/run/linked-plan",
        "/events/run/linked-plan",
        "/study/..",
        "/events/study/..%2f",
        "/static/../server.py",
        "/static/..%2fserver.py",
        "/etc/passwd",
        "/image/" + "a/" * 3000,
        "/compare?run=study&run=..",
        "/compare?run=linked-plan&run=linked-plan2",
        "/compare?run=%2e%2e%2fserved-too&run=linked",
        "/events/compare?run=linked-plan&run=..",
    ],
)
def test_no_path_outside_the_folder_is_served(client: Client, target: str) -> None:
    answer = client.get(target)
    assert answer.status == 404
    assert SECRET not in answer.content and b"root:" not in answer.content


def test_an_image_inside_the_folder_is_served(client: Client, folder: Path) -> None:
    """Without this, the test above would show nothing."""
    name = next(folder.glob("study/**/*.png")).relative_to(folder).as_posix()
    answer = client.get(f"/image/{name}")
    assert answer.status == 200 and answer.headers["Content-Type"] == "image/png"
    assert inside(folder, name) == folder / name


@pytest.mark.parametrize("target", ["/", "/study/study", "/playground?prompt=%3Cscript%3Ealert(1)%3C/script%3E"])
def test_names_and_captions_are_text(client: Client, target: str) -> None:
    page = client.get(target)
    assert page.status == 200
    assert re.findall(r"<script[^>]*>", page.text) == ['<script src="/static/live.js" defer>']
    assert not re.search(r"<[a-z]+[^>]*\son[a-z]+=", page.text) and "<img src=x" not in page.text


def test_fragments_of_the_stream_have_hostile_names_as_text(client: Client) -> None:
    parts = dict(client.events("/events/study/study", 1))["fragments"]
    assert isinstance(parts, dict)
    whole = "".join(parts.values())
    assert "&lt;" in whole and "<script" not in whole and not re.search(r"<[a-z]+[^>]*\son[a-z]+=", whole)
    assert HOSTILE not in whole


def test_content_policy_lets_no_script_run_but_the_server_s_own(client: Client) -> None:
    policy = client.get("/").headers["Content-Security-Policy"]
    assert "default-src 'none'" in policy and "script-src 'self'" in policy and "unsafe" not in policy
    assert "frame-ancestors 'none'" in policy and "base-uri 'none'" in policy
    stored = client.get("/report/study").headers["Content-Security-Policy"]
    assert stored.startswith("sandbox allow-scripts; default-src 'none';") and "allow-same-origin" not in stored
    assert re.findall(r"script-src ([^;]*);", stored) == [inline_script(*SCRIPTS)[1]], "the report's own alone"
    assert client.get("/").headers["X-Content-Type-Options"] == "nosniff"


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
        {"Content-Type": "text/plain"},
        {"Content-Type": "application/x-www-form-urlencoded"},
        {"Host": "evil.example"},
    ],
    ids=str,
)
@pytest.mark.parametrize("target", ["/play", "/play/pick"])
def test_a_request_of_another_site_is_refused(client: Client, target: str, headers: dict[str, str]) -> None:
    answer = client.post(target, {}, **headers)
    assert answer.status in (403, 415)
    assert client.post(target, {}).status == 400  # its own page is answered: the request lacks a prompt or an image


@pytest.mark.parametrize("target", ["/play", "/play/pick"])
def test_a_request_without_an_origin_changes_nothing(client: Client, target: str) -> None:
    assert client.request("POST", target, b"{}", {"Content-Type": "application/json"}).status == 403


def test_an_image_is_picked_by_the_page_that_made_it_alone(tmp_path: Path) -> None:
    """Another client, a wrong number, and a job that is not done keep nothing; nor does a request name a path."""
    (tmp_path / "run").mkdir()
    with serving(tmp_path) as client:
        request = Request(client="the-page-that-made-it", prompt="x", run="run")
        job = Job("1", request, [], made=[Made(tmp_path / "run", b"png", {"prompt": "x"})])
        client.server.playground.jobs["1"] = job
        own = {"client": "the-page-that-made-it", "id": "1", "index": 0}
        assert client.post("/play/pick", own).status == 400, "it is not done"
        job.state = "done"
        for change in (
            {"client": "another"},
            {"index": 1},
            {"index": -1},
            {"index": "0"},
            {"index": True},
            {"id": "2"},
        ):
            assert client.post("/play/pick", own | change).status == 400
        assert client.post("/play/pick", own | {"folder": "/tmp"}).status == 400, "no run: a folder of diffusers"
        (tmp_path / "run" / "plan.yaml").write_text("")
        assert client.post("/play/pick", own).status == 200
        assert [path.parent for path in tmp_path.rglob("*.png")] == [tmp_path / "run" / "picked"]
        shutil.rmtree(tmp_path / "run" / "picked")
        (tmp_path / "run" / "picked").symlink_to(tmp_path.parent)
        assert client.post("/play/pick", own).status == 404, "it would be kept outside"


def test_picked_images_that_lead_out_of_the_folder_are_left_out(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    one = keep_image(tmp_path / "a", b"png", {"prompt": HOSTILE})
    assert [found.prompt for found in read_picked(tmp_path / "a")] == [HOSTILE]
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "picked").symlink_to(tmp_path / "a" / "picked")
    assert read_picked(tmp_path / "b") == []
    image = tmp_path / "a" / one.image
    image.rename(tmp_path / "outside.png")
    image.symlink_to(tmp_path / "outside.png")
    assert read_picked(tmp_path / "a") == []


def test_a_pipeline_whose_files_lead_out_of_the_folder_is_not_loaded(tmp_path: Path) -> None:
    pipeline = tmp_path / "root" / "pipeline"
    (pipeline / "transformer").mkdir(parents=True)
    (pipeline / "model_index.json").write_text("{}")
    (tmp_path / "weights").write_bytes(SECRET)
    asked = {"client": "a-client-of-tests", "prompt": "x", "run": "pipeline"}
    with serving(tmp_path / "root") as client:
        assert client.post("/play", asked).status == 200
        (pipeline / "transformer" / "config.json").symlink_to(tmp_path / "weights")
        assert client.post("/play", asked).status == 404


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A served folder with a study that has one run; a folder and a file with secrets lie beside it."""
    outer = tmp_path_factory.mktemp("linked")
    study = outer / "served" / "study"
    prepare_study(load_study("pocket", ["seeds=[0]", "control_seeds=[]"]), study)
    run = tasks_of(stored_study(study), study)[0].folder
    (run / "evaluation" / "one").mkdir(parents=True)
    (run / "checkpoints" / "one").mkdir(parents=True)
    run.rename(study / "runs" / "run")
    shutil.copytree(study, outer / "outside")
    for file in ("failed.txt", "metrics.jsonl", "plan.yaml", "evaluation/one/result.json"):
        (outer / "outside" / "runs" / "run" / file).write_bytes(SECRET)
    return outer


LINKED = ["runs", "runs/run", "runs/run/failed.txt", "runs/run/metrics.jsonl", "runs/run/evaluation"]
LINKED += ["runs/run/evaluation/one", "runs/run/evaluation/one/result.json", "leases", "commands.jsonl", "study.yaml"]


@pytest.mark.parametrize("name", LINKED)
def test_a_study_with_a_link_that_leads_out_is_not_found(prepared: Path, tmp_path: Path, name: str) -> None:
    """It leads there by a second link, which is inside."""
    root = tmp_path / "served"
    shutil.copytree(prepared / "served", root)
    (root / "study" / "runs" / "run" / "plan.yaml").write_text("seed: 0\n")
    with serving(root) as client:
        assert client.get("/study/study").status == 200
        place = root / "study" / name
        is_folder = place.is_dir()
        if place.exists():
            place.rename(root / "moved")
        else:
            (root / "moved").write_text("")
        place.symlink_to(root / "moved", target_is_directory=is_folder)
        assert client.get("/study/study").status == 200, "a link that stays inside is followed"
        assert "study/runs/run" in client.get("/playground").text
        (root / "moved").rename(root / "moved-again")
        (root / "moved").symlink_to(prepared / "outside" / name)
        for target in ("/study/study", "/events/study/study", "/report/study"):
            answer = client.get(target)
            assert answer.status == 404 and SECRET not in answer.content
        if name.startswith("runs"):
            assert "study/runs/run" not in client.get("/playground").text
        if name.startswith("runs/run/"):
            assert client.get("/run/study/runs/run").status == 404
        place.unlink()
        (root / "moved-again").rename(place)
        assert client.get("/study/study").status == 200


def test_a_page_that_is_open_follows_no_link_that_is_made_later(prepared: Path, tmp_path: Path) -> None:
    root = tmp_path / "served"
    shutil.copytree(prepared / "served", root)
    name = tasks_of(stored_study(root / "study"), root / "study")[0].folder.name
    (root / "study" / "runs" / "run").rename(root / "study" / "runs" / name)
    live = LiveStudy(root / "study", "study", Links(root))
    live.step()
    assert not live.problem and "waiting" in live.fragments["queue"]
    (root / "study" / "runs" / name / "failed.txt").symlink_to(prepared / "outside" / "runs" / "run" / "failed.txt")
    live.step()
    assert "a link to a place outside" in live.problem and SECRET.decode() not in str(live.fragments)


def test_a_folder_is_listed_once_until_it_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Hundreds of runs would make a page slow otherwise. Weights may lie on another disk: no page reads them."""
    monkeypatch.setattr(links_module, "_SETTLED_NS", -1)
    root, listed, scandir = tmp_path / "root", list[str](), os.scandir
    (root / "run").mkdir(parents=True)
    (root / "run" / "checkpoints").symlink_to(tmp_path)

    def noted(place: str) -> object:
        if place.startswith(str(root)):  # pages of other tests may still be read
            listed.append(place)
        return scandir(place)

    monkeypatch.setattr(os, "scandir", noted)
    links = Links(root)
    assert links.stay_inside(root) and links.stay_inside(root)
    assert listed == [str(root), str(root / "run")]
    time.sleep(0.02)  # the clock of the file system is coarse
    (root / "run" / "back").symlink_to(root)
    assert links.stay_inside(root) and listed[2:] == [str(root / "run")]


def test_links_in_the_places_that_links_lead_to_are_found_too(tmp_path: Path) -> None:
    root = tmp_path / "root"
    (root / "study").mkdir(parents=True)
    (root / "other" / "run").mkdir(parents=True)
    (root / "study" / "runs").symlink_to(root / "other")
    assert Links(root).stay_inside(root / "study")
    (root / "other" / "run" / "failed.txt").symlink_to(tmp_path / "secret.txt")
    assert not Links(root).stay_inside(root / "study")


def test_the_list_of_studies_reads_no_file_outside(tmp_path: Path) -> None:
    (tmp_path / "outside.yaml").write_text("name: x\nquestion: nobody may read this\n")
    (tmp_path / "root" / "study").mkdir(parents=True)
    (tmp_path / "root" / "study" / "study.yaml").symlink_to(tmp_path / "outside.yaml")
    with serving(tmp_path / "root") as client:
        assert SECRET not in client.get("/").content


def test_another_site_cannot_embed_what_is_served(client: Client) -> None:
    embedded = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "no-cors", "Sec-Fetch-Dest": "image"}
    assert client.request("GET", "/study/study", None, embedded).status == 403
    framed = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "iframe"}
    assert client.request("GET", "/study/study", None, framed).status == 403
    link = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "document"}
    assert client.request("GET", "/study/study", None, link).status == 200


@pytest.mark.parametrize("host", ["evil.example", "evil.example:{port}", "127.0.0.1", "127.0.0.1:1", "", "[", "a:b:c"])
def test_a_foreign_name_of_this_machine_is_refused(client: Client, host: str) -> None:
    assert client.get("/", Host=host.format(port=client.port)).status == 403
    assert client.get("/", Host=f"localhost:{client.port}").status == 200


def test_methods_that_are_not_offered_are_refused(client: Client) -> None:
    for method in ("PUT", "DELETE", "OPTIONS", "TRACE"):
        assert client.request(method, "/", None, {}).status == 501


@pytest.mark.promise(27)
def test_deep_json_is_refused(promise: Promise, client: Client) -> None:
    """Post JSON that is nested 10 to 8,000 deep, whole and cut, as the request and as each of its values."""
    ask_deep(promise, client)


@pytest.mark.promise(27, control="JSON is read without a limit on its depth")
def test_control_deep_json_gets_no_answer(
    promise: Promise, client: Client, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(server_module, "parse_object", json.loads)
    ask_deep(promise, client)
    assert "RecursionError" in capsys.readouterr().err


def ask_deep(promise: Promise, client: Client) -> None:
    headers = {"Origin": client.base, "Content-Type": "application/json", "Sec-Fetch-Site": "same-origin"}
    for depth in (10, 300, *range(900, 1000, 10), 2000, 8000):
        for text in ("[" * depth, "[" * depth + "]" * depth, '{"client":' + "[" * depth + "]" * depth + "}"):
            for target in ("/play", "/play/pick", "/play/stop"):
                status: int | str
                try:
                    status = client.request("POST", target, text.encode(), headers).status
                except (OSError, HTTPException) as error:
                    status = type(error).__name__
                promise.count(
                    status in (400, 413) or (target == "/play/stop" and status == 200),
                    f"{target}, depth {depth}: {status}",
                )


def test_a_long_request_is_refused(client: Client) -> None:
    assert client.post("/play", {"prompt": "a" * 20_000}).status == 413


def test_a_token_is_asked_for_on_every_page(folder: Path) -> None:
    with serving(folder, token=True) as client:
        token = client.server.guard.token
        assert token and len(token) >= 32 and f"token={token}" in client.server.url
        for target in ("/", "/study/study", "/static/live.js", "/events/study/study", "/?token=wrong", "/?token="):
            refused = client.get(target)
            assert refused.status == 401 and token not in refused.text
        assert client.post("/play", {}).status == 401 and client.post("/play/pick", {}).status == 401
        first = client.get(f"/study/study?token={token}&a=b")
        assert first.status == 303 and first.headers["Location"] == "/study/study?a=b"
        cookie = first.headers["Set-Cookie"]
        assert "HttpOnly" in cookie and "SameSite=Strict" in cookie
        assert client.get("/", Cookie=cookie.partition(";")[0]).status == 200
        assert client.get("/", Authorization=f"Bearer {token}").status == 200
        assert client.get("/", Cookie=f"{client.server.guard.cookie}=wrong").status == 401


def test_another_address_than_this_machine_s_own_needs_a_token(folder: Path) -> None:
    with serving(folder, "0.0.0.0") as client:
        assert client.server.guard.token is not None
        assert client.get("/").status == 401
    assert is_local("127.0.0.1") and is_local("::1") and is_local("localhost")
    assert not any(map(is_local, ["0.0.0.0", "::", "192.168.1.2", "", "example.org", "localhost.evil.example"]))


def test_a_redirect_never_leaves_the_server(folder: Path) -> None:
    with serving(folder, token=True) as client:
        answer = client.get(f"//evil.example/?token={client.server.guard.token}")
        assert answer.status == 404 or not answer.headers["Location"].startswith("//")


def test_the_token_is_not_in_words_about_the_guard() -> None:
    assert "secret" not in repr(Guard("127.0.0.1", 1, "secret"))
    with pytest.raises(RefusedError, match="token"):
        Guard("127.0.0.1", 1, "secret").check("GET", "/", {"Host": "127.0.0.1:1"})
