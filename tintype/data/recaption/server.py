"""Send questions to a server with OpenAI's chat completions API, such as vLLM, llama.cpp, Ollama, or an online service.

The server is untrusted. The size and time of the server's answers are limited, and control characters are removed from
the server's messages. Redirects are refused, so that no other server gets the API key.
"""

from __future__ import annotations

import base64
import http.client
import json
import os
import random
import socket
import ssl
import threading
import time
from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from urllib.parse import urlsplit

from tintype.data.image_file import Encoded, open_image
from tintype.data.image_sets import decode, encode
from tintype.data.recaption.asking import Asking, Captioner, Pull, Question, Reply
from tintype.data.recaption.journal import MOST_TOKENS
from tintype.data.store.texts import shortened
from tintype.errors import UserError, as_user_error
from tintype.runtime.interrupt import Interrupt
from tintype.wording import again, option

KEY_VARIABLE = "TINTYPE_API_KEY"
_MOST_BYTES = 4 << 20
"""Maximum bytes of a response: fifty times the size of a caption with 20,000 characters, including its JSON."""
_MOST_WAIT_S = 600.0
"""Longest accepted `Retry-After` in seconds."""
_LONGEST_WAIT = 100
"""Maximum characters of a `Retry-After` header, which is a number or a date."""
_MOST_SENT_AWAY = 50
"""Number of `Retry-After` responses per question that do not count as failures."""
_POLL_S = 0.1
_AT_ONCE = ("JPEG", "PNG")
"""Image formats that every server can read. Images in other formats are sent as PNG."""


@dataclass(frozen=True)
class Patience:
    timeout_s: float = 120.0
    """Time limit of a whole exchange, from the first byte sent to the last byte received."""
    tries: int = 6
    """Number of attempts per question if the server is busy or fails."""
    first_wait_s: float = 1.0
    """Seconds before the second attempt. The wait doubles with each attempt, less a random part of up to half."""
    most_wait_s: float = 60.0

    def wait_s(self, failures: int) -> float:
        return min(self.most_wait_s, self.first_wait_s * 2.0 ** (failures - 1)) * random.uniform(0.5, 1.0)


