"""A server that misbehaves: nothing is lost, nothing hangs, and the key goes nowhere else."""

from __future__ import annotations

import io
import time
from collections.abc import Iterator
from dataclasses import replace
from email.utils import formatdate
from typing import Any

import pytest
from PIL import Image

from tests.caption_server import (
    CaptionServer,
    Deed,
    bad_json,
    caption_server,
    cut,
    drip,
    endless,
    hang_up,
    slow,
    status,
)
from tests.tiny_store import image_file
from tintype.data.image_file import Encoded
from tintype.data.recaption import server as server_module
from tintype.data.recaption.asking import Asking, Question, Reply
from tintype.data.recaption.server import Patience, Place, Server, data_url, read_answer, read_key, read_place
from tintype.errors import UserError
from tintype.runtime.interrupt import Interrupt

FAST = Patience(timeout_s=30.0, tries=3, first_wait_s=0.001)
HASTY = replace(FAST, timeout_s=0.3)
"""For a server that is too slow: the answers that it does give must come in this time too."""
SLOW = slow(1.0)
TOO_SLOW = (SLOW, drip)
QUESTION = Question("0" * 64, Encoded("a", image_file(0)))
KEY = "sk-very-secret"


@pytest.fixture
def server() -> Iterator[CaptionServer]:
    with caption_server() as started:
        yield started


def to(server: CaptionServer, **changes: Any) -> Server:
    return replace(Server(read_place(server.url), "m", Asking("Describe it.", 50), 2, FAST), **changes)


def ask(client: Server, questions: int = 1) -> list[Reply]:
    left = [QUESTION] * questions
    return list(client.replies(lambda: left.pop() if left else None, Interrupt()))


def test_the_question_has_the_image_the_prompt_and_the_settings(server: CaptionServer) -> None:
    (reply,) = ask(to(server))
    assert reply.text is not None and reply.text.startswith("A picture")
    assert (reply.input_tokens, reply.output_tokens, reply.cut_off) == (100, 10, False)
    (body,) = server.asked
    assert body["model"] == "m" and body["max_tokens"] == 50 and body["temperature"] == 0.0 and body["seed"] == 0
    image, text = body["messages"][0]["content"]
    assert text == {"type": "text", "text": "Describe it."}
    assert image["image_url"]["url"] == data_url(QUESTION.image)
    assert "Authorization" not in server.headers[0]


@pytest.mark.parametrize(
    "deed",
    [SLOW, drip, status(500), status(502), status(408), status(429), status(503), hang_up, cut, bad_json, endless],
    ids=["slow", "drip", "500", "502", "408", "429", "503", "hang up", "cut", "bad json", "endless"],
)
def test_what_may_pass_is_asked_again(server: CaptionServer, deed: Deed) -> None:
    server.script = [deed, deed]
    began = time.monotonic()
    (reply,) = ask(to(server, patience=HASTY if deed in TOO_SLOW else FAST))
    assert reply.failure is None and reply.text is not None and len(server.asked) == 3
    assert time.monotonic() - began < FAST.timeout_s, "no try waited until it was given up"


@pytest.mark.parametrize(
    ("deed", "reason"),
    [
        (SLOW, "no complete answer within 0.3 s"),
        (drip, "no complete answer within 0.3 s"),
        (status(500, "out of memory"), "status 500: out of memory"),
        (hang_up, "the connection was cut before an answer"),
        (bad_json, "not a chat completion in JSON"),
        (endless, "more than 4 MiB"),
    ],
)
def test_what_does_not_pass_is_reported(server: CaptionServer, deed: Deed, reason: str) -> None:
    server.always = deed
    (reply,) = ask(to(server, patience=HASTY if deed in TOO_SLOW else FAST))
    assert reply.failure is not None and "failed 3 times" in reply.failure and reason in reply.failure
    assert len(server.asked) == 3


@pytest.mark.parametrize("number", [400, 401, 403, 404, 413, 422])
def test_what_is_refused_is_not_asked_again(server: CaptionServer, number: int) -> None:
    server.always = status(number, "The model `m` does not exist.\x1b[2J")
    with pytest.raises(UserError, match=rf"status {number}\): The model `m` does not exist. \[2J"):
        ask(to(server))
    assert len(server.asked) == 1


def test_a_busy_server_is_left_alone_as_long_as_it_asks_by_all_threads(server: CaptionServer) -> None:
    server.script = [status(429, Retry_After="0.5")]
    assert all(reply.failure is None for reply in ask(to(server), 20))
    first, *later = server.times_s
    assert len(later) == 20 and sum(moment - first < 0.5 for moment in later) <= 10  # what was on its way by then


def test_a_wait_may_be_given_as_a_date() -> None:
    date = formatdate(time.time() + 20, usegmt=True)
    wait_s = server_module._asked_wait_s(date, "there")
    assert wait_s is not None and 18 <= wait_s <= 20


def test_waiting_as_asked_is_no_failure(server: CaptionServer) -> None:
    server.script = [status(429, Retry_After="0")] * 8
    (reply,) = ask(to(server))
    assert reply.failure is None and len(server.asked) == 9 > FAST.tries


def test_a_server_that_stays_busy_stops_the_work(server: CaptionServer) -> None:
    server.always = status(429, "slow down")
    with pytest.raises(UserError, match=r"too busy.*slow down.*--concurrency"):
        ask(to(server))
    server.always = status(429, Retry_After="3600")
    with pytest.raises(UserError, match="3600 s; wait that long, then run the same command"):
        ask(to(server))


