"""The page's addresses: the list of jobs, and one page for each job. Complete without JavaScript.

Owns routes and templates. What is shown is chosen in `arcbeam.page.views`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import HTMLResponse
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from arcbeam.page import charts, states, views
from arcbeam.page.security import Guard
from arcbeam.page.sources import Record, Source
from arcbeam.streaming.status.words import driver_line

_HERE: Final = Path(__file__).parent

REFRESH_SECONDS: Final = 5
"""A browser loads a page of running jobs again after this time; if the page is gone, it says so."""


def app_of(source: Source, token: str = "") -> Starlette:
    """Return the page as an ASGI application.

    Args:
        source: of its jobs.
        token: that a browser has to give; "": none.
    """
    # Escapes all values, whatever a template is called.
    templates = Environment(loader=FileSystemLoader(_HERE / "templates"), autoescape=True, undefined=StrictUndefined)

    def page(template: str, live: bool, code: int = 200, **values: object) -> HTMLResponse:
        headers = {"Refresh": str(REFRESH_SECONDS)} if live else {}
        text = templates.get_template(template).render(notices=source.notices(), **values)
        return HTMLResponse(text, code, headers)

    # Starlette runs functions that are not coroutines in threads: reading a folder blocks.
    def jobs(request: Request) -> HTMLResponse:
        wanted = request.query_params.get("q", "")
        found = list(source.jobs())
        rows = sorted(map(states.row_of, found), key=lambda row: -row.committed)
        rows = [row for row in rows if wanted.lower() in f"{row.name} {row.folder} {row.state.text}".lower()]
        live = source.grows() or any(map(states.is_live, found))
        return page("jobs.html", live, rows=rows, total=len(found), wanted=wanted)

    def job(request: Request) -> HTMLResponse:
        found = source.job(request.path_params["id"])
        if found is None:
            return page("missing.html", False, 404, what="There is no such job here.", error="")
        if (record := found.record) is None and found.state:
            rows = None if found.progress is None else list(states.batch_rows(found.progress))
            return page("batch.html", states.is_live(found), row=states.row_of(found), stages=rows, why=found.why)
        if record is None:
            return page("missing.html", True, 503, what=f"The job in {found.label} cannot be read.", error=found.error)
        history = source.history(found.id) or {"rings": [], "events": []}
        span = _span(request, history)
        return page(
            "job.html",
            states.is_live(found),
            row=states.row_of(found),
            figures=list(views.figures(record)),
            stages=list(views.stage_rows(record)),
            causes=record["causes"],
            driver=driver_line(record),
            charts=list(charts.charts_of(history, span)) if history["rings"] else [],
            spans=charts.SPANS,
            span=span,
            width=charts.WIDTH,
            height=charts.HEIGHT,
        )

    routes = [Route("/", jobs), Route("/job/{id}", job), Mount("/static", StaticFiles(directory=_HERE / "static"))]
    return Starlette(routes=routes, middleware=[Middleware(Guard, token=token)])


def _span(request: Request, history: Record) -> int:
    """Return the resolution that an address asks for, else the one that suits the job."""
    wanted = request.query_params.get("span", "")
    if wanted.isdecimal() and int(wanted) < len(history["rings"]):
        return int(wanted)
    return charts.span_of(history) if history["rings"] else 0
