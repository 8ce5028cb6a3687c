"""The page in a real browser: updates, keyboard, small screens, light and dark, and no request to another host.

One browser for the module, and few tests: each takes a second or more.
"""

from __future__ import annotations

import contextlib
import re
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from typing import Any, Final
from urllib.parse import urlsplit

import pytest
from typing_extensions import override

from arcbeam.console.progressline import BatchProgress
from arcbeam.model.commits import CommitMode
from arcbeam.model.timestamps import Timestamp
from arcbeam.page import live
from arcbeam.page.serving import PageServer, PageSettings
from arcbeam.page.sources import Listed, Record
from arcbeam.page.timelines.charts import ROWS_SHOWN
from arcbeam.store.log.endnote import EndNote
from arcbeam.store.log.inspection import SavepointReport
from tests.page import samples
from tests.page.test_control import Controlled, Noted
from tests.page.test_services import COUNT

api = pytest.importorskip("playwright.sync_api", reason="the browser tests need playwright: pip install arcbeam[dev]")
axe = pytest.importorskip(
    "axe_playwright_python.sync_playwright", reason="the browser tests need axe-playwright-python"
)

# Machines that run tests are busy.
api.expect.set_options(timeout=20_000)

CHROMIUM: Final = shutil.which("chromium")
TITLES: Final = ("Take a savepoint", "Suspend the job", "Drain the job", "Cancel the job")
VIEWS: Final = (
    "",
    "job/a",
    "job/a/stage/1",
    "job/a/stage/1/sample",
    "job/a/details",
    "job/a/history",
    "job/a/control/suspend",
    "job/b",
    "job/c",
    "job/d",
    "job/none",
)
DETAILS: Final = {
    "options": {"shards": 3, "checkpoint_dir": f"/data/{'flights' * 20}"},
    "messages": [{"time": 5, "level": "WARNING", "text": "slow" * 50}],
    "log": [
        {"time": 5, "level": "INFO", "stage": stage["name"], "worker": "host:7", "text": "order" * 60}
        for stage in samples.plan_of(6)["stages"]
    ],
    "savepoints": [{**asdict(SavepointReport("before", 3, Timestamp(5), "running")), "path": "/data/before"}],
}

pytestmark = [
    pytest.mark.contract("PAGE-13"),
    pytest.mark.skipif(CHROMIUM is None, reason="the browser tests need chromium: apt-get install chromium"),
]


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    # SUBTLE: not for the session: while it is open, no other test can run an event loop in this thread.
    with api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def jobs() -> samples.Jobs:
    now = samples.now()
    ended = EndNote(0, "FAILED", "KeyError: 'user' in transform 'Sum'")
    return samples.Jobs(
        Listed("a", "/data/flights", samples.status(6, now)),
        Listed("b", "/data/clicks", samples.status(3, now, name="clicks", ended=ended)),
        Listed("c", "/data/none", None, "there is no job in '/data/none'"),
        Listed("d", "words-1f0c", None, name="words", state="RUNNING", since=now, progress=BatchProgress((COUNT,))),
        plans={"a": samples.plan_of(6)},
        histories={"a": samples.history(now)},
        details={"a": DETAILS},
    )


@pytest.fixture
def server(jobs: samples.Jobs) -> Iterator[PageServer]:
    with PageServer(jobs, PageSettings(insecure=True)) as server:
        yield server


@pytest.fixture
def open_page(browser: Any, server: PageServer) -> Iterator[Any]:
    """Opens pages. At the end it checks that the browser asked no other host, and had nothing to complain of."""
    hosts, complaints, contexts = set(), [], []

    def open(path: str, width: int = 1200, **options: Any) -> Any:
        context = browser.new_context(viewport={"width": width, "height": 900}, **options)
        contexts.append(context)
        page = context.new_page()
        page.on("request", lambda request: hosts.add(urlsplit(request.url).netloc))
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("console", lambda message: message.type == "error" and complaints.append(message.text))
        page.goto(server.address + path)
        return page

    yield open
    for context in contexts:
        context.close()
    assert hosts <= {urlsplit(server.address).netloc}
    # A test that stops the server, or asks for what is missing, makes the browser say so.
    expected = ("ERR_CONNECTION", "ERR_INCOMPLETE", "a status of 404", "a status of 503")
    assert [text for text in complaints if not any(word in text for word in expected)] == []


