"""Samples of the outputs of a running job, as files in its folder.

Owns the files, and the side that requests samples. A request is one of `arcbeam.store.log.requests`; the tasks of a
micro-batch write what they have taken, and the driver answers. Samples show data of the job's users: their files are
removed as soon as they are read, and by the driver after some minutes. Must not know how samples are taken.

    samples/<request>/<level>-<task>       a JSON value: the outputs of the stage in that task, or its failure
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping, Sequence
from typing import Any, Final

from arcbeam import documents
from arcbeam.errors import JobFailedError
from arcbeam.model.timestamps import Timestamp
from arcbeam.store.blobs.durable import DurableBlobs
from arcbeam.store.blobs.errors import MissingFileError, StoreError
from arcbeam.store.log.jobname import job_in
from arcbeam.store.log.requests import (
    AnswerKind,
    RequestKind,
    answered,
    ask,
    refusal,
    time_of,
    unanswered_remedy,
    withdraw,
)
from arcbeam.store.manifest.names import SAMPLES, answer_name, samples_name

VERSION: Final = 1
SECONDS: Final = 30.0
"""How long a request waits for elements, if nothing else is requested."""
KEPT_SECONDS: Final = 300.0
"""The longest time between a request and the end of its files, also if its reader has died."""
SAMPLES_MAX: Final = 5
"""Elements of an output."""

Record = Mapping[str, Any]


def record_samples(blobs: DurableBlobs, request: str, level: int, task: int, record: Record) -> None:
    """Write what a task has taken for a request.

    Args:
        blobs: the job's folder.
        request: its id.
        level: of the task.
        task: its number.
        record: `outputs`, as from `arcbeam.harness.bundle.samples.StageSampler.taken`, and `failure`, as from
            `arcbeam.harness.bundle.samples.failure_record`, or None.

    Raises:
        StoreError: it cannot be written.
    """
    blobs.put(samples_name(request, level, task), documents.encode(VERSION, record))


def are_there(blobs: DurableBlobs, request: str) -> bool:
    """Return whether a task has taken samples for a request."""
    return next(iter(blobs.list(f"{SAMPLES}/{request}")), None) is not None


def remove_samples(blobs: DurableBlobs, request: str) -> None:
    """Remove the files of a request."""
    blobs.delete_each([info.name for info in blobs.list(f"{SAMPLES}/{request}")])


def remove_old_samples(blobs: DurableBlobs, now: Timestamp) -> None:
    """Remove the files of requests that no reader waits for any more."""
    limit = now - round(KEPT_SECONDS * 1e6)
    for info in list(blobs.list(SAMPLES)):
        if 0 < time_of(info.name.removeprefix(f"{SAMPLES}/")) < limit:
            blobs.delete(info.name)


def sampled(blobs: DurableBlobs, stage: str, seconds: float = SECONDS) -> list[dict[str, Any]]:
    """Request samples of a stage's outputs, and wait until a micro-batch has taken some.

    Args:
        blobs: the job's folder.
        stage: its name, as in the status.
        seconds: to wait at most.

    Returns:
        For each output with elements: `output`, its full name, and `elements`, at most `SAMPLES_MAX`; each has `value`,
        `time` (microseconds since 1970), `windows`, `pane`. If user code has failed, `failure` instead of `elements`:
        `transform`, `error`, and `value`, the element with which it failed.

    Raises:
        RequestRefusedError: the job does not allow samples, has no such stage, or no driver.
        JobFailedError: the stage had no elements in time.
    """
    request = ask(blobs, RequestKind.SAMPLE, "", Timestamp(time.time_ns() // 1000), stage=stage)
    try:
        answer = answered(blobs, request, min(seconds, KEPT_SECONDS))
        # A job that fails refuses, but the task that has failed has left the element.
        found = _merged(_read(blobs, request.id))
        if not found and answer is not None and answer.kind is AnswerKind.REFUSED:
            raise refusal(RequestKind.SAMPLE, job_in(blobs), answer.text, answer.remedy)
        if not found and answer is None:
            raise JobFailedError(
                f"no driver of {job_in(blobs)} answered '{RequestKind.SAMPLE}' within {seconds:g} s",
                unanswered_remedy(blobs, str(blobs)),
            )
        if not found:
            raise JobFailedError(
                f"stage '{stage}' of {job_in(blobs)} has processed nothing within {seconds:g} s",
                "try again when there is data, or wait longer",
            )
        return found
    finally:
        with contextlib.suppress(StoreError):
            withdraw(blobs, request)
            remove_samples(blobs, request.id)
            blobs.delete(answer_name(request.id))


def _read(blobs: DurableBlobs, request: str) -> list[Record]:
    found: list[Record] = []
    for info in list(blobs.list(f"{SAMPLES}/{request}")):
        with contextlib.suppress(MissingFileError):
            found.append(documents.decode(blobs.get(info.name), VERSION, "a file of samples"))
    return found


def _merged(records: Sequence[Record]) -> list[dict[str, Any]]:
    """Return the samples of several tasks by output, in the order of the first task that has them."""
    outputs: dict[str, list[Any]] = {}
    for record in records:
        for output in record["outputs"]:
            outputs.setdefault(output["output"], []).extend(output["elements"])
    found: list[dict[str, Any]] = [{"output": name, "elements": all[:SAMPLES_MAX]} for name, all in outputs.items()]
    failures = [record["failure"] for record in records if record.get("failure")]
    return [*found, *({"output": failure["transform"], "failure": failure} for failure in failures[:1])]
