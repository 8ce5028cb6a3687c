"""Who may read the page and change jobs with it: names of this machine, a token, forms of the page itself.

Owns the checks before each request, the login, form tokens, and the headers of each answer. Must not know jobs.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import math
import secrets
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple
from urllib.parse import parse_qs, urlencode

from markupsafe import escape
from starlette.datastructures import MutableHeaders
from starlette.requests import Request
from starlette.responses import FileResponse, HTMLResponse, PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from arcbeam.page.access.throttle import Throttle

COOKIE = "arcbeam-page"
"""The name of a cookie begins with this; see `cookie_of`."""

LOGIN = "/login"
"""The only path that answers without the token."""

LOOPBACK = frozenset({"127.0.0.1", "localhost", "::1"})

_FORM_BYTES_MAX: Final = 10_000
"""Bytes."""

_HEADERS = {
    "Content-Security-Policy": "default-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    # SUBTLE: not no-referrer, with which browsers send `Origin: null` even from the page itself.
    "Referrer-Policy": "same-origin",
    "Cache-Control": "no-store",
}

_FORM = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>Log in – arcbeam</title><link rel="stylesheet" href="/login?style"></head>
<body><header>arcbeam jobs</header><main><h1>Log in</h1><p class="headline {level}"><strong>{word}</strong> {text}</p>
<form method="post" action="/login"><input type="hidden" name="to" value="{to}">
<label for="token">Token</label> <input id="token" name="token" type="password"
autocomplete="current-password" required autofocus> <button>Log in</button></form>
<p class="quiet">It is in the address that was printed at the start, or in the file that the server was started with:
<code>--token-file</code>.</p></main></body></html>
"""
_STYLE: Final = Path(__file__).parents[1] / "static" / "page.css"
"""The path of the login answers with it, too: all others need the token."""


def cookie_of(request: Request) -> str:
    """Return the name of the cookie: browsers send the cookies of a host to all of its ports, so it has the port."""
    port = request.headers.get("host", "").rpartition(":")[2]
    return f"{COOKIE}-{port if port.isdecimal() else request.url.scheme}"


def _login_form(word: str, text: str, level: str, code: int, to: str) -> Response:
    return HTMLResponse(_FORM.format(word=word, text=text, level=level, to=escape(to)), code)


def _needed(code: int, to: str) -> Response:
    return _login_form("Locked", "This page needs its token.", "warning", code, to)


def _own(address: str) -> str:
    """Return an address within this page. A browser takes //host for another host, and a backslash for a slash."""
    return "/" + address.lstrip("/\\") if address.startswith("/") else "/"


def _wanted(request: Request, query: Mapping[str, Sequence[str]]) -> str:
    """Return where a login leads: to the requested page, or as the address of the login says."""
    if request.url.path == LOGIN:
        return _own(query.get("to", ["/"])[-1])
    rest = urlencode(query, doseq=True)
    return _own(request.url.path + (f"?{rest}" if rest else ""))


class FormTokens:
    """Makes and checks the tokens of forms: only a page that this process has made for a session has them."""

    def __init__(self) -> None:
        self._key = secrets.token_bytes(32)

    def token(self, request: Request, *parts: str) -> str:
        """Return the token of a form in the answer to a request.

        Args:
            request: of the session.
            parts: what the form does.
        """
        # As JSON, no two lists of parts are the same text, whatever characters a path or a form brings.
        text = json.dumps((request.cookies.get(cookie_of(request), ""), *parts))
        return hmac.new(self._key, text.encode(), hashlib.sha256).hexdigest()

    def holds(self, given: str, request: Request, *parts: str) -> bool:
        """Return whether a form has the token that `token` returns."""
        return hmac.compare_digest(given.encode(), self.token(request, *parts).encode())


async def form_of(request: Request) -> dict[str, str]:
    """Return the fields of a form that a browser has sent; empty if it is too long, or is none."""
    size = request.headers.get("content-length", "")
    if not size.isdecimal() or int(size) > _FORM_BYTES_MAX:
        return {}
    fields = parse_qs((await request.body()).decode(errors="replace"), keep_blank_values=True)
    return {name: values[-1] for name, values in fields.items()}


