"""Web server of `tintype serve` for one folder's pages, images and event streams, with the standard library only."""

from __future__ import annotations

import json
import secrets
import socket
import sys
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, parse_qsl, quote, urlencode, urlsplit

from pydantic import ValidationError

from tintype.config.strict import first_problem
from tintype.data.image_file import BadImageError, open_image, read_file
from tintype.errors import UserError
from tintype.flow.sampler import SAMPLERS
from tintype.runtime.files import parse_object, study_of
from tintype.runtime.notes import note
from tintype.serve.find import can_sample, describe, find, is_pipeline, is_study, runs_of
from tintype.serve.fragments import page, static
from tintype.serve.guard import CONTENT_POLICY, HEADERS, REPORT_POLICY, Guard, RefusedError, inside, is_local, new_token
from tintype.serve.links import Links
from tintype.serve.live import Live, LiveCompare, LiveRun, LiveStudy
from tintype.serve.names import RunNames
from tintype.serve.overview import LiveIndex
from tintype.serve.playground import LIMITS, Playground, Request
from tintype.study.picked import keep_image
from tintype.study.report.findings import curve_label
from tintype.train.record import RunRecord, is_run
from tintype.wording import option

PORT = 8420
_FIRST_PAINT_S = 0.5
"""Seconds for which a page waits for its first content; the rest arrives by the page's event stream."""
_WHOLE_S = 20.0
"""Seconds for which a request for an image waits until the report that contains the image is read."""
_BEAT_S = 10.0
_MOST_STREAMS = 64
_MOST_LIVE = 32
_MOST_BYTES = 16_384
"""Maximum size of a request's body, in bytes."""
_MOST_RUNS = 400
_MOST_COMPARED = 8
_CURVES_EVERY_S = 1.0
_IMAGES = {"PNG": "image/png", "WEBP": "image/webp"}
_STATIC = {"style.css": "text/css", "live.js": "text/javascript"}
_FORM = {"prompt": "", "run": "", "beside": "", "seed": "0", "steps": "30", "guidance": "3.5", "from_t": "0"}
_FORM |= {"to_t": "1", "method": "euler", "count": "1", "weights": "usual", "ema": "0.1"}
"""Default values of the playground's form. The URL can override these values."""
_NOT_FOUND = RefusedError(HTTPStatus.NOT_FOUND, "There is nothing at this address.")
_LINKED_OUT = RefusedError(
    HTTPStatus.NOT_FOUND,
    "Not shown: a link in this study or run leads out of the served folder. Serve a folder that contains the "
    "link and its target.",
)


class LiveServer(ThreadingHTTPServer):
    """Serves one folder. All browsers that show the same study or run share its state."""

    daemon_threads = True
    allow_reuse_address = True

    def __init__(
        self, root: Path, host: str = "127.0.0.1", port: int = PORT, *, token: bool = False, device: str | None = None
    ) -> None:
        if not root.is_dir():
            raise UserError(f"{root} is not a folder", "give the folder of runs and studies")
        self.root = root.resolve()
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._lives: OrderedDict[tuple[object, ...], Live] = OrderedDict()
        self._lock, self._streams = threading.Lock(), threading.BoundedSemaphore(_MOST_STREAMS)
        self.names, self.links = RunNames(), Links(self.root)
        self.index = LiveIndex(self.root, self.links)  # if the port is taken, the server is closed at once
        try:
            super().__init__((host, port), Handler)
        except (OSError, OverflowError) as error:
            raise UserError(
                f"cannot listen on {host}, port {port} ({error})",
                f"choose another {option('port')} or {option('host')}",
            ) from None
        needed = token or not is_local(host)
        self.guard = Guard(host, self.server_address[1], new_token() if needed else None)
        self.playground = Playground(device)
        self.picking = threading.Lock()
        """Lock that is held while an image is saved for a report."""

    def server_close(self) -> None:
        """Stop listening, and stop reading files for pages."""
        super().server_close()
        with self._lock:
            for live in (self.index, *self._lives.values()):
                live.rest()

    @property
    def url(self) -> str:
        """Return the URL to open in a browser, including the token if the server needs a token."""
        host = "localhost" if self.guard.host in ("0.0.0.0", "::", "") else self.guard.host
        shown = f"[{host}]" if ":" in host else host
        token = f"?token={self.guard.token}" if self.guard.token else ""
        return f"http://{shown}:{self.guard.port}/{token}"

    def relative(self, folder: Path) -> str:
        return "" if folder == self.root else folder.relative_to(self.root).as_posix()

    def live(self, kind: type[LiveStudy | LiveRun], folder: Path) -> Live:
        """Return the state of a study's or a run's page, which all browsers share."""
        return self._shared((kind, folder), lambda: kind(folder, self.relative(folder), self.links))

    def compared(self, runs: Sequence[tuple[str, str, Path]]) -> Live:
        return self._shared((LiveCompare, *runs), lambda: LiveCompare(runs, self.links))

    def _shared(self, key: tuple[object, ...], make: Callable[[], Live]) -> Live:
        with self._lock:
            if key not in self._lives:
                self._lives[key] = make()
            self._lives.move_to_end(key)
            while len(self._lives) > _MOST_LIVE:
                self._lives.popitem(last=False)[1].rest()
            return self._lives[key]

    @contextmanager
    def stream(self) -> Iterator[None]:
        """Count an open event stream; refuse it if too many streams are open."""
        if not self._streams.acquire(blocking=False):
            raise RefusedError(
                HTTPStatus.SERVICE_UNAVAILABLE, "Too many pages of this server are open. Close some of them."
            )
        try:
            yield
        finally:
            self._streams.release()

    def handle_error(self, request: object, client_address: object) -> None:
        """Log an error that could not be reported in a response. A closed connection does not count as an error."""
        if (error := sys.exception()) is not None and not isinstance(error, ConnectionError | TimeoutError):
            note(f"the live page: {type(error).__name__}: {error}")