def assert_accessible_and_fits(page: Any, width: int) -> None:
    # A form's answer has its text before its style.
    page.wait_for_load_state()
    assert page.evaluate("document.documentElement.scrollWidth") <= width, page.url
    found = axe.Axe().run(page).response["violations"]
    assert [each["id"] for each in found if each["impact"] in ("serious", "critical")] == [], page.url


@pytest.mark.parametrize(("scheme", "width"), [("light", 1200), ("dark", 320)])
def test_views_are_accessible_and_fit(open_page: Any, scheme: str, width: int) -> None:
    page = open_page("", width, color_scheme=scheme)
    for view in VIEWS:
        page.goto(f"http://{urlsplit(page.url).netloc}/{view}")
        assert_accessible_and_fits(page, width)


def test_long_names_do_not_scroll_sideways(open_page: Any, jobs: samples.Jobs) -> None:
    name, folder, now = "n" * 300, "/data/" + "f" * 300, samples.now()
    ended = EndNote(0, "FAILED", "KeyError: " + "k" * 300)
    jobs.found["a"] = Listed("a", folder, samples.status(3, now, name=name, folder=folder))
    jobs.found["b"] = Listed("b", folder, samples.status(3, now, name=name, folder=folder, ended=ended))
    page = open_page("", 320)
    for view in ("", *(f"job/{id}{part}" for id in "ab" for part in ("", "/details", "/stage/0", "/control/suspend"))):
        page.goto(f"http://{urlsplit(page.url).netloc}/{view}")
        page.wait_for_load_state()
        assert page.evaluate("document.documentElement.scrollWidth") <= 320, view


class Sampled(Controlled):
    """Samples at once: a large element, and an exception, of outputs with long names."""

    @override
    def sample(self, id: str, stage: str, seconds: float) -> Sequence[Record]:
        times = {"time": 99_000_000, "windows": ["GlobalWindow"], "pane": "on time, number 0"}
        texts = ("one word and another " * 100, "unbroken" * 250)
        failure = {"transform": "Divide", "error": "ValueError: 7\n" * 90, "value": "7" * 2_000}
        return [
            {"output": "Count/" * 20 + "Group" * 20, "elements": [{**times, "value": text} for text in texts]},
            {"output": "Divide" * 20, "failure": failure},
        ]


@pytest.mark.parametrize(("scheme", "width"), [("light", 1200), ("dark", 320)])
def test_results_and_login_are_accessible_and_fit(browser: Any, scheme: str, width: int) -> None:
    control = Noted()
    control.go.set()
    source = Sampled(control, Listed("a", "/data/flights", samples.status(3, samples.now())))
    viewport = {"width": width, "height": 900}
    with (
        PageServer(source, PageSettings(token="s3cret")) as server,
        contextlib.closing(browser.new_context(viewport=viewport, color_scheme=scheme)) as context,
    ):
        page = context.new_page()
        page.goto(f"{server.address}job/a")
        assert_accessible_and_fits(page, width)
        page.fill("#token", "s3cret")
        page.click("button")
        # The login leads to the page that was asked for.
        api.expect(page.locator("#headline")).to_be_visible()
        assert page.url == f"{server.address}job/a"
        for form, end in (("stage/1/sample", "Take samples again"), ("control/savepoint", "The request is done")):
            page.goto(f"{server.address}job/a/{form}")
            page.click("button")
            api.expect(page.locator("#result")).to_contain_text(end)
            assert_accessible_and_fits(page, width)


