"""Updates of an open page: what is sent, in which order and size, and when the page has to be loaded again."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Mapping
from typing import Any

import pytest
from starlette.testclient import TestClient

from arcbeam.model.commits import CommitMode
from arcbeam.page import live
from arcbeam.page.app import SETTLES_SECONDS, app_of
from arcbeam.page.live import UPDATE_BYTES, Board, Rendered, Stream, updates
from arcbeam.page.sources import Listed
from tests.page import samples
from tests.page.test_app import BASE

pytestmark = pytest.mark.contract("PAGE-11")


def rendered(fragments: Mapping[str, str], live: bool = True, cost: float = 0.0) -> Rendered:
    return Rendered("".join(fragments.values()), fragments, live, cost=cost)


def sent(messages: Any) -> list[tuple[str, Any]]:
    found = []
    for message in messages:
        kind, _, data = message.strip().split("\n")
        found.append((kind.removeprefix("event: "), json.loads(data.removeprefix("data: "))))
    return found


def test_only_changed_fragments_are_sent() -> None:
    before = rendered({"a": "<p>1</p>", "b": "<p>2</p>"})
    stream = Stream(before.shape, before.digests)
    assert sent(stream.messages(before)) == []
    after = rendered({"a": "<p>1</p>", "b": "<p>3</p>"})
    assert sent(stream.messages(after)) == [("change", [["b", "<p>3</p>"]])]
    assert sent(stream.messages(after)) == []


def versions(messages: Any) -> list[str]:
    return [message.split("\n")[1].removeprefix("id: ") for message in messages]


def test_version_is_that_of_the_last_complete_update() -> None:
    pages = [rendered({"a": f"<p>{n}</p>", "b": f"<p>{n // 2}</p>"}) for n in range(5)]
    stream = Stream(pages[0].shape, pages[0].digests)
    for page in pages[1:]:
        messages = stream.messages(page)
        assert versions(messages) == [stream.version] == [page.version]
        assert stream.shown is page
    # Two more than fit into one update: what the browser shows has no version, until it has all.
    large = [rendered({str(at): f"{n}" * UPDATE_BYTES for at in range(3)}) for n in range(3)]
    stream = Stream(large[0].shape, large[0].digests)
    for page in large[1:]:
        found = [versions(stream.messages(page)) for _ in range(4)]
        assert found == [[f"{page.shape}-"], [f"{page.shape}-"], [page.version], []]
        assert stream.version == page.version


def test_passing_time_alone_is_no_change() -> None:
    before = rendered({"a": '<p><time data-at="7">1 s ago</time></p>'})
    stream = Stream(before.shape, before.digests)
    assert sent(stream.messages(rendered({"a": '<p><time data-at="7">9 s ago</time></p>'}))) == []
    assert sent(stream.messages(rendered({"a": '<p><time data-at="8">9 s ago</time></p>'}))) != []


def test_update_is_bounded_and_no_fragment_waits_forever() -> None:
    def turn(number: int) -> Rendered:
        names = [*map(str, range(199)), "headline"]
        return rendered(dict.fromkeys(names, f"<p>{number} {'x' * 400}</p>"))

    stream = Stream(turn(0).shape, turn(0).digests)
    seen: set[str] = set()
    for number in range(1, 6):
        messages = stream.messages(turn(number))
        assert sum(map(len, messages)) <= UPDATE_BYTES
        ((_, fragments),) = sent(messages)
        # The headline never waits.
        assert fragments[0][0] == "headline"
        seen |= {id for id, _ in fragments}
    assert len(seen) == 200


def test_changed_shape_loads_the_page_again() -> None:
    before = rendered({"a": "1"})
    stream = Stream(before.shape, before.digests)
    assert sent(stream.messages(rendered({"a": "1", "b": "2"}))) == [("reload", "")]


def test_ended_page_gets_all_before_its_end() -> None:
    before = rendered({str(at): "" for at in range(100)})
    stream = Stream(before.shape, before.digests)
    last = rendered({str(at): "x" * 400 for at in range(100)}, live=False)
    kinds = [kind for _ in range(5) for kind, _ in sent(stream.messages(last))]
    assert kinds[: kinds.index("end") + 1] == ["change", "change", "change", "end"]


def test_page_is_rendered_once_for_all_viewers() -> None:
    seconds, made = [0.0], []
    board = Board(lambda: seconds[0])

    def make() -> Rendered:
        made.append(seconds[0])
        return rendered({"a": "1"}, cost=0.006)

    def turn(at: float) -> None:
        seconds[0] = at
        for _ in range(5):
            board.newest("/job/a", make)

    for at in (0.0, 0.5, 1.0, 1.8, 2.0, 3.0, 4.0):
        turn(at)
    # It takes 6 ms, so it is rendered every other second: 0.3 % of a core.
    assert made == [0.0, 2.0, 4.0]


def test_fragment_is_encoded_once_for_all_viewers(monkeypatch: pytest.MonkeyPatch) -> None:
    before, now = rendered({"a": "1", "b": "1"}), rendered({"a": "2", "b": "1"})
    viewers = [Stream(before.shape, before.digests) for _ in range(5)]
    first = viewers[0].messages(now)
    monkeypatch.setattr(live.json, "dumps", None)
    assert [viewer.messages(now) for viewer in viewers[1:]] == [first] * 4
    assert [viewer.messages(now) for viewer in viewers] == [()] * 5


def test_costly_page_is_rendered_every_five_seconds() -> None:
    seconds, made = [0.0], []
    board = Board(lambda: seconds[0])

    def make() -> Rendered:
        made.append(seconds[0])
        return rendered({"a": "1"}, cost=10.0)

    for at in range(11):
        seconds[0] = float(at)
        board.newest("/job/a", make)
    assert made == [0.0, 5.0, 10.0]


def brief(board: Board, page: Rendered, version: str) -> list[str]:
    async def all() -> list[str]:
        return [each async for each in updates(board, "/", lambda: page, version, brief=True)]

    return asyncio.run(all())


def test_browser_that_shows_unknown_things_gets_all_again() -> None:
    board, page = Board(), rendered({"a": "1"})
    board.loaded("/", page)
    retry, change = brief(board, page, f"{page.shape}-")
    assert retry.startswith("retry:")
    assert sent([change]) == [("change", [["a", "1"]])]


def test_browser_that_comes_back_gets_what_has_changed() -> None:
    first, second = rendered({"a": "1", "b": "1"}), rendered({"a": "2", "b": "1"})
    _, change = brief(board_with(first), second, first.version)
    assert sent([change]) == [("change", [["a", "2"]])]
    assert f"id: {second.version}\n" in change
    # It was hidden, and what it saw last is what there was at first.
    third = rendered({"a": "1", "b": "3"})
    board = board_with(second)
    _, change = brief(board, third, second.version)
    assert sent([change]) == [("change", [["a", "1"], ["b", "3"]])]
    _, alive = brief(board, third, third.version)
    assert sent([alive]) == [("alive", "")]
    assert f"id: {third.version}\n" in alive


def board_with(*pages: Rendered) -> Board:
    board = Board()
    for page in pages:
        board.shown(page)
    return board


@pytest.mark.parametrize(
    ("seconds", "follows"), [(0.0, True), (0.5, True), (SETTLES_SECONDS - 1, True), (SETTLES_SECONDS, False)]
)
def test_page_follows_an_ended_job_until_its_figures_are_complete(
    monkeypatch: pytest.MonkeyPatch, seconds: float, follows: bool
) -> None:
    status = samples.status(3, samples.now(), mode=CommitMode.DONE)
    monkeypatch.setattr(time, "time", lambda: status.committed / 1e6 + seconds)
    jobs = samples.Jobs(Listed("a", "/a", status))
    page = TestClient(app_of(jobs), base_url=BASE)
    assert ("data-version" in page.get("/job/a").text) is follows
    end = {"time": status.committed, "kind": "end", "text": "done"}
    jobs.histories["a"] = {"rings": [], "events": [end]}
    assert "data-version" not in page.get("/job/a").text


def test_stream_of_ended_job_ends() -> None:
    now = samples.now()
    jobs = samples.Jobs(Listed("a", "/a", samples.status(3, now)), plans={"a": samples.plan_of(3)})
    page = TestClient(app_of(jobs), base_url=BASE)
    text = page.get("/job/a").text
    version = text.partition('data-version="')[2].partition('"')[0]
    jobs.found["a"] = Listed("a", "/a", samples.status(3, now - 60_000_000, mode=CommitMode.DONE))
    # Another server does not know the version, and sends all.
    page = TestClient(app_of(jobs), base_url=BASE)
    answer = page.get("/job/a/events", params={"version": version})
    assert answer.headers["content-type"].startswith("text/event-stream")
    _, *events = answer.text.strip().split("\n\n")
    (change, fragments), (end, _) = sent(events)
    assert (change, end) == ("change", "end")
    changed = dict(fragments)
    assert "The job has ended: it is done." in changed["headline"]
    # Every fragment is an element of its id, which the page has.
    for id, html in changed.items():
        assert f'id="{id}"' in html.partition(">")[0]
        assert f'id="{id}"' in text


@pytest.mark.parametrize("path", ["/", "/job/a", "/job/a/stage/0"])
def test_fragments_are_in_the_page(monkeypatch: pytest.MonkeyPatch, path: str) -> None:
    now = samples.now()
    # Gaps are those of the moment of the view, and there are two views.
    monkeypatch.setattr(time, "time", lambda: now / 1e6)
    jobs = samples.Jobs(Listed("a", "/a", samples.status(3, now)), plans={"a": samples.plan_of(3)})
    jobs.histories["a"] = samples.history(now, 20)
    page = TestClient(app_of(jobs), base_url=BASE)
    shape = page.get(path).text.partition('data-version="')[2].partition("-")[0]
    jobs.found["a"] = Listed("a", "/a", samples.status(3, now - 60_000_000, mode=CommitMode.DONE))
    # Another server does not know the version, and sends all, up to the size of an update.
    page = TestClient(app_of(jobs), base_url=BASE)
    events = page.get(f"{path.rstrip('/')}/events", params={"version": shape}).text
    assert "event: change" in events
    text = page.get(path).text
    for id, html in sent([events.strip().split("\n\n")[1]])[0][1]:
        assert html in text, id
