"""A script: the events of a TestStream, in order.

Owns the shapes of events. A leaf: standard library only. Elements are bytes, which only the harness reads.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from arcbeam.model.timestamps import Duration, Timestamp


@dataclass(frozen=True, slots=True)
class AddElements:
    """Elements arrive.

    Attributes:
        stage: uid of the stage that outputs them.
        elements: encoded values and their times.
    """

    stage: str
    elements: tuple[tuple[bytes, Timestamp], ...] = field(repr=False)


@dataclass(frozen=True, slots=True)
class AdvanceWatermark:
    """The watermark of an output advances.

    Attributes:
        stage: uid of the output's stage.
        watermark: the new watermark.
    """

    stage: str
    watermark: Timestamp


@dataclass(frozen=True, slots=True)
class AdvanceClock:
    """Processing time advances, `by` so much."""

    by: Duration


@dataclass(frozen=True, slots=True)
class ScriptOver:
    """The script ends: all outputs are complete."""


ScriptEvent = AddElements | AdvanceWatermark | AdvanceClock | ScriptOver


@dataclass(frozen=True, slots=True)
class Script:
    """The script of a plan's TestStream.

    Attributes:
        name: full name of the transform.
        outputs: for each tag, the uid of the stage that outputs its elements.
        events: in order, without the end; none if a service provides them.
        endpoint: of that service; "" if there is none.
        real_clock: whether processing time begins with the job, for SDK workers, in which user code reads the real
            clock; else in 1970. In both cases only events advance it.
    """

    name: str
    outputs: Mapping[str, str]
    events: tuple[ScriptEvent, ...] = field(default=(), repr=False)
    endpoint: str = ""
    real_clock: bool = False