def test_everything_is_reached_by_keyboard(open_page: Any) -> None:
    page = open_page("")
    pressed(page, "flights", "job/a")
    reached = set()
    for _ in range(40):
        page.keyboard.press("Tab")
        reached.add(page.evaluate("document.activeElement.getAttribute('href') ?? document.activeElement.ariaLabel"))
    links = page.evaluate("[...document.querySelectorAll('main a')].map((each) => each.getAttribute('href'))")
    assert {"Graph", "Stages", *links} <= reached
    page.focus(".plan a >> nth=1")
    page.keyboard.press("Enter")
    page.wait_for_url("**/job/a/stage/1")
    pressed(page, "flights", "job/a")
    pressed(page, "Savepoints, user metrics, messages, options", "job/a/details")
    for region in ("Savepoints", "Messages"):
        tabbed(page, region)
    pressed(page, "Back to the job", "job/a")
    pressed(page, "Drain the job", "job/a/control/drain")
    # The way back comes before the button that ends the job.
    tabbed(page, "Back, change nothing")
    tabbed(page, "Drain the job")
    page.keyboard.press("Shift+Tab")
    page.keyboard.press("Enter")
    page.wait_for_url("**/job/a")


def tabbed(page: Any, text: str) -> None:
    """Press Tab until an element with this text or name is in focus."""
    for _ in range(60):
        page.keyboard.press("Tab")
        if page.evaluate("[document.activeElement.textContent, document.activeElement.ariaLabel]").count(text):
            return
    raise AssertionError(f"'{text}' is not reached")


def pressed(page: Any, text: str, leads_to: str) -> None:
    """Reach an element by Tab, and press Enter, which leads to a page."""
    tabbed(page, text)
    page.keyboard.press("Enter")
    page.wait_for_url(f"**/{leads_to}")


def test_changes_arrive_without_loading(open_page: Any, jobs: samples.Jobs) -> None:
    page = open_page("job/a")
    page.evaluate("window.sameDocument = true")
    page.focus("tbody a >> nth=2")
    jobs.found["a"] = Listed("a", "/data/flights", samples.status(6, samples.now(), seed=1, rate=77.0))
    api.expect(page.locator("#figures")).to_contain_text("77 elements/s")
    rate = jobs.found["a"].status.stages[2].read_rate  # type: ignore[union-attr]
    api.expect(page.locator("#g-s2-live")).to_contain_text(f"{rate:,.0f}/s")
    assert page.evaluate("document.activeElement.getAttribute('href')") == "/job/a/stage/2"
    assert page.evaluate("window.sameDocument")
    api.expect(page.locator("#contact")).to_have_text("live")
    jobs.found["a"] = Listed("a", "/data/flights", samples.status(6, samples.now(), mode=CommitMode.DRAINED))
    end = {"time": samples.now(), "kind": "end", "text": "drained"}
    jobs.histories["a"] = {**jobs.histories["a"], "events": [*jobs.histories["a"]["events"], end]}
    api.expect(page.locator("#headline")).to_contain_text("The job has ended: it is drained.")
    api.expect(page.locator("#contact")).to_have_text("")


