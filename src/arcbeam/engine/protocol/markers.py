"""Markers: the message of each task to every task of the next level.

Owns the digest that identifies a cut. Must not know who sends a marker, nor what a watermark is for.

A task may run more than once, and two attempts may have written different rows. So a marker names its attempt by a
unique token. One digest identifies what a task has read: it covers the tokens of the previous level and that level's
own digest. If two tasks have equal digests, they have read the same attempts on all levels.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from arcbeam.engine.rows import sequences
from arcbeam.engine.watermarks.clocks import Port
from arcbeam.engine.watermarks.stages import upstream_watermarks
from arcbeam.errors import ArcbeamError
from arcbeam.model.timestamps import Timestamp

NO_INPUT: Final = b""
"""The digest of a task at a micro-batch's first level, which reads no other level."""
_DIGEST_BYTES: Final = 16


class InconsistentCutError(ArcbeamError):
    """Tasks of a micro-batch have not read the same attempts of the tasks before them. The micro-batch has no
    effect.
    """

    def __init__(self, why: str) -> None:
        super().__init__(why, "nothing is lost: the micro-batch runs again from the head")
        self.args = (why,)


@dataclass(frozen=True, slots=True)
class Marker:
    """The message of a task when its part of a micro-batch is done.

    Attributes:
        micro-batch, attempt: the run of the micro-batch.
        level, task: the sender.
        token: of the task's attempt; no other attempt of any task has it.
        input_digest: the digest of the attempts that the task has read.
        times: the output watermark of each port. For the task's own ports, the minimum of its shards; for ports of
            earlier levels, as gathered.
    """

    micro_batch: int
    attempt: int
    level: int
    task: int
    token: bytes
    input_digest: bytes
    times: Mapping[Port, Timestamp]


@dataclass(frozen=True, slots=True)
class UpstreamWatermarks:
    """The combined content of all markers of a level.

    Attributes:
        times: the output watermark of each port of all levels before.
        input_digest: the digest of the attempts that the markers name.
    """

    times: Mapping[Port, Timestamp]
    input_digest: bytes


def digest(input_digest: bytes, tokens: Iterable[bytes]) -> bytes:
    """Return the digest of what a level has read.

    Args:
        input_digest: the digest of the previous level.
        tokens: the tokens of the previous level's tasks, in the order of their numbers.
    """
    hashed = hashlib.blake2b(sequences.framed(input_digest), digest_size=_DIGEST_BYTES)
    for token in tokens:
        hashed.update(sequences.framed(token))
    return hashed.digest()


def gather(
    markers: Sequence[Marker],
    *,
    micro_batch: int,
    attempt: int,
    level: int,
    tasks: int,
    ports: Sequence[Port],
    committed_outputs: Mapping[Port, Timestamp],
) -> UpstreamWatermarks:
    """Combine the markers that a task has read; fails unless all exist and agree.

    Args:
        markers: the received markers, in any order; duplicates are equal.
        micro_batch: the running micro-batch.
        attempt: the attempt of the micro-batch.
        level: the level of the senders.
        tasks: the number of senders.
        ports: the ports in the markers: all outputs of that level and of those before.
        committed_outputs: the watermarks of the micro-batch's head.

    Raises:
        InconsistentCutError: a marker is missing, is of another run, or was made from other attempts than another one.
    """
    known: dict[int, Marker] = {}
    for marker in markers:
        if (marker.micro_batch, marker.attempt, marker.level) != (
            micro_batch,
            attempt,
            level,
        ) or not 0 <= marker.task < tasks:
            raise InconsistentCutError(
                f"unexpected marker of task {marker.task} of level {marker.level}, micro-batch {marker.micro_batch}, "
                f"run {marker.attempt}: expected {tasks} task(s) of level {level}, micro-batch {micro_batch}, "
                f"run {attempt}"
            )
        if known.setdefault(marker.task, marker) != marker:
            raise InconsistentCutError(f"rows of two attempts of task {marker.task} of level {level} were read")
    if missing := sorted(set(range(tasks)) - known.keys()):
        raise InconsistentCutError(f"no marker from task(s) {', '.join(map(str, missing))} of level {level}")
    ordered = [known[task] for task in range(tasks)]
    for marker in ordered:
        if marker.input_digest != ordered[0].input_digest:
            raise InconsistentCutError(
                f"tasks 0 and {marker.task} of level {level} have read different attempts of the previous level"
            )
        if absent := [str(port) for port in ports if port not in marker.times]:
            raise InconsistentCutError(f"the marker of task {marker.task} of level {level} lacks {', '.join(absent)}")
    times = upstream_watermarks([marker.times for marker in ordered], dict.fromkeys(ports, tasks), committed_outputs)
    return UpstreamWatermarks(times, digest(ordered[0].input_digest, [marker.token for marker in ordered]))
