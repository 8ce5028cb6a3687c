"""Names of our own transforms inside a stage's payload: how `translate` tells `harness` where elements enter and leave.

Leaf: standard library only. The payload of each is the JSON of the dataclass beside it.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

READ_URN = "arcbeam:read:v1"
WRITE_URN = "arcbeam:write:v1"
PRECOMBINE_URN = "arcbeam:precombine:v1"
LATE_URN = "arcbeam:late:v1"
"""Stands behind the read of a grouping, and passes on what that gives; what is dropped leaves by its `LATE_TAG`."""
LATE_ANNOTATION = "arcbeam:late"
"""On a ParDo that is such a one to this runner."""
LATE_TAG = "late"
PUBLISH_URN = "arcbeam:publish:v1"
"""Takes committables out of the stage; its payload is that of the ParDo whose DoFn publishes them."""
PUBLISH_ANNOTATION = "arcbeam:publish"
"""On a ParDo that is such a one to this runner."""
STATE_ANNOTATION = "arcbeam:state"
"""On a ParDo with state: what the bytes in it depend on beside their coders, in UTF-8. Part of its stage's shape."""
INTERVAL_WINDOW_URN = "arcbeam:coder:interval_window:v1"
"""A coder of ours that is exact where the standard one has milliseconds."""
KEY_CODER_URN = "arcbeam:coder:key:v1"
"""Its component's deterministic form, for keys that are compared by their encoding; the payload names who does so."""


@dataclass(frozen=True, slots=True)
class ReadSpec:
    """How a stage's root gets its elements.

    Attributes:
        mode: "impulse", "elements" (encoded windowed values), "groups" (GroupByKey, default trigger), "triggered"
            (GroupByKey, any trigger), "keyed" (elements of one key adjacent: state and timers), "restrictions",
            "script" (what a script adds).
        time_sorted: "keyed" only: elements of a key by event time.
        coder: id of the coder that the elements were written with, or a script has them in; "" if it is the
            PCollection's own.
        counts: whether nobody else counts the PCollection's elements.
    """

    mode: str
    time_sorted: bool = False
    coder: str = ""
    counts: bool = True

    def to_bytes(self) -> bytes:
        """The transform's payload."""
        return json.dumps(asdict(self)).encode()

    @staticmethod
    def from_bytes(data: bytes) -> ReadSpec:
        """Reads a payload back."""
        return ReadSpec(**json.loads(data))


@dataclass(frozen=True, slots=True)
class WriteSpec:
    """Where elements leave a stage.

    Attributes:
        channel: index of the channel.
        routing: value of `model.plan.Routing`.
        explode: the elements are pairs of a restriction and its size: write one that is in several windows once per
            window, and spread them by size.
    """

    channel: int
    routing: str
    explode: bool = False

    def to_bytes(self) -> bytes:
        """The transform's payload."""
        return json.dumps(asdict(self)).encode()

    @staticmethod
    def from_bytes(data: bytes) -> WriteSpec:
        """Reads a payload back."""
        return WriteSpec(**json.loads(data))
