"""Markers: what a task of a level says to every task of the next one, and what those may conclude.

Owns the digest by which a cut is known. Must not know who sends a marker, nor what a watermark is for.

A task may run more than once, and two attempts of it may have put out different rows. So a marker names its attempt
with a token that no other attempt has, and what a task has read is known by one digest of all tokens before it: those
of the level before, and that level's own digest. Two tasks have read the same attempts if their digests are equal, all
the way up.
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
"""The digest of a task of the level with which a micro-batch begins: it reads no other."""
_DIGEST_BYTES: Final = 16


class InconsistentCutError(ArcbeamError):
    """Tasks of a micro-batch have not read the same attempts of the tasks before them: the micro-batch counts for
    nothing.
    """

    def __init__(self, why: str) -> None:
        super().__init__(why, "nothing is lost: the micro-batch is run again from the head")
        self.args = (why,)


@dataclass(frozen=True, slots=True)
class Marker:
    """What a task says when its part of a micro-batch is done.

    Attributes:
        micro-batch, attempt: of which run of which micro-batch.
        level, task: who says it.
        token: of the task's attempt; no other attempt of any task has it.
        input_digest: digest of the attempts that the task has read.
        times: output watermark of each port: of its own, the least of its shards; of levels before, as gathered.
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
    """What all markers of a level tell together.

    Attributes:
        times: output watermark of each port of all levels before.
        input_digest: digest of the attempts that they name.
    """

    times: Mapping[Port, Timestamp]
    input_digest: bytes


def digest(input_digest: bytes, tokens: Iterable[bytes]) -> bytes:
    """What a level has read.

    Args:
        input_digest: the digest of the level before.
        tokens: of that level's tasks, in the order of their numbers.
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
    """What a task may conclude when it has read its exchange: nothing, unless all markers are there and agree.

    Args:
        markers: that came, in any order; one that came twice says the same twice.
        micro_batch: that runs.
        attempt: of the micro-batch.
        level: of the tasks that send them.
        tasks: how many there are.
        ports: what they tell of: all outputs of that level and of those before.
        committed_outputs: the watermarks of the micro-batch's head.

    Raises:
        InconsistentCutError: one is missing, is of another run, or was made from other attempts than another one.
    """
    known: dict[int, Marker] = {}
    for marker in markers:
        if (marker.micro_batch, marker.attempt, marker.level) != (
            micro_batch,
            attempt,
            level,
        ) or not 0 <= marker.task < tasks:
            raise InconsistentCutError(
                f"a marker of task {marker.task} of level {marker.level}, micro-batch "
                f"{marker.micro_batch}, run {marker.attempt}, "
                f"came where {tasks} of level {level}, micro-batch {micro_batch}, run {attempt}, belong"
            )
        if known.setdefault(marker.task, marker) != marker:
            raise InconsistentCutError(f"the rows of two attempts of task {marker.task} of level {level} were read")
    if missing := sorted(set(range(tasks)) - known.keys()):
        raise InconsistentCutError(f"no marker came of task(s) {', '.join(map(str, missing))} of level {level}")
    ordered = [known[task] for task in range(tasks)]
    for marker in ordered:
        if marker.input_digest != ordered[0].input_digest:
            raise InconsistentCutError(
                f"tasks 0 and {marker.task} of level {level} have read different attempts of the level before"
            )
        if absent := [str(port) for port in ports if port not in marker.times]:
            raise InconsistentCutError(f"the marker of task {marker.task} of level {level} lacks {', '.join(absent)}")
    times = upstream_watermarks([marker.times for marker in ordered], dict.fromkeys(ports, tasks), committed_outputs)
    return UpstreamWatermarks(times, digest(ordered[0].input_digest, [marker.token for marker in ordered]))
