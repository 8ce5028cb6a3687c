"""The names of the files in a streaming job's folder.

Owns every name below a job's folder. The name of a task's file contains the micro-batch and the epoch for which it was
written, and its attempt. That of a job graph contains the epoch. So the sweep finds files that no manifest can name.

    epochs/<epoch>                                     which driver took over the job, and when
    floors/<epoch>-<slot>                              the oldest micro-batch whose manifest that driver keeps
    manifests/<micro-batch>                            what is committed
    shards/<level>/<shard>/<micro-batch>-<epoch>-<attempt>.delta, .snapshot
    side/<channel>/<shard>/<micro-batch>-<epoch>-<attempt>.side
    job_graphs/<epoch>-<content>                       a job graph: the driver that stored it, and a digest
    job_graphs/files/<epoch>-<content>                 a file of a job graph
    requests/<time>-<token>                            a request to the job's driver
    answers/<time>-<token>                             the driver's answer
    samples/<time>-<token>/<level>-<task>              elements for a request for samples, until its reader has them
    driver                                             what the job's driver was doing some seconds ago
    history                                            figures of the job over time
    plan                                               stages, transforms and edges, for people
    tasks                                              times and elements of the tasks of a micro-batch, for people
    ended                                              how the last driver failed, or that it was cancelled
"""

from __future__ import annotations

import re
from dataclasses import dataclass

EPOCHS = "epochs"
FLOORS = "floors"
MANIFESTS = "manifests"
SHARDS = "shards"
SIDE = "side"
JOB_GRAPHS = "job_graphs"
REQUESTS = "requests"
ANSWERS = "answers"
SAMPLES = "samples"
DRIVER_NOTE = "driver"
ENDED_NOTE = "ended"
TROUBLE_NOTE = "trouble"
HISTORY = "history"
PLAN = "plan"
TASKS = "tasks"
DETAILS = "details"

_MICRO_BATCH_DIGITS = 12
_EPOCH_DIGITS = 8
_ATTEMPT = re.compile(r"[A-Za-z0-9_.]+")
_JOB_GRAPH = re.compile(r"job_graphs/(?:files/)?(\d{8,})-[0-9a-f]+")
_WRITTEN = re.compile(r"(shards|side)/(\d+)/(\d+)/(\d{12,})-(\d{8,})-([A-Za-z0-9_.]+)\.(delta|snapshot|side)")


@dataclass(frozen=True, slots=True)
class Written:
    """The content of the name of a task's file.

    Attributes:
        place: the level (`shards`) or the channel (`side`).
        micro_batch: for which it was written: this micro-batch's manifest must be the first to name it.
        epoch: of the driver that ran the micro-batch.
        attempt: unique among all attempts of all tasks.
        kind: "delta", "snapshot" or "side".
    """

    place: int
    shard: int
    micro_batch: int
    epoch: int
    attempt: str
    kind: str


def manifest_name(micro_batch: int) -> str:
    """Return the name of the manifest of a micro-batch."""
    return f"{MANIFESTS}/{micro_batch:0{_MICRO_BATCH_DIGITS}}"


def manifest_micro_batch(name: str) -> int | None:
    """Return the micro-batch whose manifest has this name; None if it is not a manifest's."""
    number = name.removeprefix(f"{MANIFESTS}/")
    return int(number) if number.isdecimal() and name == manifest_name(int(number)) else None


def epoch_name(epoch: int) -> str:
    """Return the name of an epoch's file."""
    return f"{EPOCHS}/{epoch:0{_EPOCH_DIGITS}}"


def epoch_number(name: str) -> int | None:
    """Return the epoch whose file has this name; None if it is not an epoch's."""
    number = name.removeprefix(f"{EPOCHS}/")
    return int(number) if number.isdecimal() and name == epoch_name(int(number)) else None


def floor_name(epoch: int, slot: int) -> str:
    """Return the name of one of an epoch's two records of its floor."""
    return f"{FLOORS}/{epoch:0{_EPOCH_DIGITS}}-{slot}"


def job_graph_name(epoch: int, digest: str) -> str:
    """Return the name of a job graph's file, which the driver of an epoch stores."""
    return f"{JOB_GRAPHS}/{epoch:0{_EPOCH_DIGITS}}-{digest}"


def job_graph_file_name(epoch: int, digest: str) -> str:
    """Return the name of a file of a job graph, which the driver of an epoch stores."""
    return f"{JOB_GRAPHS}/files/{epoch:0{_EPOCH_DIGITS}}-{digest}"


def job_graph_epoch(name: str) -> int | None:
    """Return the epoch whose driver stored a job graph, or a file of one, with this name; None for other names."""
    match = _JOB_GRAPH.fullmatch(name)
    return int(match[1]) if match else None


def request_name(id: str) -> str:
    """Return the name of a request to the job."""
    return f"{REQUESTS}/{id}"


def answer_name(id: str) -> str:
    """Return the name of the answer to a request."""
    return f"{ANSWERS}/{id}"


def samples_name(id: str, level: int, task: int) -> str:
    """Return the name of the samples that a task takes for a request."""
    return f"{SAMPLES}/{id}/{level}-{task}"


def written_name(written: Written) -> str:
    """Return the name of a task's file.

    Raises:
        ValueError: the attempt has characters that a name must not contain.
    """
    if not _ATTEMPT.fullmatch(written.attempt) or written.attempt.startswith("."):
        raise ValueError(f"an attempt's name consists of letters, digits, '_' and '.': {written.attempt!r}")
    folder = SIDE if written.kind == "side" else SHARDS
    return (
        f"{folder}/{written.place}/{written.shard}/{written.micro_batch:0{_MICRO_BATCH_DIGITS}}"
        f"-{written.epoch:0{_EPOCH_DIGITS}}-{written.attempt}.{written.kind}"
    )


def parse_written(name: str) -> Written | None:
    """Return the content of a name; None if it is not the name of a task's file."""
    match = _WRITTEN.fullmatch(name)
    if match is None:
        return None
    _, place, shard, micro_batch, epoch, attempt, kind = match.groups()
    return Written(int(place), int(shard), int(micro_batch), int(epoch), attempt, kind)
