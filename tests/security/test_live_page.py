"""The live page answers its own pages and nobody else, serves nothing outside its folder, and shows text as text."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from PIL import Image

from tests.live_server import Client, serving
from tests.unit.study.example_results import HOSTILE, draw_previews, hostile
from tintype.page.template import inline_script
from tintype.serve.guard import Guard, RefusedError, inside, is_local
from tintype.serve.playground import Job, Made, Request
from tintype.study.picked import keep_image, read_picked
from tintype.study.report import write_report
from tintype.study.report.html import SCRIPTS

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
