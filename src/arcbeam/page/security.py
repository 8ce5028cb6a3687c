"""Who may read the page and change jobs with it: names of this machine, a token, forms of the page itself.

Owns the checks before each request, the login, form tokens, and the headers of each answer. Must not know jobs.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from pathlib import Path
from typing import Final
from urllib.parse import parse_qs, urlencode

from starlette.middleware.base import BaseHTTPMiddleware, RequestResponseEndpoint
from starlette.requests import Request
from starlette.responses import FileResponse, HTMLResponse, PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp
from typing_extensions import override

COOKIE = "arcbeam-page"

LOGIN = "/login"
"""The only path that answers without the token."""

LOOPBACK = frozenset({"127.0.0.1", "localhost", "::1"})

_LONGEST_FORM: Final = 10_000
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
<form method="post" action="/login"><label for="token">Token</label> <input id="token" name="token" type="password"
autocomplete="current-password" required autofocus> <button>Log in</button></form>
<p class="quiet">It is in the file that the server was started with: <code>--token-file</code>.</p></main></body></html>
"""
_STYLE: Final = Path(__file__).parent / "static" / "page.css"
"""The path of the login answers with it, too: all others need the token."""


def _login_form(word: str, text: str, level: str, code: int) -> Response:
    return HTMLResponse(_FORM.format(word=word, text=text, level=level), code)


def _needed(code: int) -> Response:
    return _login_form("Locked", "This page needs its token.", "warning", code)


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
        text = "\0".join((request.cookies.get(COOKIE, ""), *parts))
        return hmac.new(self._key, text.encode(), hashlib.sha256).hexdigest()

    def holds(self, given: str, request: Request, *parts: str) -> bool:
        """Return whether a form has the token that `token` returns."""
        return hmac.compare_digest(given.encode(), self.token(request, *parts).encode())


async def form_of(request: Request) -> dict[str, str]:
    """Return the fields of a form that a browser has sent; empty if it is too long, or is none."""
    size = request.headers.get("content-length", "")
    if not size.isdecimal() or int(size) > _LONGEST_FORM:
        return {}
    fields = parse_qs((await request.body()).decode(errors="replace"), keep_blank_values=True)
    return {name: values[-1] for name, values in fields.items()}


class Guard(BaseHTTPMiddleware):
    """Refuses other hosts' names, forms of other sites, and requests without the token.

    The token is passed once, as `?token=` or in a form. A cookie with its hash replaces it, so it stays in no address.

    Args:
        app: what is guarded.
        token: "": none is needed.
        local: answer to names of this machine only.
    """

    def __init__(self, app: ASGIApp, token: str = "", local: bool = True) -> None:
        super().__init__(app)
        self._token, self._local = token, local
        self._proof = hashlib.sha256(f"{COOKIE}:{token}".encode()).hexdigest()

    @override
    async def dispatch(self, request: Request, call_next: RequestResponseEndpoint) -> Response:
        response = self._refusal(request) or await self._login(request) or await call_next(request)
        response.headers.update(_HEADERS)
        return response

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
            if not self._is_token(words[-1]):
                return PlainTextResponse("the token is wrong", 401)
            rest = urlencode(query, doseq=True)
            # Without the leading slashes of a path such as //host, which a browser takes for another host.
            return self._admitted(request, "/" + request.url.path.lstrip("/\\") + (f"?{rest}" if rest else ""))
        if request.url.path == LOGIN:
            if request.method != "POST":
                return FileResponse(_STYLE) if "style" in query else _needed(200)
            if self._is_token((await form_of(request)).get("token", "")):
                return self._admitted(request, "/")
            return _login_form("Refused", "The token is wrong.", "error", 401)
        if hmac.compare_digest(request.cookies.get(COOKIE, "").encode(), self._proof.encode()):
            return None
        # For programs, as Prometheus. Not for forms: only a session has their tokens.
        kind, _, given = request.headers.get("authorization", "").partition(" ")
        if kind == "Bearer" and request.method != "POST" and self._is_token(given):
            return None
        return _needed(401)

    def _is_token(self, given: str) -> bool:
        return hmac.compare_digest(given.encode(), self._token.encode())

    def _admitted(self, request: Request, to: str) -> Response:
        response = RedirectResponse(to, 303)
        secure = request.url.scheme == "https"
        response.set_cookie(COOKIE, self._proof, httponly=True, samesite="strict", secure=secure)
        return response