class Handler(BaseHTTPRequestHandler):
    server: LiveServer
    protocol_version = "HTTP/1.1"
    server_version, sys_version = "tintype", ""
    timeout = 30.0

    def do_GET(self) -> None:
        with self._refusals():
            self.server.guard.check("GET", self.path, self.headers)
            if self._takes_token():
                return
            path = self.path.partition("?")[0]
            kind, _, rest = path.lstrip("/").partition("/")
            answers = {
                "": self._index,
                "static": self._static,
                "study": self._study,
                "run": self._run,
                "report": self._report,
                "image": self._image,
                "kept": self._kept_image,
                "playground": self._playground,
                "compare": self._compare,
                "events": self._events,
            }
            if kind not in answers:
                raise _NOT_FOUND
            answers[kind](rest)

    def do_POST(self) -> None:
        """Handle a request of the playground, which samples images, stops sampling, or saves an image."""
        with self._refusals():
            self.close_connection = True  # its content may be unread
            self.server.guard.check("POST", self.path, self.headers)
            content = self._content()
            if self.path == "/play":
                self._send_json({"id": self._play(content)})
            elif self.path == "/play/stop":
                self.server.playground.stop(str(content.get("client")), str(content.get("id")))
                self._send_json({})
            elif self.path == "/play/pick":
                self._send_json({"words": self._pick(content)})
            else:
                raise _NOT_FOUND

    @contextmanager
    def _refusals(self) -> Iterator[None]:
        try:
            yield
        except RefusedError as error:
            self._send_problem(error.status, error.words)
        except UserError as error:
            self._send_problem(HTTPStatus.BAD_REQUEST, str(error))

    def _takes_token(self) -> bool:
        """Move a token from the URL into a cookie, so that links and the browser's history do not contain it."""
        split = urlsplit(self.path)
        if self.server.guard.token is None or "token" not in parse_qs(split.query):
            return False
        rest = urlencode([(key, value) for key, value in parse_qsl(split.query) if key != "token"])
        self.send_response(HTTPStatus.SEE_OTHER)
        self.send_header("Set-Cookie", self.server.guard.set_cookie())
        self.send_header("Location", "/" + split.path.lstrip("/") + (f"?{rest}" if rest else ""))
        self.send_header("Content-Length", "0")
        self._end_headers()
        return True

    def _content(self) -> dict[str, object]:
        try:
            length = int(self.headers.get("Content-Length", ""))
        except ValueError:
            raise RefusedError(HTTPStatus.LENGTH_REQUIRED, "The request has no header Content-Length.") from None
        if not 0 <= length <= _MOST_BYTES:
            raise RefusedError(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, "The request body is too large.")
        try:
            return dict(parse_object(self.rfile.read(length)))
        except ValueError:
            raise RefusedError(HTTPStatus.BAD_REQUEST, "The request body is not a JSON object.") from None

    # pages

    def _index(self, rest: str) -> None:
        live, title = self.server.index, "Runs and studies"
        live.ask(_FIRST_PAINT_S)
        shown = {"fragments": dict(live.fragments), "problem": live.problem, "stream": "/events/index"}
        self._send_page("index.html.j2", title=title, folder=str(self.server.root), **shown)

    def _study(self, rest: str) -> None:
        folder = self._folder(rest, is_study)
        live = self.server.live(LiveStudy, folder)
        live.ask(_FIRST_PAINT_S)
        found = describe(folder, live.path)
        self._send_live(live, "study", found.question or found.name)

    def _run(self, rest: str) -> None:
        folder = self._folder(rest, is_run)
        live = self.server.live(LiveRun, folder)
        live.ask(_FIRST_PAINT_S)
        try:
            plan = RunRecord(folder).plan.to_yaml()
        except UserError as error:
            plan = str(error)
        study = self._study_of(folder)
        heading = self.server.names.of(study).get(folder.name, folder.name) if study else folder.name
        above = self.server.relative(study) if study else None
        self._send_live(live, "run", heading, plan=plan, above=above)

    def _send_live(self, live: Live, kind: str, heading: str, **more: object) -> None:
        report = kind == "study" and (live.folder / "report.html").is_file()
        self._send_page(
            "study.html.j2",
            title=heading,
            heading=heading,
            kind=kind,
            path=live.path,
            fragments=dict(live.fragments),
            problem=live.problem,
            is_over=live.is_over,
            has_report=report,
            stream=f"/events/{kind}/{quote(live.path)}",
            **{"above": None, **more},
        )

    def _compare(self, rest: str) -> None:
        chosen = self._chosen()
        values = {"title": "Compare", "runs": list(self._runs()), "chosen": chosen, "most": _MOST_COMPARED}
        if len(chosen) < 2:
            self._send_page("compare.html.j2", fragments={}, problem="", **values)
            return
        live = self._compared(chosen)
        live.ask(_FIRST_PAINT_S)
        stream = f"/events/compare?{urlencode([('run', path) for path in chosen])}"
        fragments = dict(live.fragments)
        self._send_page("compare.html.j2", fragments=fragments, problem=live.problem, stream=stream, **values)

    def _chosen(self) -> list[str]:
        """Return the paths of the runs that the URL names, without duplicates."""
        given = parse_qs(urlsplit(self.path).query).get("run", [])
        return list(dict.fromkeys(path for path in given if path))[:_MOST_COMPARED]

    def _compared(self, paths: list[str]) -> Live:
        folders = [(path, self._folder(quote(path), is_run)) for path in paths]
        return self.server.compared([(path, self._run_words(folder, path), folder) for path, folder in folders])

    def _run_words(self, folder: Path, path: str) -> str:
        """Return the displayed name of a run; in a study, it contains the study's path, the arm and the seed."""
        if (study := self._study_of(folder)) is None:
            return path or "the folder itself"
        name = self.server.names.of(study).get(folder.name, folder.name)
        return f"{self.server.relative(study) or describe(study, '').name}: {name}"

    def _playground(self, rest: str) -> None:
        given = dict(parse_qsl(urlsplit(self.path).query))
        values = {key: given.get(key, usual)[: LIMITS.prompt] for key, usual in _FORM.items()}
        client = secrets.token_hex(12)
        runs = list(self._runs(sampled=True))
        stream = f"/events/play/{client}"
        shown = {"runs": runs, "values": values, "limits": LIMITS, "stream": stream, "samplers": list(SAMPLERS)}
        self._send_page("playground.html.j2", title="Playground", **shown)

    def _runs(self, *, sampled: bool = False) -> Iterator[dict[str, str]]:
        """Yield the path and name of each run; if `sampled` is True, only pipelines and runs that can be sampled."""
        studies, runs = find(self.server.root)
        left = _MOST_RUNS
        for run in runs:
            if run.has_weights if sampled else not run.is_pipeline:
                words = run.path or "the folder itself"
                yield {"path": run.path, "words": f"{words} (diffusers)" if run.is_pipeline else words}
        for study in studies:
            folder = self.server.root / study.path
            there = {run.name: run for run in runs_of(folder, sampled=sampled)[:left]}
            if there and not self.server.links.stay_inside(folder):
                continue
            left -= len(there)
            names = self.server.names.of(folder) if there else {}
            named = {name: f"{study.path or study.name}: {words}" for name, words in names.items()}
            order = list(named)
            for name in sorted(there, key=lambda one: order.index(one) if one in named else len(order)):
                words = named.get(name, f"{study.path or study.name}: {name}")
                yield {"path": self.server.relative(there[name]), "words": words}

    def _report(self, rest: str) -> None:
        file = self._folder(rest, is_study) / "report.html"
        if not file.is_file() or file.is_symlink():
            raise _NOT_FOUND
        self._send(file.read_bytes(), "text/html; charset=utf-8", policy=REPORT_POLICY)

    def _image(self, rest: str) -> None:
        file = inside(self.server.root, rest)
        if file.suffix.lower() != ".png" or not file.is_file():
            raise _NOT_FOUND
        try:
            content = read_file(file)
        except (OSError, BadImageError):
            raise _NOT_FOUND from None
        self._send_image(content, file.name)

    def _kept_image(self, rest: str) -> None:
        """Respond with an image that exists only in the report of a study."""
        folder = self._folder(rest, is_study)
        name = dict(parse_qsl(urlsplit(self.path).query)).get("image", "")
        overview = self.server.index.studies.get(self.server.relative(folder))
        if overview is not None and name in overview.kept:  # to read this image without reading all the others
            self._send_image(overview.kept[name], name)
            return
        live = self.server.live(LiveStudy, folder)
        live.ask(_WHOLE_S)
        if not isinstance(live, LiveStudy) or name not in live.kept:
            raise _NOT_FOUND
        self._send_image(live.kept[name], name)

    def _send_image(self, content: bytes, name: str) -> None:
        """Respond with a file if its content is an image in a supported format. Otherwise refuse it."""
        try:
            with open_image(content, name) as image:
                kind = _IMAGES.get(image.format or "")
        except BadImageError:
            kind = None
        if kind is None:
            raise _NOT_FOUND
        self._send(content, kind, cache="private, max-age=60")

    def _static(self, rest: str) -> None:
        if rest not in _STATIC:
            raise _NOT_FOUND
        self._send(static(rest), f"{_STATIC[rest]}; charset=utf-8")

    def _folder(self, rest: str, is_kind: Callable[[Path], bool]) -> Path:
        folder = inside(self.server.root, rest)
        if not folder.is_dir() or not is_kind(folder):
            raise _NOT_FOUND
        links = [file for file in folder.rglob("*") if file.is_symlink()] if is_pipeline(folder) else []
        if not all(file.resolve().is_relative_to(self.server.root) for file in links):
            raise _NOT_FOUND
        if not self.server.links.stay_inside(folder):
            raise _LINKED_OUT
        return folder

    def _play(self, content: dict[str, object]) -> str:
        try:
            request = Request.model_validate(content)
        except ValidationError as error:
            raise UserError(first_problem(error)) from None
        paths = [request.run, *([request.beside] if request.beside else [])]
        runs = [(path, self._folder(quote(path), can_sample)) for path in paths]
        return self.server.playground.ask(request, runs).id

    def _pick(self, content: dict[str, object]) -> str:
        """Save a playground image for the report of its study, or beside its run; return a description of the place."""
        index = content.get("index")
        if not isinstance(index, int) or isinstance(index, bool):
            raise UserError("index: the number of the image is missing or not an integer")
        made = self.server.playground.made(str(content.get("client")), str(content.get("id")), index)
        if not is_run(made.folder):
            raise UserError("an exported folder (diffusers) has no report", "choose an image of a run")
        if not self.server.links.stay_inside(made.folder):
            raise _NOT_FOUND
        study = self._study_of(made.folder)
        with self.server.picking:
            keep_image(study or made.folder, made.png, dict(made.settings))
        if study is None:
            return "kept beside its run, which is in no study: see the run's page"
        return f"kept for the next report of {describe(study, '').name}"

    def _study_of(self, run: Path) -> Path | None:
        """Return the study (in the served folder) to which a run belongs; None if there is none."""
        study = study_of(run)
        is_served = study and study.is_relative_to(self.server.root) and self.server.links.stay_inside(study)
        return study if is_served else None

    # event streams

    def _events(self, rest: str) -> None:
        kind, _, path = rest.partition("/")
        if kind == "index":
            self._follow(self.server.index)
        elif kind == "play":
            self._begin_stream(self._follow_playground(path))
        elif kind == "compare" and len(chosen := self._chosen()) > 1:
            self._follow(self._compared(chosen))
        elif kind in ("study", "run"):
            folder = self._folder(path, is_study if kind == "study" else is_run)
            self._follow(self.server.live(LiveStudy if kind == "study" else LiveRun, folder))
        else:
            raise _NOT_FOUND

    def _follow(self, live: Live) -> None:
        query = parse_qs(urlsplit(self.path).query)
        names = [name for name in query.get("metrics", [""])[0].split(",") if name]
        self._begin_stream(follow(live, names, flops=query.get("over") == ["flops"]))

    def _begin_stream(self, news: Iterator[tuple[str, object]]) -> None:
        with self.server.stream():
            self.close_connection = True
            self.send_response(HTTPStatus.OK)
            self.send_header("Content-Type", "text/event-stream")
            self.send_header("Connection", "close")
            self._end_headers()
            with suppress(OSError):  # the browser has closed the connection
                self.wfile.write(b": here\n\n")  # a browser treats a stream without content as not yet open
                for name, content in news:
                    written = (
                        f"event: {name}\ndata: {json.dumps(content, allow_nan=False)}\n\n" if name else ": here\n\n"
                    )
                    self.wfile.write(written.encode())
                    self.wfile.flush()

    def _follow_playground(self, client: str) -> Iterator[tuple[str, object]]:
        place, sent = self.server.playground, dict[str, int]()
        while True:
            with place.changed:
                place.changed.wait_for(
                    lambda: any(job.version != sent.get(job.id) for job in place.of_client(client)), _BEAT_S
                )
                news = [(job, job.version, job.shown()) for job in place.of_client(client)]
            changed = [(job, version, shown) for job, version, shown in news if version != sent.get(job.id)]
            for job, version, shown in changed:
                sent[job.id] = version
                yield "play", shown
            if not changed:
                yield "", None

    # answers

    def _send_page(self, name: str, **values: object) -> None:
        text = page(name).render(**{"stream": "", **values})
        self._send(text.encode(), "text/html; charset=utf-8")

    def _send_json(self, content: object, status: HTTPStatus = HTTPStatus.OK) -> None:
        self._send(json.dumps(content).encode(), "application/json", status)

    def _send_problem(self, status: HTTPStatus, words: str) -> None:
        self.close_connection = True
        if self.command == "POST":
            self._send_json({"error": words}, status)
        else:
            self._send(f"{words}\n".encode(), "text/plain; charset=utf-8", status)

    def _send(
        self,
        content: bytes,
        kind: str,
        status: HTTPStatus = HTTPStatus.OK,
        *,
        policy: str = CONTENT_POLICY,
        cache: str | None = None,
    ) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(content)))
        self._end_headers(policy, cache)
        self.wfile.write(content)

    def _end_headers(self, policy: str = CONTENT_POLICY, cache: str | None = None) -> None:
        self.send_header("Content-Security-Policy", policy)
        for name, value in HEADERS.items():
            self.send_header(name, cache if cache and name == "Cache-Control" else value)
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        """Do not log requests, since URLs may contain a token."""


