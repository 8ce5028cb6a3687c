"""A script: what a TestStream says is to happen to a pipeline, one event after the other.

Owns the shapes of events. Leaf: standard library only. Elements are bytes, which only the harness reads.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from arcbeam.model.timestamps import Duration, Timestamp


@dataclass(frozen=True, slots=True)
class AddElements:
    """Elements come.

    Attributes:
        stage: uid of the stage that puts them out.
        elements: encoded values and their times.
    """

    stage: str
    elements: tuple[tuple[bytes, Timestamp], ...] = field(repr=False)


@dataclass(frozen=True, slots=True)
class AdvanceWatermark:
    """The watermark of an output moves.

    Attributes:
        stage: uid of the stage that the output is of.
        watermark: where it is then.
    """

    stage: str
    watermark: Timestamp


@dataclass(frozen=True, slots=True)
class AdvanceClock:
    """Processing time passes, `by` so much."""

    by: Duration


@dataclass(frozen=True, slots=True)
class ScriptOver:
    """Nothing comes any more: all outputs are complete."""


ScriptEvent = AddElements | AdvanceWatermark | AdvanceClock | ScriptOver


@dataclass(frozen=True, slots=True)
class Script:
    """What a plan's TestStream says.

    Attributes:
        name: full name of the transform.
        outputs: for each tag the uid of the stage that puts out what is added under it.
        events: in their order, without the end; none if a service has them.
        endpoint: of that service; "" if there is none.
    """

    name: str
    outputs: Mapping[str, str]
    events: tuple[ScriptEvent, ...] = field(default=(), repr=False)
    endpoint: str = ""