@dataclass(frozen=True)
class Place:
    secure: bool
    host: str
    port: int | None
    path: str

    @property
    def url(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        port = "" if self.port is None else f":{self.port}"
        return f"{'https' if self.secure else 'http'}://{host}{port}{self.path}"

    @property
    def is_near(self) -> bool:
        """Whether the server runs on this machine, so that no data leaves the machine."""
        return self.host in ("localhost", "127.0.0.1", "::1")

    def connection(self, timeout_s: float) -> http.client.HTTPConnection:
        kind = http.client.HTTPSConnection if self.secure else http.client.HTTPConnection
        return kind(self.host, self.port, timeout=timeout_s)


def read_place(url: str) -> Place:
    """Parse a URL. `http://host:8000` gets the usual path `/v1`; a path in the URL is kept."""
    with as_user_error(ValueError, option("server", url)):
        parts = urlsplit(url)
        port = parts.port
    if parts.username is not None or parts.password is not None:
        raise UserError(
            f"the URL of {option('server')} contains a user name or password",
            f"remove both, and put the API key into ${KEY_VARIABLE}",
        )
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment:
        raise UserError(
            f"{option('server', url)} is not the URL of a server", "write it as http://HOST:PORT or https://HOST/v1"
        )
    if not parts.path.isascii() or any(c <= " " for c in parts.path):
        raise UserError(f"{option('server', url)}: the URL's path has characters that are not allowed in a URL")
    path = parts.path.rstrip("/").removesuffix("/chat/completions")
    return Place(parts.scheme == "https", parts.hostname, port, path or "/v1")


def read_key(variable: str | None) -> str | None:
    """Return the API key from an environment variable. The key is never shown, not even in errors."""
    found = os.environ.get(variable or KEY_VARIABLE, "").strip()
    if not found:
        if variable is not None:
            raise UserError(f"{option('key-variable', variable)}: the environment variable is missing or empty")
        return None
    if not found.isascii() or not found.isprintable() or " " in found:
        raise UserError(
            f"${variable or KEY_VARIABLE} is not a valid API key: it has spaces, or characters that "
            f"are not allowed in an HTTP header"
        )
    return found


class _PassingError(Exception):
    """A failure that may be temporary. `wait_s` is the `Retry-After` of a busy server, or None."""

    def __init__(self, reason: str, busy: bool = False, wait_s: float | None = None) -> None:
        super().__init__(reason)
        self.busy, self.wait_s = busy, wait_s


class _StoppedError(Exception):
    """A signal arrived while a thread waited before a new attempt."""


@dataclass
class _Gate:
    """Makes all threads wait until every `Retry-After` that any thread received has passed."""

    stop: threading.Event = field(default_factory=threading.Event)
    _opens_s: float = 0.0

    def close_for(self, seconds: float) -> None:
        self._opens_s = max(self._opens_s, time.monotonic() + seconds)

    def pass_through(self) -> None:
        while (left := self._opens_s - time.monotonic()) > 0:
            self.sleep(left)

    def sleep(self, seconds: float) -> None:
        if self.stop.wait(seconds):
            raise _StoppedError


@dataclass(frozen=True)
class Server(Captioner):
    place: Place
    model: str
    asking: Asking
    concurrency: int = 8
    patience: Patience = field(default_factory=Patience)
    key: str | None = field(default=None, repr=False)

    @property
    def where(self) -> str:
        return self.place.url

    def identity(self) -> dict[str, str]:
        return {"backend": "server", "model": self.model}

    def check(self) -> None:
        """Raise if no server answers at the URL."""
        examples = f"`vllm serve {self.model}`, `llama-server -hf {self.model}` or `ollama serve`"
        remedy = f"start one, for example {examples}, or fix {option('server')}"
        with as_user_error(_PassingError, f"no server answers at {self.place.url}", remedy):
            self._exchange("GET", "/models", None)

    def alive(self) -> bool:
        try:
            return self._exchange("GET", "/models", None)[0].status < 500
        except _PassingError:
            return False

    def replies(self, pull: Pull, interrupt: Interrupt) -> Iterator[Reply]:
        gate, flying = _Gate(), set[Future[Reply]]()
        error: BaseException | None = None
        pool = ThreadPoolExecutor(self.concurrency, thread_name_prefix="ask")
        try:
            while True:
                if interrupt.signal is not None or error is not None:
                    gate.stop.set()  # threads waiting to retry give up; requests in progress finish
                while not gate.stop.is_set() and len(flying) < self.concurrency and (question := pull()) is not None:
                    flying.add(pool.submit(self._ask, question, gate))
                if not flying:
                    break
                done, flying = wait(flying, timeout=_POLL_S, return_when=FIRST_COMPLETED)
                for future in done:
                    raised = future.exception()
                    if raised is None:
                        yield future.result()
                    elif not isinstance(raised, _StoppedError):
                        error = error or raised
            if error is not None:
                raise error
        finally:
            gate.stop.set()
            pool.shutdown(wait=False, cancel_futures=True)

    def _ask(self, question: Question, gate: _Gate) -> Reply:
        body, failures, sent_away = self._body(question), 0, 0
        while True:
            gate.pass_through()
            try:
                return self._answer(question, body)
            except _PassingError as error:
                failure = error
            if failure.wait_s is not None and sent_away < _MOST_SENT_AWAY:
                sent_away += 1
                gate.close_for(failure.wait_s)
                gate.sleep(self.patience.wait_s(1))
                continue
            failures += 1
            if failures >= self.patience.tries:
                break
            gate.sleep(self.patience.wait_s(failures))
        if failure.busy:  # the server is busy, so the image is not the cause of the failure
            raise UserError(
                f"the server at {self.place.url} is too busy ({failure})",
                f"lower {option('concurrency')}, or {again()} later to resume",
            )
        return Reply(question, failure=f"the server failed {failures} times: {failure}")

    def _body(self, question: Question) -> bytes:
        asking, attempt = self.asking, question.attempt
        image = {"type": "image_url", "image_url": {"url": data_url(question.image)}}
        content = [image, {"type": "text", "text": asking.prompt}]
        settings = {
            "model": self.model,
            "messages": [{"role": "user", "content": content}],
            "max_tokens": asking.max_tokens,
            "temperature": asking.temperature_of(attempt),
            "seed": asking.seed + attempt,
            "stream": False,
        }
        return json.dumps(settings).encode()

    def _answer(self, question: Question, body: bytes) -> Reply:
        response, content = self._exchange("POST", "/chat/completions", body)
        status = response.status
        if status == 200:
            return read_answer(question, content)
        said = self._said(content)
        if status in (429, 503):
            wait_s = _asked_wait_s(response.getheader("Retry-After"), self.place.url)
            raise _PassingError(f"status {status}: {said}", busy=True, wait_s=wait_s)
        if status == 408 or status >= 500:
            raise _PassingError(f"status {status}: {said}")
        if 300 <= status < 400:
            to = _printable(response.getheader("Location", "nowhere"))
            raise UserError(
                f"{self.place.url} redirects to {to}. tintype does not follow this: it sends images and the key "
                f"only to the server that you named",
                f"if the new address is right, give it as {option('server')}",
            )
        raise UserError(f"the server at {self.place.url} rejects the request (status {status}): {said}")

    def _said(self, content: bytes) -> str:
        """Return the server's error message. If the message contains the API key, the key is removed."""
        try:
            found = json.loads(content)
            error = found.get("error", found)
            text = str(error.get("message", error) if isinstance(error, dict) else error)
        except (ValueError, RecursionError, AttributeError):
            text = content.decode(errors="replace")
        return _printable(text.replace(self.key, "…") if self.key else text) or "the server gives no reason"

    def _exchange(self, method: str, path: str, body: bytes | None) -> tuple[http.client.HTTPResponse, bytes]:
        """Send one request on a new connection.

        A socket's time-out restarts with each received byte, so a slow server could block a thread forever. Therefore a
        timer closes the connection.
        """
        headers = {"Accept": "application/json", "Connection": "close"}
        if body is not None:
            headers["Content-Type"] = "application/json"
        if self.key is not None:
            headers["Authorization"] = f"Bearer {self.key}"
        timeout_s, over = self.patience.timeout_s, threading.Event()
        connection = self.place.connection(timeout_s)

        def cut() -> None:
            over.set()
            with suppress(OSError):  # the socket is closed already
                connected.shutdown(socket.SHUT_RDWR)

        timer = threading.Timer(timeout_s, cut)
        timer.daemon = True
        try:
            connection.connect()
            connected = connection.sock
            timer.start()
            connection.request(method, self.place.path + path, body, headers)
            with connection.getresponse() as response:
                content = response.read(_MOST_BYTES + 1)
            if over.is_set():
                raise TimeoutError
        except (OSError, http.client.HTTPException, ValueError) as error:
            late = over.is_set() or isinstance(error, TimeoutError)
            raise _PassingError(
                f"the server gave no complete answer within {timeout_s:g} s" if late else _reason(error)
            ) from None
        finally:
            timer.cancel()
            connection.close()
        if len(content) > _MOST_BYTES:
            raise _PassingError(f"the server's answer has more than {_MOST_BYTES >> 20} MiB")
        return response, content


def data_url(encoded: Encoded) -> str:
    """Return the image as a data URL. A format that some servers cannot read is converted to PNG."""
    content = encoded.content
    with open_image(content, encoded.name) as image:
        form, mode = image.format or "?", image.mode
    if form not in _AT_ONCE or mode not in ("RGB", "L"):
        form, content = "PNG", encode(decode(encoded), "PNG")
    return f"data:image/{form.lower()};base64,{base64.b64encode(content).decode()}"


def read_answer(question: Question, content: bytes) -> Reply:
    try:
        said = json.loads(content)
        choice = said["choices"][0]
        message = choice["message"]
        text, reason, refusal = message.get("content"), choice.get("finish_reason"), message.get("refusal")
        usage = said.get("usage") or {}
        tokens = [usage.get(name) or 0 for name in ("prompt_tokens", "completion_tokens")]
    except (ValueError, RecursionError, LookupError, TypeError, AttributeError):
        raise _PassingError("the server's answer is not a chat completion in JSON") from None
    if not (text is None or isinstance(text, str)) or not all(type(count) is int and count >= 0 for count in tokens):
        raise _PassingError("the server's answer is not a chat completion in JSON")
    if max(tokens) > MOST_TOKENS:
        raise _PassingError(f"the server's answer reports more than {MOST_TOKENS:,} tokens")
    refused = bool(refusal) or reason == "content_filter"
    return Reply(question, text, reason == "length", refused, None, tokens[0], tokens[1])


def _asked_wait_s(said: str | None, url: str) -> float | None:
    """Return the seconds of a `Retry-After` header, which may be a date; None if it is missing or invalid."""
    if said is None or len(said) > _LONGEST_WAIT:
        return None
    try:
        seconds = float(said)
    except ValueError:
        try:
            seconds = parsedate_to_datetime(said).timestamp() - time.time()
        except (ValueError, TypeError, OverflowError):
            return None
    if not seconds <= _MOST_WAIT_S:  # "nan" is a float too
        raise UserError(f"the server at {url} asks to wait {said[:40]} s", f"wait that long, then {again()} to resume")
    return max(0.0, seconds)


def _reason(error: BaseException) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"the server's certificate is not trusted: {error.verify_message}"
    if isinstance(error, http.client.RemoteDisconnected):
        return "the connection was cut before an answer came"
    if isinstance(error, http.client.IncompleteRead):
        return "the connection was cut in the middle of an answer"
    text = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return _printable(text) or type(error).__name__


def _printable(text: str) -> str:
    """Return the text as one line without control characters, truncated for messages."""
    plain = " ".join("".join(c if c.isprintable() else " " for c in text[:4000]).split())
    return shortened(plain, 500)
