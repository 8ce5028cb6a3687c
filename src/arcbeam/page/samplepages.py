"""Samples of a stage: the form that requests them, and the elements.

Owns the words, and the results of the newest requests. They show data of users, so few are kept, in memory only. Must
not know how samples are taken.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any, Final

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response

from arcbeam.page import states
from arcbeam.page.access.security import FormTokens, form_of
from arcbeam.page.control import FOREIGN, Operations, missing
from arcbeam.page.live import Shown
from arcbeam.page.sources import Listed, Source
from arcbeam.page.states import is_live
from arcbeam.store.log.requests import RequestKind
from arcbeam.streaming.status.records import Record
from arcbeam.streaming.status.samples import SECONDS
from arcbeam.streaming.status.words import shown, silent

_KEPT: Final = 20
"""Results that are remembered."""
_TITLES: Final = {"running": "Waiting for elements", "done": "Samples", "refused": "No samples"}


class SamplePages:
    """The pages of samples.

    Args:
        source: of the jobs.
    """

    def __init__(self, source: Source) -> None:
        self._source = source
        self._operations, self._tokens = Operations(), FormTokens()
        self._found: OrderedDict[str, Sequence[Record]] = OrderedDict()

    def form(self, request: Request) -> Shown:
        """Return what samples are, and the form that requests them. Changes nothing."""
        found, stage = self._stage(request)
        if found is None or stage is None:
            return missing("There is no such stage here.")
        number = self._operations.new()
        values = {
            "row": states.row_of(found),
            "stage": stage,
            "at": request.path_params["number"],
            "refused": refused(found),
            "number": number,
            "token": self._tokens.token(request, found.id, stage, number),
        }
        return Shown("sample.html", False, values)

    async def begin(self, request: Request) -> Response:
        """Begin the request of a form of this page, and lead to its result."""
        form = await form_of(request)
        found, stage = await run_in_threadpool(self._stage, request)
        if found is None or stage is None:
            return PlainTextResponse("there is no such stage here; nothing was done", 404)
        id, number = found.id, form.get("number", "")
        if not self._tokens.holds(form.get("form_token", ""), request, id, stage, number):
            return PlainTextResponse(FOREIGN, 403)

        def call() -> str:
            self._found[number] = self._source.sample(id, stage, SECONDS)
            while len(self._found) > _KEPT:
                self._found.popitem(last=False)
            return ""

        self._operations.begin(number, id, RequestKind.SAMPLE, call)
        return RedirectResponse(f"/job/{id}/stage/{request.path_params['number']}/sample/{number}", 303)

    def result(self, request: Request) -> Shown:
        """Return the elements, or why there are none."""
        found, stage = self._stage(request)
        operation = self._operations.get(number := request.path_params["of"])
        if found is None or stage is None or operation is None or operation.job != found.id:
            return missing("There is no such request here, or it is forgotten.")
        outputs = self._found.get(number, ())
        values = {
            "row": states.row_of(found),
            "stage": stage,
            "at": request.path_params["number"],
            "title": _TITLES[operation.state],
            "operation": operation,
            "seconds": f"{SECONDS:g}",
            "outputs": [_shown(output) for output in outputs],
            "forgotten": operation.state == "done" and not outputs,
        }
        return Shown("sampled.html", operation.state == "running", values)

    def _stage(self, request: Request) -> tuple[Listed | None, str | None]:
        found, number = self._source.job(request.path_params["id"]), request.path_params["number"]
        stages = () if found is None or found.status is None else found.status.stages
        return found, stages[number].stage if number < len(stages) else None


def refused(job: Listed) -> str:
    """Return why no samples can be requested now; "" if a driver may take them."""
    status = job.status
    if status is None or status.is_stopped or not is_live(job) or job.silent is not None or silent(status) is not None:
        return "no driver runs the job"
    return (
        ""
        if status.driver is None or status.driver.samples
        else "the job does not allow them: start it, or resume it, with --page_samples"
    )


def _shown(output: Mapping[str, Any]) -> dict[str, Any]:
    elements = [{**each, "time": shown(each["time"])} for each in output.get("elements", ())]
    return {"name": output["output"], "elements": elements, "failure": output.get("failure")}
