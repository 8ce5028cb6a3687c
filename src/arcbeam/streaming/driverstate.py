"""The state that each commit stores for the next driver, in addition to the manifest's fields.

Owns its format, and the numbers of stages. Must not know what a driver does.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Final

from arcbeam import documents
from arcbeam.engine.coordinator import AT_BEGINNING, JobStarted, ScriptPlace
from arcbeam.engine.protocol.layout import Layout
from arcbeam.engine.watermarks.clocks import Port
from arcbeam.engine.watermarks.observed import Seen
from arcbeam.engine.watermarks.outlierfilter import UnconfirmedTimes
from arcbeam.engine.watermarks.sketches import Recent
from arcbeam.engine.watermarks.stages import WatermarkTimes
from arcbeam.model.commits import CommitMode
from arcbeam.model.timestamps import Timestamp
from arcbeam.store.manifest.values import ENDED, Manifest

VERSION: Final = 1
"""Of the format of `Progress`."""
_NUMBERS = range(1, 1 << 16)
"""A stage's number has two bytes in rows."""


@dataclass(frozen=True, slots=True)
class Progress:
    """The content of `Manifest.progress`.

    Attributes:
        begun: the sources of the newest micro-batch's pipeline: they are part of a committed micro-batch.
        drains_to: the name that the last commit will have, if the job drains.
        numbers: the numbers of all stages that the job ever had, by name: rows of state contain them.
        script: the position in the job's script.
        seen: the latest time that each observer has seen, by its transform.
        recent: the recent times of observers with a quantile.
        unconfirmed: later times that observers with an outlier filter have seen and not accepted.
    """

    begun: Collection[str] = ()
    drains_to: str = ""
    numbers: Mapping[str, int] = field(default_factory=dict)
    script: ScriptPlace = AT_BEGINNING
    seen: Seen = field(default_factory=dict)
    recent: Mapping[str, Recent] = field(default_factory=dict)
    unconfirmed: UnconfirmedTimes = field(default_factory=dict)

    def encoded(self) -> bytes:
        """Return the value for a manifest."""
        record = {
            "begun": sorted(self.begun),
            "drains_to": self.drains_to,
            "numbers": dict(self.numbers),
            "script": asdict(self.script),
            "seen": dict(self.seen),
            "recent": {name: recent.encoded() for name, recent in self.recent.items()},
            "unconfirmed": dict(self.unconfirmed),
        }
        return documents.encode(VERSION, record)


def progress_of(head: Manifest) -> Progress:
    """Return the progress in a manifest; empty for a new job's first one."""
    if not head.progress:
        return Progress()
    record = documents.decode(head.progress, VERSION, "the progress of a job")
    return Progress(
        tuple(record["begun"]),
        record["drains_to"],
        record["numbers"],
        ScriptPlace(**record["script"]),
        record["seen"],
        {name: Recent.decoded(each) for name, each in record["recent"].items()},
        {name: tuple(map(Timestamp, times)) for name, times in record["unconfirmed"].items()},
    )


def numbered(head: Manifest, stages: Iterable[str]) -> dict[str, int]:
    """Return the numbers of a pipeline's stages: a stage keeps its number, and no other stage ever receives it.

    Raises:
        ValueError: there are more stages than numbers.
    """
    known = progress_of(head).numbers
    free = iter(sorted(set(_NUMBERS) - set(known.values())))
    numbers: dict[str, int] = {}
    for stage in stages:
        number = known.get(stage) or next(free, None)
        if number is None:
            raise ValueError(f"no number is left for stage {stage!r}: a job has at most {len(_NUMBERS)} in its life")
        numbers[stage] = number
    return numbers


def remembered(head: Manifest, numbers: Mapping[str, int]) -> dict[str, int]:
    """Return the numbers of all stages that the job ever had, including those of the current pipeline.

    Raises:
        ValueError: a stage has another number than before, or that of another stage: it would read wrong rows.
    """
    known = dict(progress_of(head).numbers)
    names = {number: name for name, number in known.items()}
    for name, number in numbers.items():
        if known.get(name, number) != number or names.get(number, name) != name:
            raise ValueError(f"stage {name!r} has number {number}, but the job's numbers are {known}")
        known[name], names[number] = number, name
    return known


def started(head: Manifest, layout: Layout, now: Timestamp) -> JobStarted:
    """Return the machine's first event, after its driver has opened the job with a layout."""
    progress = progress_of(head)
    return JobStarted(
        now,
        head.micro_batch,
        head.time,
        times_of(head),
        unbegun=layout.sources.difference(progress.begun),
        draining=head.mode is CommitMode.DRAINING,
        savepoint=progress.drains_to,
        unpublished=bool(head.committables),
        ended=head.mode if head.mode in ENDED else None,
        script=progress.script,
    )


def times_of(manifest: Manifest) -> WatermarkTimes:
    """Return the watermarks of a manifest."""
    inputs = {of.stage: of.input for of in manifest.watermarks}
    outputs = {Port(of.stage, out.output): out.watermark for of in manifest.watermarks for out in of.outputs}
    upstream = {of.stage: of.upstream for of in manifest.watermarks}
    progress = progress_of(manifest)
    return WatermarkTimes(inputs, outputs, upstream, progress.seen, progress.recent, progress.unconfirmed)
