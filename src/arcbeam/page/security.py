"""Who may read the page: the names of this machine, a token, and what a browser may load.

Owns the checks before each request and the headers of each answer. Must not know jobs.
"""

from __future__ import annotations

import hashlib
import hmac
from urllib.parse import parse_qs, urlencode

from starlette.middleware.base import BaseHTTPMiddleware, RequestResponseEndpoint
from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp
from typing_extensions import override

COOKIE = "arcbeam-page"

LOOPBACK = frozenset({"127.0.0.1", "localhost", "::1"})

_HEADERS = {
    "Content-Security-Policy": "default-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}


class Guard(BaseHTTPMiddleware):
    """Refuses other hosts' names, methods that change something, and requests without the token.

    The token is passed once, as `?token=`. A cookie with its hash replaces it, so it stays in no address.

    Args:
        app: what is guarded.
        token: "": none is needed.
    """

    def __init__(self, app: ASGIApp, token: str = "") -> None:
        super().__init__(app)
        self._token = token
        self._proof = hashlib.sha256(f"{COOKIE}:{token}".encode()).hexdigest()

    @override
    async def dispatch(self, request: Request, call_next: RequestResponseEndpoint) -> Response:
        response = self._refusal(request) or self._login(request) or await call_next(request)
        response.headers.update(_HEADERS)
        return response

    def _refusal(self, request: Request) -> Response | None:
        # A foreign name that resolves to this machine (DNS rebinding) would let its site read the page.
        if request.url.hostname not in LOOPBACK:
            return PlainTextResponse("this page answers to localhost and 127.0.0.1 only", 421)
        if request.method not in ("GET", "HEAD"):
            return PlainTextResponse("this page only shows jobs", 405)
        return None

    def _login(self, request: Request) -> Response | None:
        if not self._token:
            return None
        query = parse_qs(request.url.query, keep_blank_values=True)
        if given := query.pop("token", None):
            if not hmac.compare_digest(given[-1].encode(), self._token.encode()):
                return PlainTextResponse("the token is wrong", 401)
            rest = urlencode(query, doseq=True)
            # Without the leading slashes of a path such as //host, which a browser takes for another host.
            response = RedirectResponse("/" + request.url.path.lstrip("/\\") + (f"?{rest}" if rest else ""), 303)
            response.set_cookie(COOKIE, self._proof, httponly=True, samesite="strict")
            return response
        if hmac.compare_digest(request.cookies.get(COOKIE, "").encode(), self._proof.encode()):
            return None
        return PlainTextResponse("open this page with its token once: /?token=TOKEN", 401)