def test_charts_show_values_and_zoom(open_page: Any, jobs: samples.Jobs) -> None:
    now = samples.now()
    newest = jobs.histories["a"]["rings"][0]["points"][-1]["job"]["backlog"][2]
    page = open_page("job/a?span=0")
    charts = page.locator("#charts figure")
    backlog = charts.filter(has_text="backlog")
    api.expect(backlog.locator("figcaption")).to_contain_text(re.compile(r"backlog .*: \d+$"))
    assert charts.count() == 8
    # A value of the same moment is below each chart.
    backlog.locator(".u-over").hover()
    legend = backlog.locator(".u-legend")
    api.expect(legend).to_contain_text(re.compile(r"time\s*20\d\d-\d\d-\d\d \d\d:\d\d:\d\d"))
    api.expect(legend).to_contain_text(re.compile(r"last\s*\d"))
    api.expect(charts.filter(has_text="watermark gap").locator(".u-legend")).to_contain_text(re.compile(r"last\s*\d"))
    shown = "uPlot.sync('charts').plots.map(({ scales: { x } }) => x.max - x.min)"
    before = page.evaluate(shown)
    box = backlog.locator(".u-over").bounding_box()
    page.mouse.move(box["x"] + box["width"] / 4, box["y"] + 20)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + 20, steps=4)
    page.mouse.up()
    zoomed = page.evaluate(shown)
    assert all(after == pytest.approx(old / 4, rel=0.1) for after, old in zip(zoomed, before, strict=True))
    # Newer values arrive, and leave the zoom.
    jobs.found["a"] = Listed(
        "a", "/data/flights", samples.status(6, now + 1_000_000, micro_batch=42, backlog=newest + 4321.0)
    )
    api.expect(backlog.locator("figcaption")).to_contain_text(f"{newest + 4321:,.0f}")
    assert page.evaluate(shown) == zoomed
    backlog.locator(".u-over").dblclick()
    assert page.evaluate(shown)[0] > before[0] * 0.9


def test_constant_gap_of_years_has_an_axis(open_page: Any, jobs: samples.Jobs) -> None:
    now, behind = samples.now(), 56 * 365 * 86_400 * 1_000_000
    jobs.found["a"] = Listed("a", "/data/flights", samples.status(6, now, behind=behind, watermark=now - behind))
    for point in jobs.histories["a"]["rings"][0]["points"]:
        point["job"]["behind"] = [behind] * 3
    page = open_page("job/a?span=0")
    gap = page.locator("#charts figure").filter(has_text="watermark gap")
    api.expect(gap.locator("figcaption")).to_contain_text("20,440 days")
    labels = page.evaluate("uPlot.sync('charts').plots[1].axes[1]._values")
    assert labels == ["0 s", "10,000 days", "20,000 days"]


@pytest.mark.contract("PAGE-11")
def test_eight_tabs_follow_their_jobs(browser: Any, server: PageServer, jobs: samples.Jobs) -> None:
    def change(rate: float) -> None:
        jobs.found["a"] = Listed("a", "/data/flights", samples.status(6, samples.now(), seed=1, rate=rate))

    # A browser has six connections to a host. In this one all tabs are visible, as eight windows are.
    with contextlib.closing(browser.new_context()) as context:
        tabs = [context.new_page() for _ in range(8)]
        for tab in tabs:
            tab.goto(f"{server.address}job/a")
            api.expect(tab.locator("#contact")).to_have_text("live")
        change(77.0)
        for tab in tabs:
            api.expect(tab.locator("#figures")).to_contain_text("77 elements/s")
            api.expect(tab.locator("#contact")).to_have_text("live")
        locks = "navigator.locks.query().then((all) => all.held.length)"
        assert tabs[0].evaluate(locks) == 4
        hide = """(hidden) => {
            Object.defineProperty(document, "hidden", { value: hidden, configurable: true });
            document.dispatchEvent(new Event("visibilitychange"));
        }"""
        for tab in tabs:
            tab.evaluate(hide, True)
        assert tabs[0].evaluate(locks) == 0
        change(88.0)
        tabs[7].evaluate(hide, False)
        api.expect(tabs[7].locator("#figures")).to_contain_text("88 elements/s")
        api.expect(tabs[7].locator("#contact")).to_have_text("live")
        assert "77 elements/s" in tabs[0].inner_text("#figures")
        assert tabs[0].evaluate(locks) == 1