class _Refused(NamedTuple):
    """Why a token is refused: for people, and as the code of the answer."""

    text: str
    code: int


class Guard:
    """Refuses other hosts' names, forms of other sites, and requests without the token.

    The token is passed once, as `?token=` or in a form. A cookie with its hash replaces it, so it stays in no address.

    An ASGI application: starlette's `BaseHTTPMiddleware` would pass each event of a stream through a queue and a task.

    Args:
        app: what is guarded.
        token: "": none is needed.
        local: answer to names of this machine only.
    """

    def __init__(self, app: ASGIApp, token: str = "", local: bool = True) -> None:
        self._app, self._token, self._local, self._throttle = app, token, local, Throttle()
        self._proof = hashlib.sha256(f"{COOKIE}:{token}".encode()).hexdigest()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, or pass it on."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(_HEADERS)
            await send(message)

        request = Request(scope, receive)
        response = self._refusal(request) or await self._login(request)
        await (self._app if response is None else response)(scope, receive, guarded)

    def _refusal(self, request: Request) -> Response | None:
        # A foreign name that resolves to this machine (DNS rebinding) would let its site read the page.
        if self._local and request.url.hostname not in LOOPBACK:
            return PlainTextResponse("this page answers to localhost and 127.0.0.1 only", 421)
        if request.method not in ("GET", "HEAD", "POST"):
            return PlainTextResponse("this page has no such method", 405)
        origin = f"{request.url.scheme}://{request.headers.get('host', '')}"
        if request.method == "POST" and request.headers.get("origin", "") != origin:
            return PlainTextResponse("this form is not of this page; nothing was done", 403)
        return None

    async def _login(self, request: Request) -> Response | None:
        if not self._token:
            return None
        query = parse_qs(request.url.query, keep_blank_values=True)
        if request.method != "POST" and (words := query.pop("token", None)):
            if (refused := self._refused(request, words[-1])) is not None:
                return PlainTextResponse(refused.text, refused.code)
            return self._admitted(request, _wanted(request, query))
        if request.url.path == LOGIN:
            return await self._login_page(request, query)
        if self._is_session(request):
            return None
        # For programs, as Prometheus. Not for forms: only a session has their tokens.
        kind, _, given = request.headers.get("authorization", "").partition(" ")
        if kind == "Bearer" and request.method != "POST":
            refused = self._refused(request, given)
            return None if refused is None else PlainTextResponse(refused.text, refused.code)
        return _needed(401, _wanted(request, query))

    async def _login_page(self, request: Request, query: Mapping[str, Sequence[str]]) -> Response:
        if request.method == "POST":
            form = await form_of(request)
            to = _own(form.get("to", "/"))
            if (refused := self._refused(request, form.get("token", ""))) is None:
                return self._admitted(request, to)
            return _login_form("Refused", refused.text, "error", refused.code, to)
        if "style" in query:
            return FileResponse(_STYLE)
        to = _wanted(request, query)
        return RedirectResponse(to, 303) if self._is_session(request) else _needed(200, to)

    def _is_session(self, request: Request) -> bool:
        return hmac.compare_digest(request.cookies.get(cookie_of(request), "").encode(), self._proof.encode())

    def _refused(self, request: Request, given: str) -> _Refused | None:
        """Return why a token is refused; None if it is right."""
        address = request.client.host if request.client is not None else ""
        # SUBTLE: a right token is refused then, too. Otherwise the answer would tell which one is right.
        if seconds := self._throttle.wait(address):
            return _Refused(f"Too many wrong tokens: try again in {math.ceil(seconds)} s.", 429)
        if hmac.compare_digest(given.encode(), self._token.encode()):
            return None
        self._throttle.failed(address)
        return _Refused("The token is wrong.", 401)

    def _admitted(self, request: Request, to: str) -> Response:
        response = RedirectResponse(to, 303)
        secure = request.url.scheme == "https"
        response.set_cookie(cookie_of(request), self._proof, httponly=True, samesite="strict", secure=secure)
        return response
