"""The login: its cookie, and the page that it leads to."""

from __future__ import annotations

import html
import re
from typing import Any

import pytest
from starlette.requests import Request
from starlette.testclient import TestClient

from arcbeam.page.access.security import FormTokens, cookie_of
from arcbeam.page.access.throttle import TRIES
from arcbeam.page.app import app_of
from tests.page.test_app import Fixed

pytestmark = pytest.mark.contract("PAGE-02")


def at(port: int, token: str) -> TestClient:
    return TestClient(app_of(Fixed(), token), base_url=f"http://127.0.0.1:{port}", follow_redirects=False)


def test_pages_of_two_ports_of_a_host_share_a_browser() -> None:
    one, other = at(8001, "secret"), at(8002, "other")
    # Browsers keep the cookies of a host for all of its ports.
    other.cookies = one.cookies
    for page, token in ((one, "secret"), (other, "other")):
        assert page.get("/").status_code == 401
        assert page.get(f"/?token={token}").status_code == 303
    assert [page.get("/").status_code for page in (one, other)] == [200, 200]


def login(page: TestClient, path: str, token: str = "secret") -> Any:
    """Give the token in the form that a path shows."""
    (to,) = re.findall(r'name="to" value="([^"]*)"', page.get(path).text)
    origin = {"Origin": str(page.base_url).rstrip("/")}
    return page.post("/login", data={"token": token, "to": html.unescape(to)}, headers=origin)


@pytest.mark.parametrize(
    ("path", "to"),
    [
        ("/", "/"),
        ("/login", "/"),
        ("/job/a?span=1", "/job/a?span=1"),
        ("/login?to=/job/a%3Fspan=1", "/job/a?span=1"),
        ("/login?to=//evil.example/", "/evil.example/"),
        ("/login?to=/%5Cevil.example/", "/evil.example/"),
        ("/login?to=/%09/evil.example/", "/%09/evil.example/"),
        ("/login?to=https://evil.example/", "/"),
        ('/login?to=/"><script>', "/%22%3E%3Cscript%3E"),
    ],
)
def test_login_leads_to_the_requested_page_of_this_host(path: str, to: str) -> None:
    page = at(8001, "secret")
    assert "<script" not in page.get(path).text
    assert login(page, path, "wrong").status_code == 401
    answer = login(page, path)
    assert (answer.status_code, answer.headers["location"]) == (303, to)
    # With the cookie, the login does not say that the page is locked.
    for again in ("/login", "/login?token=secret"):
        assert page.get(again).headers["location"] == "/"
    page.cookies.clear()
    answer = page.get(f"{path}{'&' if '?' in path else '?'}token=secret")
    assert (answer.status_code, answer.headers["location"]) == (303, to)


def asking(cookie: str) -> Request:
    """Return a request of a session."""
    headers = [(b"host", b"127.0.0.1:8001"), (b"cookie", cookie.encode())]
    return Request({"type": "http", "method": "GET", "path": "/", "headers": headers, "server": ("127.0.0.1", 8001)})


def test_token_of_a_form_is_for_its_parts_alone() -> None:
    tokens = FormTokens()
    forms = [("ab", "c"), ("a", "bc"), ("abc",), ("abc", ""), ("", "abc"), ("a", "b", "c"), ("c", "ab")]
    forms += [("a\0b", "c"), ("a", "b\0c"), ('a", "b', "c"), ("a", 'b", "c')]
    requests = [asking(""), *(asking(f"{cookie_of(asking(''))}={token}") for token in ("secret", "other", "a"))]
    made = {(at, form): tokens.token(request, *form) for at, request in enumerate(requests) for form in forms}
    assert len(set(made.values())) == len(made)
    for (at, form), token in made.items():
        assert tokens.holds(token, requests[at], *form)
        assert not tokens.holds(token, requests[at - 1], *form)
        assert not any(tokens.holds(token, requests[at], *other) for other in forms if other != form)
        assert not FormTokens().holds(token, requests[at], *form)


def test_many_wrong_tokens_are_refused_however_they_are_given() -> None:
    page = at(8001, "secret")
    bearer = {"Authorization": "Bearer wrong"}
    tries = (
        lambda: page.get("/?token=wrong"),
        lambda: login(page, "/", "wrong"),
        lambda: page.get("/metrics", headers=bearer),
    )
    codes = [tries[number % 3]().status_code for number in range(TRIES + 3)]
    assert codes == [401] * TRIES + [429] * 3
    # Otherwise the answer would tell which token is right.
    right = {"Authorization": "Bearer secret"}
    answers = page.get("/?token=secret"), login(page, "/"), page.get("/metrics", headers=right)
    assert [answer.status_code for answer in answers] == [429] * 3
    assert "try again in 6 s" in answers[1].text


def test_wrong_tokens_do_not_end_a_session() -> None:
    page = at(8001, "secret")
    page.get("/?token=secret")
    for _ in range(TRIES + 1):
        page.get("/?token=wrong")
    assert page.get("/").status_code == 200