def test_graph_begins_at_the_stage_that_blocks(open_page: Any, jobs: samples.Jobs) -> None:
    status, jobs.plans["a"] = samples.status(60, samples.now()), samples.plan_of(60)
    last = status.stages[-1].stage
    first = Listed("a", "/data/flights", replace(status, causes=()))
    blocked = Listed("a", "/data/flights", replace(status, causes=(replace(status.causes[0], stage=last),)))
    seen = """() => {
        const inner = document.querySelector("#blocked")?.hash ?? "#g-s0-live";
        const [of, frame] = [inner, ".graph"].map((each) => document.querySelector(each).getBoundingClientRect());
        return of.top >= frame.top && of.bottom <= frame.bottom && of.left >= frame.left && of.right <= frame.right;
    }"""
    for jobs.found["a"] in (first, blocked):
        assert open_page("job/a").evaluate(seen)
        assert open_page("job/a", 320).evaluate(seen)
    page = open_page("job/a", java_script_enabled=False)
    assert not page.evaluate(seen)
    page.click("text=Show the stage in the graph")
    assert page.evaluate(seen)


def test_graph_is_zoomed_and_has_an_overview(open_page: Any, jobs: samples.Jobs) -> None:
    jobs.found["a"] = Listed("a", "/data/flights", samples.status(60, samples.now()))
    jobs.plans["a"] = samples.plan_of(60)
    page = open_page("job/a")
    size = "document.querySelector('#plan').getBoundingClientRect().width"
    before = page.evaluate(size)
    page.click("text=Zoom out")
    assert page.evaluate(size) == pytest.approx(0.8 * before, rel=1e-3)
    page.click("text=Zoom in")
    page.click("text=Zoom in")
    assert page.evaluate(size) == pytest.approx(1.25 * before, rel=1e-3)
    frame = "(of => of.scrollTop / (of.scrollHeight - of.clientHeight))(document.querySelector('.graph'))"
    overview = page.locator(".overview")
    box = overview.bounding_box()
    overview.click(position={"x": box["width"] / 2, "y": box["height"] - 2})
    assert page.evaluate(frame) > 0.95
    # The mark moves to where the frame is.
    page.wait_for_function("""() => {
        const box = (of) => document.querySelector(of).getBoundingClientRect();
        const [all, mark] = [box(".overview"), box(".overview > rect")];
        return Math.abs(mark.bottom - all.bottom) < all.height / 20;
    }""")
    overview.click(position={"x": box["width"] / 2, "y": 1})
    assert page.evaluate(frame) < 0.05
    # A graph that fits has none.
    assert open_page("job/b").locator(".overview").count() == 0


@pytest.mark.contract("PAGE-11")
def test_lost_contact_is_shown_and_ends(open_page: Any, server: PageServer, jobs: samples.Jobs) -> None:
    page = open_page("job/a")
    port = urlsplit(server.address).port
    assert port is not None
    word = "[getComputedStyle(document.querySelector('#headline strong'), '::before').content, control.inert]"
    assert page.evaluate(word) == ["none", False]
    server.__exit__()
    api.expect(page.locator("#contact")).to_have_text(re.compile("^no contact for .*: what follows is old$"))
    assert page.evaluate(word) == ['"Before: "', True]
    with PageServer(jobs, PageSettings(port, insecure=True)):
        api.expect(page.locator("#contact")).to_have_text("live")
        assert page.evaluate(word) == ["none", False]


