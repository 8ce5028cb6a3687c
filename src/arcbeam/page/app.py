"""The page's addresses: the list of jobs, one page for each job and stage, and their updates. Complete without
JavaScript.

Owns routes and templates. What is shown is chosen in `arcbeam.page.views`.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import count
from math import isfinite
from pathlib import Path
from typing import Final

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from arcbeam.explain import STYLE, plan_of
from arcbeam.model.plan import Plan
from arcbeam.page import details, markup, samplepages, stagepage, states, views
from arcbeam.page.access.security import Guard
from arcbeam.page.control import ControlPages, links
from arcbeam.page.exposition import CONTENT_TYPE, exposition
from arcbeam.page.graph import Graph, graph_of
from arcbeam.page.live import Board, Rendered, Shown, View, updates
from arcbeam.page.memory import RecentReads
from arcbeam.page.samplepages import SamplePages
from arcbeam.page.sources import HISTORIES, HISTORY_SECONDS, Listed, Source
from arcbeam.page.states import BatchRow
from arcbeam.page.timelines import charts
from arcbeam.page.timelines.errors import errors_of
from arcbeam.page.timelines.newest import Newest
from arcbeam.page.views import JobRow
from arcbeam.streaming.status.headline import causes_of, error_of, stopped
from arcbeam.streaming.status.records import Record
from arcbeam.streaming.status.status import Status, stage_record
from arcbeam.streaming.status.words import driver_line, without_driver

_HERE: Final = Path(__file__).parent


DETAILS_SECONDS: Final = 3.0
"""Details cost more than a status, and change less often."""
SETTLES_SECONDS: Final = HISTORY_SECONDS + 5
"""The page of a job that has ended follows it so long at most, until its figures over time are complete."""
ENDED_SHOWN: Final = 100
"""So many of the jobs that have ended are in the list, unless all are requested."""


def app_of(source: Source, token: str = "", *, local: bool = True) -> Starlette:
    """Return the page as an ASGI application.

    Args:
        source: of its jobs.
        token: that a browser has to give; "": none.
        local: answer to names of this machine only.
    """
    pages, control, samples = Pages(source), ControlPages(source), SamplePages(source)
    routes = [
        *pages.routes("", pages.jobs),
        *pages.routes("/job/{id}", pages.job),
        *pages.routes("/job/{id}/stage/{number:int}", pages.stage),
        *pages.routes("/job/{id}/stage/{number:int}/sample", samples.form),
        Route("/job/{id}/stage/{number:int}/sample", samples.begin, methods=["POST"]),
        *pages.routes("/job/{id}/stage/{number:int}/sample/{of}", samples.result),
        *pages.routes("/job/{id}/details", pages.details),
        *pages.routes("/job/{id}/history", pages.history),
        Route("/job/{id}/charts", pages.charts),
        *pages.routes("/job/{id}/control/{what}", control.confirmation),
        Route("/job/{id}/control/{what}", control.begin, methods=["POST"]),
        *pages.routes("/job/{id}/savepoint/{name}/{what}", control.savepoint),
        Route("/job/{id}/savepoint/{name}/{what}", control.change, methods=["POST"]),
        *pages.routes("/job/{id}/request/{number}", control.result),
        Route("/metrics", lambda _: PlainTextResponse(exposition(source), media_type=CONTENT_TYPE)),
        Route("/static/graph.css", lambda _: Response(STYLE, media_type="text/css")),
        Mount("/static", StaticFiles(directory=_HERE / "static")),
    ]
    return Starlette(routes=routes, middleware=[Middleware(Guard, token=token, local=local)])


class Pages:
    """The pages of a source's jobs. Called from several threads: reading a folder blocks.

    Args:
        source: of the jobs.
    """

    def __init__(self, source: Source) -> None:
        self._source, self._board = source, Board()
        # Escapes all values, whatever a template is called.
        self._templates = Environment(
            loader=FileSystemLoader(_HERE / "templates"),
            autoescape=True,
            undefined=StrictUndefined,
            finalize=markup.visible_value,
        )
        self._templates.globals |= {
            "cell": markup.cell,
            "clock": markup.clock,
            "numbers": markup.numbers,
            "parted": markup.parted,
        }
        self._templates.filters |= {"shortened": views.shortened, "timed": markup.timed}
        self._newest = Newest()
        self._details = RecentReads(source.details, DETAILS_SECONDS, HISTORIES)
        self._ended: dict[str, tuple[Listed, JobRow]] = {}
        self._graphs: dict[str, tuple[tuple[Record, Record], Graph | None]] = {}

    def routes(self, path: str, view: View) -> list[Route]:
        """Return the routes of a page and of its updates."""

        # Starlette runs functions that are not coroutines in threads.
        def page(request: Request) -> HTMLResponse:
            rendered = self._rendered(view, request)
            if rendered.live:
                self._board.loaded(_address(request), rendered)
            return HTMLResponse(rendered.html, rendered.code)

        def data(request: Request) -> Response:
            shown = view(request)
            if shown.data is None:
                return _json({"error": "this page has no data"}, shown.code if shown.code >= 400 else 404)
            return _json(shown.data())

        async def events(request: Request) -> Response:
            version = request.headers.get("last-event-id") or request.query_params.get("version", "")
            brief = "brief" in request.query_params
            page = _address(request)
            found = updates(self._board, page, lambda: self._rendered(view, request), version, brief=brief)
            return StreamingResponse(found, media_type="text/event-stream")

        return [Route(path or "/", page), Route(f"{path}/events", events), Route(f"{path}/json", data)]

    def _rendered(self, view: View, request: Request) -> Rendered:
        began = time.thread_time()
        shown = view(request)
        fragments: dict[str, str] = {}

        def live(id: str, caller: Callable[[], str]) -> str:
            fragments[id] = str(caller())
            return Markup(fragments[id])  # a template has escaped it

        graph, figures = shown.values.get("graph") or (None, {})
        template = self._templates.get_template(shown.template)
        values = {**shown.values, "graph": None if graph is None else Markup(graph)}  # it is escaped
        query = f"?{request.url.query}" if request.url.query else ""
        data = "" if shown.data is None else f"{request.url.path.removesuffix('/events').rstrip('/')}/json{query}"
        now, notices, awaited = round(time.time() * 1e6), self._source.notices(), self._source.starting()
        # What has ended does not change, but the notice goes.
        is_live = shown.live or bool(notices) or bool(awaited)
        common = {"notices": notices, "awaited": awaited, "live": live, "is_live": is_live, "now": now, "data": data}
        html = template.render(**common, **values)
        rendered = Rendered(html, fragments | figures, is_live, shown.code)
        html = html.replace(_VERSION, rendered.version, 1)
        return replace(rendered, html=html, cost=time.thread_time() - began)

    def jobs(self, request: Request) -> Shown:
        """Return the list of jobs."""
        wanted, state = request.query_params.get("q", ""), request.query_params.get("state", "")
        # Others are read meanwhile: count those that are missing in this list.
        listed, unread = list(self._source.jobs()), self._source.unread()
        found = self._rows(listed)
        # What needs a look comes first, then what runs.
        found.sort(key=lambda each: (each[1].headline.level != "error", each[0], -each[1].order, each[1].id))
        total, live = len(found), self._source.grows() or not all(over for over, _ in found)
        rows = [(over, row) for over, row in found if _has(row, wanted.lower()) and state in ("", row.state_word)]
        ended, most = count(), len(rows) if "all" in request.query_params else ENDED_SHOWN
        kept = [row for over, row in rows if not over or next(ended) < most]
        values = {
            "rows": kept,
            "hidden": len(rows) - len(kept),
            "total": total,
            "wanted": wanted,
            "state": state,
            "states": sorted({row.state_word for _, row in found} | ({state} - {""})),
            "loading": f"{total:,} of {total + unread:,} jobs are loaded." if unread else "",
        }
        ids = {row.id for row in kept}
        return Shown("jobs.html", live, values, data=lambda: [job.as_record() for job in listed if job.id in ids])

    def _rows(self, jobs: Sequence[Listed]) -> list[tuple[bool, JobRow]]:
        """Return whether each job has ended, and its row: that of an ended job is made once, because there are many."""
        before, ended = self._ended, dict[str, tuple[Listed, JobRow]]()
        rows: list[tuple[bool, JobRow]] = []
        for job in jobs:
            over, known = not states.is_live(job), before.get(job.id)
            row = known[1] if over and known is not None and known[0] is job else states.row_of(job)
            if over:
                ended[job.id] = job, row
            rows.append((over, row))
        self._ended = ended
        return rows

    def job(self, request: Request) -> Shown:
        """Return the page of a job."""
        found = self._source.job(request.path_params["id"])
        if found is None:
            return self._missing("job")
        if (status := found.status) is None and found.state:
            rows = None if found.progress is None else list(states.batch_rows(found.progress, states.is_live(found)))
            followed, before = details.log_rows(found.progress.log if found.progress else ())
            of = {
                "graph": self._progress_graph(found, rows or ()),
                "row": states.row_of(found),
                "duration": states.duration(found),
                "stages": rows,
                "why": found.why,
                "log": followed,
                "before": before,
                "control": links(found),
            }
            return Shown("batch.html", states.is_live(found), of, data=found.as_record)
        if status is None:
            what = f"The job in {found.label} cannot be read."
            return Shown("missing.html", True, {"what": what, "error": found.error}, 503)
        history = self._history(found.id, status)
        span = _span(request, history)
        row, graph = states.row_of(found), self._graph(found.id, status)
        ended, causes = causes_of(status)
        values = {
            "row": row,
            "blocked": _blocked(graph, status, row),
            "figures": list(views.figures(status, charts.backlog_growth(history))),
            "stages": list(views.stage_rows(status)),
            "causes": causes,
            "ended": ended,
            "starting": "" if status.has_begun else "unknown: the first micro-batch has not been committed yet",
            # The headline says it of a silent driver.
            "driver": "" if stopped(status) else driver_line(status),
            "why": error_of(status),
            "quiet": bool(without_driver(status)),
            "graph": None if graph is None else graph.shown(status, self._source.tasks(found.id)),
            "ids": {} if graph is None else graph.stages,
            "newest": charts.newest_of(history, span),
            "failures": errors_of(history),
            "events": list(charts.events_of(history)),
            "spans": charts.SPANS,
            "span": span,
            "control": links(found),
        }
        is_live = states.is_live(found) or _settles(status, history)
        return Shown("job.html", is_live, values, data=found.as_record)

    def _history(self, id: str, status: Status) -> Record:
        """Return the figures of a job over time, up to its status."""
        return self._newest.merged(id, status, self._source.history(id) or {"rings": [], "events": []})

    def history(self, request: Request) -> Shown:
        """Return the micro-batches of a job as a table: what its charts show, also without JavaScript."""
        found = self._source.job(request.path_params["id"])
        if found is None or found.status is None:
            return self._missing("job")
        history = self._history(found.id, found.status)
        span, stages = _span(request, history), _stages(found.status)
        values = {
            "row": states.row_of(found),
            "contact": not states.is_unknown(found),
            "rows": charts.rows_of(history, span, stages),
            "width": charts.width_of(history, span),
            "shares": charts.held_shares(history, span, stages),
            "spans": charts.SPANS,
            "span": span,
        }
        is_live = states.is_live(found) or _settles(found.status, history)
        return Shown("history.html", is_live, values, data=lambda: charts.columns_of(history, span, 0, stages))

    def charts(self, request: Request) -> Response:
        """Return the values of a job's charts, as JSON: all, or those since a time."""
        found, after = self._source.job(request.path_params["id"]), request.query_params.get("after", "")
        if found is None or found.status is None:
            return _json({"error": "there is no such job here, or it has no figures over time"}, 404)
        history = self._history(found.id, found.status)
        span, since = _span(request, history), int(after) if after.isdecimal() else 0
        written = charts.last_time(self._source.history(found.id) or history, span)
        columns = charts.columns_of(history, span, since, _stages(found.status))
        return _json({**columns, "written": written})

    def stage(self, request: Request) -> Shown:
        """Return the page of a stage."""
        id, number = request.path_params["id"], request.path_params["number"]
        found = self._source.job(id)
        status = None if found is None else found.status
        if found is None or status is None or number >= len(status.stages):
            return self._missing("stage")
        row, tasks, of = states.row_of(found), self._source.tasks(id), self._details.get(id) or {}
        page = stagepage.stage_of(status, _plan(self._source.plan(id)), number, tasks, of.get("spark", ""))
        log, messages = of.get("log", ()), of.get("messages", ())
        followed, before = details.log_rows(log, messages, page.name, [name for name, _ in page.transforms])
        values = {
            "row": row,
            # Without contact, nothing is known now of the stage of a job that ran.
            "contact": not states.is_unknown(found),
            "quiet": bool(without_driver(status)),
            "stage": page,
            "log": followed,
            "before": before,
            "number": number,
            "no_samples": samplepages.refused(found),
        }
        lines = [each for each in log if each["stage"] == page.name]

        data = {"stage": stage_record(status.stages[number]), "tasks": tasks, "log": lines}
        return Shown("stage.html", states.is_live(found), values, data=lambda: data)

    def details(self, request: Request) -> Shown:
        """Return what is shown of a job on request only."""
        found = self._source.job(request.path_params["id"])
        if found is None:
            return self._missing("job")
        # A page that is loaded, as after a request, shows what there is now.
        of = self._details.get(found.id, fresh=not request.url.path.endswith("/events")) or {}
        followed, before = details.message_rows(of, found.status.ended if found.status else None)
        log, earlier_log = details.log_rows(of.get("log", ()))
        row = states.row_of(found)
        values = {
            "row": row,
            "contact": not states.is_unknown(found),
            "options": details.option_rows(of, defaults=False),
            "defaults": details.option_rows(of, defaults=True),
            "metrics": details.metric_rows(of),
            "messages": followed,
            "before": before,
            "log": log,
            "earlier_log": earlier_log,
            "savepoints": list(details.savepoint_rows(of)),
            "changeable": self._source.savepoints(found.id) is not None,
        }
        return Shown("details.html", states.is_live(found), values, data=lambda: of)

    def _missing(self, what: str) -> Shown:
        """Return the page of a job or stage that is not here, or that is unknown without contact."""
        away = bool(self._source.notices()) or bool(self._source.starting())
        text = f"This {what} is unknown until there is contact." if away else f"There is no such {what} here."
        return Shown("missing.html", away, {"what": text, "error": ""}, 503 if away else 404)

    def _graph(self, id: str, status: Status) -> Graph | None:
        """Return the graph of a streaming job; None if its plan is unknown."""
        links = {stage.stage: f"/job/{id}/stage/{number}" for number, stage in enumerate(status.stages)}
        return self._drawn(id, self._source.plan(id), links)

    def _progress_graph(self, job: Listed, rows: Sequence[BatchRow]) -> tuple[str, dict[str, str]] | None:
        """Return the graph of a bounded job, with figures; None if its plan is unknown."""
        if (progress := job.progress) is None or (graph := self._drawn(job.id, progress.plan, {})) is None:
            return None
        return graph.progressed(progress, [(row.line, row.level) for row in rows])

    def _drawn(self, id: str, plan: Record | None, links: Mapping[str, str]) -> Graph | None:
        """Return the picture of a plan, laid out once for each job."""
        if plan is None:
            return None
        known, graph = self._graphs.get(id, (None, None))
        if known != (plan, links):
            try:
                graph = graph_of(plan, links)
            except ValueError:
                graph = None
            self._graphs[id] = (plan, links), graph
        return graph


