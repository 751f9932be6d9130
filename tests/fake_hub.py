"""A hub on this machine: as much of its protocol as uploading a folder needs, and a storage at another address.

Small files come within the commit, large ones by LFS: to an address that the hub gives, which must not see the token.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any
from urllib.parse import parse_qs

TOKEN = "hf_notarealtokenbutlongenough"
ACCOUNT = "somebody"


@dataclass
class FakeHub:
    url: str = ""
    storage_url: str = ""
    repos: dict[str, dict[str, bytes]] = field(default_factory=dict)
    private: dict[str, bool] = field(default_factory=dict)
    stored: dict[str, bytes] = field(default_factory=dict)
    """By SHA-256: what came by LFS."""
    asked: list[str] = field(default_factory=list)
    """Method and path of each request to the hub."""
    storage_headers: list[dict[str, str]] = field(default_factory=list)
    failures: dict[str, int] = field(default_factory=dict)
    """Part of a request -> the status that it gets."""
    ignored: set[str] = field(default_factory=set)
    """Paths that a .gitignore of the repository leaves out."""
    commits: int = 0

    def commit(self, repo: str, lines: list[dict[str, Any]]) -> None:
        for line in lines:
            value = line["value"]
            if line["key"] == "file":
                self.repos[repo][value["path"]] = base64.b64decode(value["content"])
            elif line["key"] == "lfsFile":
                self.repos[repo][value["path"]] = self.stored[value["oid"]]
        self.commits += 1

    @property
    def sha(self) -> str:
        return f"{self.commits:040x}"


class _Handler(BaseHTTPRequestHandler):
    hub: FakeHub

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def body(self) -> bytes:
        if self.headers.get("Transfer-Encoding", "").lower() != "chunked":
            return self.rfile.read(int(self.headers.get("Content-Length") or 0))
        found = b""
        while size := int(self.rfile.readline(), 16):
            found += self.rfile.read(size)
            self.rfile.readline()
        self.rfile.readline()
        return found

    def answer(self, status: int, content: Any = None, **headers: str) -> None:
        raw = json.dumps(content if content is not None else {}).encode()
        self.send_response(status)
        for name, value in {"Content-Type": "application/json", **headers}.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("Content-Length", str(len(raw)))
        self.end_headers()
        self.wfile.write(raw)

    def failure(self) -> int | None:
        asked = f"{self.command} {self.path}"
        return next((status for part, status in self.hub.failures.items() if part in asked), None)


class _Storage(_Handler):
    def do_PUT(self) -> None:
        self.hub.storage_headers.append({name.lower(): value for name, value in self.headers.items()})
        content = self.body()
        if status := self.failure():
            self.answer(status, {"error": "the storage fails"})
            return
        self.hub.stored[hashlib.sha256(content).hexdigest()] = content
        self.answer(200)


class _Api(_Handler):
    def do_GET(self) -> None:
        self.respond()

    def do_POST(self) -> None:
        self.respond()

    def respond(self) -> None:
        content = self.body()
        self.hub.asked.append(f"{self.command} {self.path}")
        if status := self.failure():
            self.answer(status, {"error": f"told to fail, {self.headers['Authorization']}"})
        elif self.headers["Authorization"] != f"Bearer {TOKEN}":
            self.answer(401, {"error": "Invalid username or password."})
        elif self.path == "/api/whoami-v2":
            self.answer(200, {"type": "user", "name": ACCOUNT})
        elif self.path == "/api/validate-yaml":
            self.answer(200, {"errors": [], "warnings": []})
        elif self.path == "/api/repos/create":
            self.create(json.loads(content))
        elif self.path.endswith(".git/info/lfs/objects/batch"):
            self.batch(json.loads(content))
        elif self.path.startswith("/api/models/"):
            owner, name, *rest = self.path.removeprefix("/api/models/").split("?")[0].split("/")
            self.model(f"{owner}/{name}", rest[0] if rest else "", content)
        else:
            self.answer(404)

    def create(self, asked: dict[str, Any]) -> None:
        repo = f"{asked['organization']}/{asked['name']}"
        self.hub.repos[repo] = {}
        self.hub.private[repo] = asked.get("visibility") == "private" or bool(asked.get("private"))
        self.answer(200, {"url": f"{self.hub.url}/{repo}", "name": repo})

    def batch(self, asked: dict[str, Any]) -> None:
        objects = []
        for one in asked["objects"]:
            upload = {"href": f"{self.hub.storage_url}/{one['oid']}", "header": {}}
            there = one["oid"] in self.hub.stored
            objects.append({**one, **({} if there else {"actions": {"upload": upload}})})
        self.answer(200, {"transfer": "basic", "objects": objects})

    def model(self, repo: str, what: str, content: bytes) -> None:
        hub = self.hub
        if repo not in hub.repos:
            self.answer(404, {"error": "Repository not found"}, X_Error_Code="RepoNotFound")
        elif what == "preupload":
            self.answer(200, {"files": [self.mode(repo, file) for file in json.loads(content)["files"]]})
        elif what == "commit":
            hub.commit(repo, [json.loads(line) for line in content.splitlines()])
            url = f"{hub.url}/{repo}/commit/{hub.sha}"
            self.answer(200, {"success": True, "commitOid": hub.sha, "commitUrl": url, "hookOutput": ""})
        elif what == "paths-info":
            paths = [path for path in parse_qs(content.decode())["paths"] if path in hub.repos[repo]]
            files = hub.repos[repo]
            self.answer(
                200, [{"type": "file", "path": path, "size": len(files[path]), "oid": "0" * 40} for path in paths]
            )
        else:
            about = {"id": repo, "sha": hub.sha, "private": hub.private[repo], "tags": [], "siblings": []}
            self.answer(200, about)

    def mode(self, repo: str, file: dict[str, Any]) -> dict[str, Any]:
        there = self.hub.repos[repo].get(file["path"])
        large = file["path"].endswith(".safetensors")
        found = {"path": file["path"], "uploadMode": "lfs" if large else "regular"}
        oid = (_sha256(there) if large else _git_hash(there)) if there is not None else None
        return {**found, "shouldIgnore": file["path"] in self.hub.ignored, **({"oid": oid} if oid else {})}


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _git_hash(content: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


@contextmanager
def fake_hub() -> Iterator[FakeHub]:
    hub = FakeHub()
    servers = []
    for kind in (_Api, _Storage):
        handler = type(kind.__name__, (kind,), {"hub": hub})
        servers.append(ThreadingHTTPServer(("127.0.0.1", 0), handler))
    hub.url, hub.storage_url = (f"http://127.0.0.1:{server.server_address[1]}" for server in servers)
    threads = [Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}) for server in servers]
    for thread in threads:
        thread.start()
    try:
        yield hub
    finally:
        for server in servers:
            server.shutdown()
            server.server_close()
        for thread in threads:
            thread.join()
