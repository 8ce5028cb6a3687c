"""How the files of an unbounded job are called.

Owns every name below a job's folder. A file that a task writes carries in its name the micro-batch and the epoch for
which it was written, and its attempt; a program the epoch: this is all the sweep needs to know what nobody can name any
more.

    epochs/<epoch>                                     who took the job over, and when
    floors/<epoch>-<slot>                              the oldest micro-batch whose manifest that driver keeps
    manifests/<micro-batch>                                   what is real
    shards/<level>/<shard>/<micro-batch>-<epoch>-<attempt>.delta, .snapshot
    side/<channel>/<shard>/<micro-batch>-<epoch>-<attempt>.side
    programs/<epoch>-<content>                         what runs the job: by a digest of it, and the driver who kept it
    programs/files/<epoch>-<content>                   a file that it needs
    requests/<time>-<token>                            what somebody asks of whoever runs the job
    answers/<time>-<token>                             what became of it
    driver                                             what the driver that runs the job was doing a few seconds ago
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
PROGRAMS = "programs"
REQUESTS = "requests"
ANSWERS = "answers"
DRIVER_NOTE = "driver"
ENDED_NOTE = "ended"
TROUBLE_NOTE = "trouble"

_MICRO_BATCH_DIGITS = 12
_EPOCH_DIGITS = 8
_ATTEMPT = re.compile(r"[A-Za-z0-9_.]+")
_PROGRAM = re.compile(r"programs/(?:files/)?(\d{8,})-[0-9a-f]+")
_WRITTEN = re.compile(r"(shards|side)/(\d+)/(\d+)/(\d{12,})-(\d{8,})-([A-Za-z0-9_.]+)\.(delta|snapshot|side)")


@dataclass(frozen=True, slots=True)
class Written:
    """What the name of a file that a task wrote says.

    Attributes:
        place: the level (`shards`) or the channel (`side`).
        micro_batch: the micro-batch for which it was written: its manifest, and no other, may be the first to name it.
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
    """Of the manifest of a micro-batch."""
    return f"{MANIFESTS}/{micro_batch:0{_MICRO_BATCH_DIGITS}}"


def manifest_micro_batch(name: str) -> int | None:
    """The micro-batch whose manifest has this name; None if it is not a manifest's."""
    number = name.removeprefix(f"{MANIFESTS}/")
    return int(number) if number.isdecimal() and name == manifest_name(int(number)) else None


def epoch_name(epoch: int) -> str:
    """Of an epoch's file."""
    return f"{EPOCHS}/{epoch:0{_EPOCH_DIGITS}}"


def epoch_number(name: str) -> int | None:
    """The epoch whose file has this name; None if it is none."""
    number = name.removeprefix(f"{EPOCHS}/")
    return int(number) if number.isdecimal() and name == epoch_name(int(number)) else None


def floor_name(epoch: int, slot: int) -> str:
    """Of one of an epoch's two records of its floor."""
    return f"{FLOORS}/{epoch:0{_EPOCH_DIGITS}}-{slot}"


def program_name(epoch: int, digest: str) -> str:
    """Of a program's file, as the driver of an epoch keeps it."""
    return f"{PROGRAMS}/{epoch:0{_EPOCH_DIGITS}}-{digest}"


def job_graph_file_name(epoch: int, digest: str) -> str:
    """Of a file that a program needs, as the driver of an epoch keeps it."""
    return f"{PROGRAMS}/files/{epoch:0{_EPOCH_DIGITS}}-{digest}"


def program_epoch(name: str) -> int | None:
    """The epoch whose driver keeps a program, or a file of one, under this name; None if it is no such name."""
    match = _PROGRAM.fullmatch(name)
    return int(match[1]) if match else None


def request_name(id: str) -> str:
    """Of a request to the job."""
    return f"{REQUESTS}/{id}"


def answer_name(id: str) -> str:
    """Of what became of a request."""
    return f"{ANSWERS}/{id}"


def written_name(written: Written) -> str:
    """Of a file that a task writes.

    Raises:
        ValueError: the attempt has characters that a name must not have.
    """
    if not _ATTEMPT.fullmatch(written.attempt) or written.attempt.startswith("."):
        raise ValueError(f"an attempt's name is of letters, digits, '_' and '.': {written.attempt!r}")
    folder = SIDE if written.kind == "side" else SHARDS
    return (
        f"{folder}/{written.place}/{written.shard}/{written.micro_batch:0{_MICRO_BATCH_DIGITS}}"
        f"-{written.epoch:0{_EPOCH_DIGITS}}-{written.attempt}.{written.kind}"
    )


def parse_written(name: str) -> Written | None:
    """What the name says; None if no task of ours gives such names."""
    match = _WRITTEN.fullmatch(name)
    if match is None:
        return None
    _, place, shard, micro_batch, epoch, attempt, kind = match.groups()
    return Written(int(place), int(shard), int(micro_batch), int(epoch), attempt, kind)
