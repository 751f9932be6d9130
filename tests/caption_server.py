"""A real HTTP server on the loopback that speaks chat completions, and misbehaves on command."""

from __future__ import annotations

import base64
import hashlib
import json
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Deed = Callable[[BaseHTTPRequestHandler], None]
"""Behaviour of the server in place of an answer."""


class CaptionServer(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 64

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.asked: list[dict[str, Any]] = []
        """The bodies of the questions."""
        self.headers: list[dict[str, str]] = []
        self.images: Counter[str] = Counter()
        """How often each image was asked about, by the SHA-256 of its bytes."""
        self.times_s: list[float] = []
        self.script: list[Deed] = []
        """Done before the first answers, one for each question."""
        self.always: Deed | None = None
        self.reply: Callable[[str, dict[str, Any]], str | None] = lambda key, body: f"A picture {key[:8]}."
        self.finish = "stop"
        self.models_status = 200
        self.lock = threading.Lock()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Connections that the other side cut are what the tests are about."""


class _Handler(BaseHTTPRequestHandler):
    server: CaptionServer

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def do_GET(self) -> None:
        send(self, self.server.models_status, {"data": []})

    def do_POST(self) -> None:
        content = self.rfile.read(int(self.headers["Content-Length"]))
        if self.path != "/v1/chat/completions":
            send(self, 404, {"error": {"message": "no such path"}})
            return
        body, server = json.loads(content), self.server
        url = body["messages"][0]["content"][0]["image_url"]["url"]
        key = hashlib.sha256(base64.b64decode(url.partition("base64,")[2])).hexdigest()
        with server.lock:
            server.asked.append(body)
            server.headers.append(dict(self.headers))
            server.images[key] += 1
            server.times_s.append(time.monotonic())
            deed = server.script.pop(0) if server.script else server.always
        if deed is not None:
            deed(self)
            return
        message = {"role": "assistant", "content": server.reply(key, body)}
        usage = {"prompt_tokens": 100, "completion_tokens": 10}
        send(self, 200, {"choices": [{"message": message, "finish_reason": server.finish}], "usage": usage})


def send(handler: BaseHTTPRequestHandler, status: int, content: Any, **headers: str) -> None:
    body = content if isinstance(content, bytes) else json.dumps(content).encode()
    handler.send_response(status)
    for name, value in headers.items():
        handler.send_header(name.replace("_", "-"), value)
    handler.send_header("Content-Length", str(len(body)))
    handler.end_headers()
    handler.wfile.write(body)


def status(number: int, message: str = "no", **headers: str) -> Deed:
    return lambda handler: send(handler, number, {"error": {"message": message}}, **headers)


def slow(seconds: float) -> Deed:
    return lambda handler: time.sleep(seconds)


def drip(handler: BaseHTTPRequestHandler) -> None:
    """A byte at a time, each within the time-out of a socket."""
    handler.send_response(200)
    handler.send_header("Content-Length", "100000")
    handler.end_headers()
    for _ in range(200):
        handler.wfile.write(b" ")
        time.sleep(0.02)


def hang_up(handler: BaseHTTPRequestHandler) -> None:
    handler.close_connection = True


def cut(handler: BaseHTTPRequestHandler) -> None:
    """In the middle of an answer."""
    handler.send_response(200)
    handler.send_header("Content-Length", "1000")
    handler.end_headers()
    handler.wfile.write(b'{"choices": [')
    handler.close_connection = True


def bad_json(handler: BaseHTTPRequestHandler) -> None:
    send(handler, 200, b"{" * 2000)


def endless(handler: BaseHTTPRequestHandler) -> None:
    handler.send_response(200)
    handler.end_headers()
    while True:
        handler.wfile.write(b" " * 65536)


@contextmanager
def caption_server() -> Iterator[CaptionServer]:
    server = CaptionServer()
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