def _json(value: object, code: int = 200) -> Response:
    """Return an answer for programs. JSON has no infinite numbers."""
    return Response(json.dumps(_finite(value), default=str), code, media_type="application/json")


def _finite(value: object) -> object:
    match value:
        case float():
            return value if isfinite(value) else None
        case Mapping():
            return {str(name): _finite(each) for name, each in value.items()}
        case list() | tuple():
            return [_finite(each) for each in value]
    return value


def _blocked(graph: Graph | None, status: Status, row: JobRow) -> dict[str, str]:
    """Return the stage that fails, or of the headline, and its element in the graph; {} if it is not there."""
    if graph is None:
        return {}
    fails = graph.failing(status)
    stage = fails or row.headline.stage
    place = graph.place_of(stage)
    return {"stage": stage, "fails": fails, "place": place} if place else {}


def _stages(status: Status) -> list[str]:
    return [stage.stage for stage in status.stages]


def _settles(status: Status, history: Record) -> bool:
    """Return whether the figures of a job that has just ended may still come: its driver writes them after its end."""
    seconds = time.time() - status.committed / 1e6
    return 0 <= seconds < SETTLES_SECONDS and all(event["kind"] != "end" for event in history["events"][-1:])


def _plan(record: Record | None) -> Plan | None:
    try:
        return None if record is None else plan_of(record)
    except ValueError:
        return None


def _address(request: Request) -> str:
    """Return what a page and its updates have in common: who sees the same address sees the same page."""
    rest = sorted((name, value) for name, value in request.query_params.items() if name not in ("version", "brief"))
    return f"{request.url.path.removesuffix('events').rstrip('/')}?{rest}"


def _has(row: JobRow, wanted: str) -> bool:
    return wanted in f"{row.name} {row.folder} {row.state.text} {row.headline.text}".lower()


_VERSION: Final = "arcbeam-page-version"
"""Stands in a template for the version of the page, which is known only when all is rendered."""


def _span(request: Request, history: Record) -> int:
    """Return the resolution that an address asks for, else the one that suits the job."""
    wanted = request.query_params.get("span", "")
    if wanted.isdecimal() and int(wanted) < len(history["rings"]):
        return int(wanted)
    return charts.span_of(history) if history["rings"] else 0
