"""Check each request by its host, its token, its origin, and its path, which must be in the served folder.

Any web page that is open in a browser can make the browser send requests to this machine. So the `Host` header of a
request must name this server. A request is refused if its `Host` header is a foreign name that resolves to this
machine. Requests that another site started are refused. Requests that change something must come from a page of this
server. If other machines can reach the server, a request also needs the token.
"""

from __future__ import annotations

import hmac
import ipaddress
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from email.message import Message
from http import HTTPStatus
from http.cookies import CookieError, SimpleCookie
from pathlib import Path
from typing import TypeAlias
from urllib.parse import parse_qs, unquote, urlsplit

from tintype.page.template import inline_script
from tintype.study.report.html import SCRIPTS

Headers: TypeAlias = "Mapping[str, str] | Message[str, str]"
_SAME = ("same-origin", "none")
"""Values of the header `Sec-Fetch-Site` for requests that were started by a page of this server or by the user."""
_LOCAL_NAMES = ("localhost", "127.0.0.1", "::1")
_ANYWHERE = ("0.0.0.0", "::", "")
CONTENT_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
REPORT_POLICY = (
    "sandbox allow-scripts; default-src 'none'; img-src data:; style-src 'unsafe-inline'; "
    f"script-src {inline_script(*SCRIPTS)[1]}; frame-ancestors 'none'"
)
"""Content security policy for a stored report, which may come from another person.

A browser runs only the report script of this version of tintype, identified by the script's hash. The script has the
same rights as a script from another site.
"""
HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-store",
}


class RefusedError(Exception):
    """Raised for a refused request, with the HTTP status and the reason."""

    def __init__(self, status: HTTPStatus, words: str) -> None:
        super().__init__(words)
        self.status, self.words = status, words


def is_local(host: str) -> bool:
    """Return whether an address can be reached only from this machine."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def new_token() -> str:
    return secrets.token_urlsafe(24)


@dataclass(frozen=True)
class Guard:
    """The rules by which a server checks requests. `token` is None if requests need no token."""

    host: str
    port: int
    token: str | None = field(default=None, repr=False)

    @property
    def cookie(self) -> str:
        """Return the cookie's name, which has the port, since servers on all ports of a machine share cookies."""
        return f"tintype-{self.port}"

    def check(self, method: str, target: str, headers: Headers) -> None:
        """Raise RefusedError for a request that must not be answered."""
        self._check_host(headers.get("Host", ""))
        self._check_site(method, headers)
        if self.token is not None and not self.knows_token(target, headers):
            raise RefusedError(
                HTTPStatus.UNAUTHORIZED,
                "The access token is missing or wrong: open the full address that the server printed at its start.",
            )

    def _check_host(self, given: str) -> None:
        try:
            split = urlsplit(f"//{given}")
            name, port = split.hostname or "", split.port or 80
        except ValueError:
            name, port = "", 0
        if self.host in _ANYWHERE:
            return  # such a server has many names, and needs a token
        names = (*_LOCAL_NAMES, self.host) if is_local(self.host) else (self.host,)
        if name.lower() not in [one.lower() for one in names] or port != self.port:
            raise RefusedError(
                HTTPStatus.FORBIDDEN, "The header Host of the request does not match the address of this server."
            )

    def _check_site(self, method: str, headers: Headers) -> None:
        site, mode = headers.get("Sec-Fetch-Site"), headers.get("Sec-Fetch-Mode")
        opens_page = method == "GET" and mode == "navigate" and headers.get("Sec-Fetch-Dest", "document") == "document"
        if site is not None and site not in _SAME and not opens_page:
            raise RefusedError(HTTPStatus.FORBIDDEN, "The request came from a page of another website.")
        origin = headers.get("Origin")
        if origin is not None and origin != f"http://{headers.get('Host', '')}":
            raise RefusedError(HTTPStatus.FORBIDDEN, "The request came from a page of another website.")
        if method not in ("GET", "HEAD"):
            if origin is None:
                raise RefusedError(HTTPStatus.FORBIDDEN, "The request has no header Origin.")
            if headers.get("Content-Type", "").partition(";")[0].strip() != "application/json":
                raise RefusedError(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, "The request's content must be JSON.")

    def knows_token(self, target: str, headers: Headers) -> bool:
        """Return whether a request contains the token in its URL, its cookie or its Authorization header."""
        given = [*parse_qs(urlsplit(target).query).get("token", [])]
        try:
            cookies = SimpleCookie(headers.get("Cookie", ""))
        except CookieError:
            cookies = SimpleCookie()
        given += [cookies[self.cookie].value] if self.cookie in cookies else []
        scheme, _, bearer = headers.get("Authorization", "").partition(" ")
        given += [bearer] if scheme == "Bearer" else []
        wanted = (self.token or "").encode()
        return any([hmac.compare_digest(one.encode(), wanted) for one in given])  # noqa: C419 (each is compared)

    def set_cookie(self) -> str:
        """Return the `Set-Cookie` value for the token. Scripts and other sites cannot read this cookie."""
        return f"{self.cookie}={self.token}; HttpOnly; SameSite=Strict; Path=/"


def inside(root: Path, quoted: str) -> Path:
    """Return the file or folder that the path in a URL names. Refuse a path outside of `root`.

    Links are resolved before the check. Names with a leading dot are refused too, since hidden files are not served.
    """
    missing = RefusedError(HTTPStatus.NOT_FOUND, "There is nothing at this address.")
    try:
        name = unquote(quoted, errors="strict")
    except UnicodeDecodeError:
        raise missing from None
    parts = [part for part in name.split("/") if part]
    if "\0" in name or "\\" in name or any(part.startswith(".") for part in parts):
        raise missing
    try:
        found = root.joinpath(*parts).resolve(strict=True)
    except (OSError, RuntimeError):
        raise missing from None
    if not found.is_relative_to(root):
        raise missing
    return found