@pytest.mark.contract("PAGE-11")
def test_silent_server_is_no_contact_after_five_seconds(open_page: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    page = open_page("job/a")
    api.expect(page.locator("#contact")).to_have_text("live")
    # The connection stays, as that of a process that was stopped.
    monkeypatch.setattr(live, "UPDATE_SECONDS", 3600.0)
    api.expect(page.locator("#contact")).to_have_text(re.compile("^no contact for [567] s: what follows is old$"))


@pytest.mark.contract("PAGE-11")
def test_confirmation_follows_its_job(open_page: Any, server: PageServer, jobs: samples.Jobs) -> None:
    page = open_page("job/a/control/savepoint")
    api.expect(page.locator("#contact")).to_have_text("live")
    page.fill("#name", "before")
    headline = page.inner_text("#headline")
    jobs.found["a"] = Listed("a", "/data/flights", samples.status(6, samples.now(), causes=()))
    api.expect(page.locator("#headline")).not_to_have_text(headline)
    assert page.input_value("#name") == "before"
    jobs.found["a"] = Listed("a", "/data/flights", samples.status(6, samples.now(), mode=CommitMode.DRAINING))
    api.expect(page.locator("main")).to_contain_text("Not now")
    assert page.query_selector("form") is None
    page = open_page("job/a/control/cancel")
    server.__exit__()
    api.expect(page.locator("#contact")).to_have_text(re.compile("^no contact for .*: what follows is old$"))
    word = "[getComputedStyle(document.querySelector('#headline strong'), '::before').content, control.inert]"
    assert page.evaluate(word) == ['"Before: "', True]


@pytest.mark.contract("PAGE-11")
@pytest.mark.parametrize("path", ["", "job/a"])
def test_corner_is_not_live_while_the_jobs_are_out_of_contact(open_page: Any, jobs: samples.Jobs, path: str) -> None:
    page = open_page(path)
    corner = api.expect(page.locator("#contact"))
    corner.to_have_text("live")
    jobs.away = ("no contact with the server for 31 s: no job server answers",)
    corner.to_have_text("no contact")
    assert "for 31 s" in page.inner_text("#notices")
    jobs.away = ()
    corner.to_have_text("live")


def test_killed_driver_is_noticed_on_an_open_page(open_page: Any, jobs: samples.Jobs) -> None:
    page = open_page("job/a")
    assert "no driver seems to be running this job" not in page.inner_text("#headline")
    # Its next note is overdue in a second.
    jobs.found["a"] = Listed("a", "/data/flights", samples.status(6, samples.now() - 29_000_000))
    api.expect(page.locator("#headline")).to_contain_text("no driver seems to be running this job")
    assert "arcbeam resume /data/flights" in page.inner_text("#headline")


def test_page_is_complete_without_javascript(open_page: Any) -> None:
    page, other = open_page("job/a"), open_page("job/a", java_script_enabled=False)
    changing = r"[\d.]+ (?:s|min)\b|\d{4}-\d\d-\d\d[T ][\d:.]*\dZ?"
    for selector in ("h1", "#headline", "#causes", ".graph", "table"):
        # The gap of a watermark grows between the two. Times are local in the first one.
        script, plain = (re.sub(changing, "…", each.inner_text(selector)) for each in (page, other))
        assert script == plain
    assert other.query_selector("noscript") is not None
    # Not by a click: without JavaScript, the page is loaded again meanwhile.
    address = other.get_attribute("text=Micro-batches as a table", "href")
    table = open_page(address.removeprefix("/"), java_script_enabled=False)
    api.expect(table.locator("#rows tr")).to_have_count(ROWS_SHOWN)
    api.expect(table.locator("#rows th").first).to_have_text(re.compile(r"^20\d\d-\d\d-\d\d \d\d:\d\d:\d\dZ$"))


def test_times_are_those_of_the_viewer(open_page: Any, jobs: samples.Jobs) -> None:
    found = samples.with_cause(samples.status(6, samples.now()), text="the watermark is at 2026-01-05T10:00:03.25Z")
    jobs.found["a"] = Listed("a", "/data/flights", found)
    page = open_page("job/a", timezone_id="America/New_York")
    time = page.locator("#causes time").first
    api.expect(time).to_have_text("2026-01-05 05:00:03")
    assert time.get_attribute("title") == "2026-01-05T10:00:03.25Z"
    assert "in your time zone, America/New_York" in page.inner_text("#zone")
    # A change is local, too.
    changed = samples.with_cause(samples.status(6, samples.now()), text="the watermark is at 2026-07-05T10:00:03Z")
    jobs.found["a"] = Listed("a", "/data/flights", changed)
    api.expect(time).to_have_text("2026-07-05 06:00:03")
    plain = open_page("job/a", java_script_enabled=False, timezone_id="America/New_York")
    api.expect(plain.locator("#causes time").first).to_have_text("2026-07-05T10:00:03Z")
    assert plain.inner_text("#zone") == "Times are in UTC."