@pytest.mark.parametrize("said", ["nan", "soon", "-1", "1e-3"])
def test_any_words_in_retry_after_are_borne(server: CaptionServer, said: str) -> None:
    server.script = [status(429, Retry_After=said)]
    try:
        (reply,) = ask(to(server))
        assert reply.failure is None
    except UserError as error:
        assert said == "nan" and "run the same command" in str(error)


def test_waits_double_and_are_shortened_at_random() -> None:
    patience = Patience(first_wait_s=1.0, most_wait_s=60.0)
    for failures, most in ((1, 1.0), (2, 2.0), (4, 8.0), (12, 60.0)):
        waits = [patience.wait_s(failures) for _ in range(50)]
        assert most / 2 <= min(waits) < max(waits) <= most and len(set(waits)) > 40


@pytest.mark.parametrize("number", [301, 302, 307, 308])
def test_a_redirection_is_not_followed_and_the_key_stays(server: CaptionServer, number: int) -> None:
    with caption_server() as other:
        server.always = status(number, Location=f"{other.url}/v1/chat/completions")
        with pytest.raises(UserError, match=f"redirects to {other.url}/v1/chat/completions"):
            ask(to(server, key=KEY))
        assert not other.asked and not other.headers


def test_the_key_is_sent_and_shown_nowhere(
    server: CaptionServer, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("MY_KEY", f" {KEY}\n")
    client = to(server, key=read_key("MY_KEY"))
    ask(client)
    assert server.headers[0]["Authorization"] == f"Bearer {KEY}"
    assert KEY not in repr(client) and KEY not in str(client.identity())
    server.always = status(401, f"wrong key {KEY}")
    with pytest.raises(UserError, match="wrong key …") as raised:
        ask(client)
    assert KEY not in str(raised.value) and KEY not in "".join(capfd.readouterr())


def test_a_key_that_cannot_be_sent_is_refused_without_showing_it(monkeypatch: pytest.MonkeyPatch) -> None:
    for value in ("sk-a b", "sk-a\r\nHost: b", "sk-ä"):
        monkeypatch.setenv("MY_KEY", value)
        with pytest.raises(UserError, match="is not a valid API key") as raised:
            read_key("MY_KEY")
        assert "sk-" not in str(raised.value)
    monkeypatch.delenv("MY_KEY")
    with pytest.raises(UserError, match="the environment variable is missing"):
        read_key("MY_KEY")
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    monkeypatch.delenv("TINTYPE_API_KEY", raising=False)
    assert read_key(None) is None  # a key for another server is not sent to this one


def test_no_server_is_reported_with_its_url_and_what_to_start() -> None:
    with caption_server() as gone:
        client = to(gone)
    with pytest.raises(UserError, match=rf"no server answers at {gone.url}/v1: Connection refused; .*vllm serve m"):
        client.check()
    assert not client.alive()


def test_a_response_is_bounded_where_it_is_read(server: CaptionServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_module, "_MOST_BYTES", 100)
    (reply,) = ask(to(server))
    assert reply.failure is not None and "more than" in reply.failure


@pytest.mark.parametrize(
    ("url", "place"),
    [
        ("http://localhost:8000", Place(False, "localhost", 8000, "/v1")),
        ("http://localhost:8000/", Place(False, "localhost", 8000, "/v1")),
        ("https://a.b/v1", Place(True, "a.b", None, "/v1")),
        ("https://a.b/api/v3/chat/completions", Place(True, "a.b", None, "/api/v3")),
        ("http://[::1]:80", Place(False, "::1", 80, "/v1")),
    ],
)
def test_urls_are_read(url: str, place: Place) -> None:
    assert read_place(url) == place
    assert read_place(place.url) == place


@pytest.mark.parametrize(
    "url", ["localhost:8000", "ftp://a", "http://", "http://a:b", "http://a?x=1", "http://a/\x00", "http://u:secret@a"]
)
def test_what_is_no_url_is_refused(url: str) -> None:
    with pytest.raises(UserError, match="--server") as raised:
        read_place(url)
    assert "secret" not in str(raised.value)


@pytest.mark.parametrize(
    "content",
    [
        *(
            b"",
            b"[]",
            b"{}",
            b'{"choices": []}',
            b'{"choices": [{"message": {"content": 3}}]}',
            b"[" * 100_000,
            b"\xff",
        ),
        b'{"choices": [{"message": {"content": "a"}}], "usage": {"prompt_tokens": -1}}',
    ],
)
def test_what_is_no_completion_is_refused(content: bytes) -> None:
    with pytest.raises(server_module._PassingError):
        read_answer(QUESTION, content)


def test_why_an_answer_ended_is_read() -> None:
    said = b'{"choices": [{"message": {"content": %s, "refusal": %s}, "finish_reason": "%s"}]}'
    assert read_answer(QUESTION, said % (b'"a"', b"null", b"length")).cut_off
    assert read_answer(QUESTION, said % (b"null", b'"no"', b"stop")).refused
    assert read_answer(QUESTION, said % (b'""', b"null", b"content_filter")).refused


def test_images_that_servers_may_not_know_are_sent_as_png() -> None:
    png = image_file(0)
    assert data_url(Encoded("a", image_file(0, form="jpeg"))).startswith("data:image/jpeg;base64,")
    assert data_url(Encoded("a", png)).startswith("data:image/png;base64,")
    for form in ("webp", "bmp", "tiff"):
        assert data_url(Encoded("a", image_file(0, form=form))).startswith("data:image/png;base64,")
    buffer = io.BytesIO()
    Image.new("CMYK", (8, 8)).save(buffer, "JPEG")
    assert data_url(Encoded("a", buffer.getvalue())).startswith("data:image/png;base64,")
