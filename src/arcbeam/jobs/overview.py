"""A server's jobs as records of JSON's values, for pages and other clients that show them.

Owns their fields. Must not know gRPC, nor who shows them.
"""

from __future__ import annotations

import json
from typing import Any

from arcbeam.jobs.lifecycle import Jobs
from arcbeam.jobs.metrics import JobMetrics, metrics_record
from arcbeam.jobs.option_forms import shown_options
from arcbeam.jobs.registry import JobRecord
from arcbeam.options import with_defaults
from arcbeam.store.blobs.backends import shown
from arcbeam.store.log.requests import RequestKind

_MESSAGES = 200
"""Messages of a job that are shown."""


class Overview:
    """Shows a server's jobs, and passes requests on to them, as `arcbeam.jobs.client.JobClient` does from elsewhere.

    Args:
        jobs: of the server.
    """

    def __init__(self, jobs: Jobs) -> None:
        self._jobs = jobs

    def overview(self) -> list[dict[str, Any]]:
        """Return all jobs, newest first.

        Returns:
            Of each: `id`, `name`, `state` (Beam's name), `changed` (since when, µs since 1970), `error` (with which it
            ended, or ""), and the fields of `PipelineExecutor.snapshot` if it runs, without a status' stages.
        """
        errors = self._jobs.registry.errors()
        records = reversed(self._jobs.registry.jobs())
        return [self._entry(record, errors.get(record.id, ""), whole=False) for record in records]

    def _entry(self, record: JobRecord, error: str, whole: bool) -> dict[str, Any]:
        return {
            "id": record.id,
            "name": record.name,
            "state": str(record.state),
            "changed": record.changed,
            "error": error,
            **self._jobs.snapshot(record.id, whole),
        }

    def details(self, id: str, more: bool = True) -> dict[str, Any]:
        """Return one job.

        Args:
            id: of the job.
            more: with what changes seldom, or costs time: `options`, `messages` and `metrics`.

        Returns:
            The fields of `overview`, and `folder` (with its state, for people, or ""), `started` (since when it ran
            first, or 0), `progress` also of a bounded job that has ended, `options` without secrets, `defaults` (the
            names of those with their default), `messages` (the last ones: `time`, `level`, `text`) and `metrics` (see
            `metrics_record`).

        Raises:
            JobNotFoundError: there is no such job.
        """
        registry = self._jobs.registry
        record = registry.job(id)
        found = self._entry(record, registry.errors(id).get(id, ""), whole=True)
        if not found.get("progress") and (last := registry.progress(id)):
            found["progress"] = json.loads(last)
        if not found.get("folder") and (home := self._jobs.home(record)):
            found["folder"] = shown(home)
        found = {"folder": "", "started": registry.started(id), **found}
        if not more:
            return found
        now, options = self._jobs.metrics(id), self._jobs.options(record)
        return {
            **found,
            "options": shown_options(options),
            "defaults": with_defaults(options),
            "messages": [
                {"time": each.at, "level": each.level.name, "text": each.text}
                for each in registry.messages(id, _MESSAGES)
            ],
            "metrics": metrics_record(JobMetrics(now.committed, True, now.attempted)),
        }

    def ask(self, what: RequestKind, id: str, savepoint: str, seconds: float, /) -> str:
        """Request a savepoint or a suspension; see `Jobs.ask`. It has no limit of time."""
        return self._jobs.ask(id, what, savepoint)

    def drain(self, id: str, seconds: float, /) -> str:
        """Drain a job; see `Jobs.ask`. Return its state."""
        self._jobs.ask(id, RequestKind.DRAIN)
        return str(self._jobs.registry.job(id).state)

    def cancel(self, id: str, /) -> str:
        """Cancel a job; see `Jobs.cancel`."""
        return str(self._jobs.cancel(id))
