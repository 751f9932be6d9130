"""A live server in this process, for tests, and requests to it as a browser or an attacker would send them."""

from __future__ import annotations

import http.client
import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tintype.serve.server import LiveServer


@dataclass(frozen=True)
class Answer:
    status: int
    headers: Mapping[str, str]
    content: bytes

    @property
    def text(self) -> str:
        return self.content.decode()


@dataclass(frozen=True)
class Client:
    """Sends requests to one server."""

    server: LiveServer

    @property
    def port(self) -> int:
        return self.server.guard.port

    @property
    def base(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def get(self, target: str, **headers: str) -> Answer:
        return self.request("GET", target, None, headers)

    def post(self, target: str, content: object, **headers: str) -> Answer:
        """Post as the server's own page does; headers may be replaced."""
        usual = {"Origin": self.base, "Content-Type": "application/json", "Sec-Fetch-Site": "same-origin"}
        return self.request("POST", target, json.dumps(content).encode(), usual | headers)

    def request(self, method: str, target: str, content: bytes | None, headers: Mapping[str, str]) -> Answer:
        """Send the target as it is: no client library tidies a path that tries to leave the folder."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=20)
        try:
            connection.putrequest(method, target, skip_host="Host" in headers)
            for name, value in headers.items():
                connection.putheader(name.replace("_", "-"), value)
            if content is not None:
                connection.putheader("Content-Length", str(len(content)))
            connection.endheaders(content)
            answer = connection.getresponse()
            return Answer(answer.status, dict(answer.headers), answer.read())
        finally:
            connection.close()

    def events(self, target: str, count: int) -> list[tuple[str, object]]:
        """Return the first events of a stream."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=20)
        found: list[tuple[str, object]] = []
        try:
            connection.request("GET", target)
            answer = connection.getresponse()
            assert answer.status == 200, answer.read()
            name = ""
            while len(found) < count and (line := answer.readline()):
                kind, _, value = line.decode().rstrip("\n").partition(": ")
                if kind == "event":
                    name = value
                elif kind == "data":
                    found.append((name, json.loads(value)))
        finally:
            connection.close()
        return found


@contextmanager
def serving(root: Path, host: str = "127.0.0.1", *, token: bool = False) -> Iterator[Client]:
    """Serve a folder on a free port."""
    with LiveServer(root, host, 0, token=token) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        thread.start()
        try:
            yield Client(server)
        finally:
            server.shutdown()
            thread.join()