def follow(live: Live, metrics: list[str], *, flops: bool = False) -> Iterator[tuple[str, object]]:
    """Yield the fragments and curves that the browser does not have yet, with counted operations if `flops` is True."""
    fragments, problem, version = dict[str, str](), "", -1
    curves, arms, names = None, dict[tuple[str, str], int](), list[str]()
    while True:
        version = live.wait(version, _BEAT_S)
        if flops:
            live.count_flops()
        news: list[tuple[str, object]] = []
        if changed := {key: html for key, html in dict(live.fragments).items() if fragments.get(key) != html}:
            fragments |= changed
            news.append(("fragments", changed))
        if live.problem != problem:
            problem = live.problem
            news.append(("problem", problem))
        if live.curves is not curves:
            curves, arms, names = live.curves, {}, []
        known = curves.names()
        shown = metrics or known[:3]
        versions = dict(curves.versions)
        stale = [(name, arm) for name in shown for arm in versions if arms.get((name, arm)) != versions[arm]]
        if known and (stale or known != names):
            names = known
            bands: dict[str, dict[str, object]] = {}
            for name, arm in stale:
                arms[name, arm] = versions[arm]
                bands.setdefault(name, {})[arm] = curves.band(arm, name)
            labels = {name: curve_label(name, names) for name in names}
            content = {"names": names, "labels": labels, "shown": shown, "bands": bands, "events": curves.event_steps()}
            content["uncounted"] = {arm: words for arm, words in curves.flops.missing.items() if words}
            news.append(("curves", content | {"colours": {arm: live.colours.get(arm, "arm-0") for arm in versions}}))
        yield from news or [("", None)]
        time.sleep(_CURVES_EVERY_S / 4)
