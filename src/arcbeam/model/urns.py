"""Names of our own transforms inside a stage's payload: with them, `translate` shows `harness` a stage's input and
output.

A leaf: standard library only. The payload of each is the JSON of the dataclass with its name.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

READ_URN = "arcbeam:read:v1"
WRITE_URN = "arcbeam:write:v1"
REMOTE_URN = "arcbeam:remote:v1"
"""Stands for the transforms that an SDK worker runs; its outputs' tags are those of the worker's sinks."""
PRECOMBINE_URN = "arcbeam:precombine:v1"
LATE_URN = "arcbeam:late:v1"
"""Follows the read of a grouping and passes on its output; dropped elements leave by its `LATE_TAG`."""
LATE_ANNOTATION = "arcbeam:late"
"""The annotation of a ParDo that this runner replaces by it."""
LATE_TAG = "late"
EMBEDDED_ANNOTATION = "arcbeam:embedded"
"""The annotation of a composite whose Python transforms run in Spark's Python workers, also beside SDK workers."""
PUBLISH_URN = "arcbeam:publish:v1"
"""Takes committables out of the stage; its payload is that of the ParDo whose DoFn publishes them."""
PUBLISH_ANNOTATION = "arcbeam:publish"
"""The annotation of a ParDo that this runner replaces by it."""
QUICK = b"quick"
"""The value of that annotation if a driver may publish, too."""
SECRETS_ANNOTATION = "arcbeam:secret_variables"
"""The annotation of a composite: the names of the environment variables that are secret, joined by ","."""
STATE_ANNOTATION = "arcbeam:state"
"""The annotation of a ParDo with state: what its bytes depend on besides coders, in UTF-8. Part of its stage's
shape."""
FEW_KEYS_ANNOTATION = "arcbeam:few_keys"
"""The annotation of a ParDo whose state cannot grow without end: it has a fixed number of keys."""
INTERVAL_WINDOW_URN = "arcbeam:coder:interval_window:v1"
"""Our coder, which is exact where the standard one has milliseconds."""
PREFIXED_URN = "arcbeam:coder:prefixed:v1"
"""Our coder of what is bytes in stages with SDK workers, for embedded stages beside them."""
WORKER_WINDOWS_URN = "arcbeam:window_fn:worker:v1"
"""A window function that only an SDK worker can call; the payload is its `WindowingStrategy`, as the worker has it."""
KEY_CODER_URN = "arcbeam:coder:key:v1"
"""The deterministic form of its component, for keys that are compared by encoding; the payload names the user."""


@dataclass(frozen=True, slots=True)
class ReadSpec:
    """How a stage's root gets its elements.

    Attributes:
        mode: "impulse", "elements" (encoded windowed values), "groups" (GroupByKey, default trigger), "triggered"
            (GroupByKey, any trigger), "keyed" (elements of one key adjacent: state and timers), "restrictions",
            "script" (elements of a script).
        time_sorted: "keyed" only: elements of a key by event time.
        coder: id of the coder of written elements, or of a script's; "" if it is the PCollection's own.
        counts: whether no other operation counts the PCollection's elements.
        nested: "script" only: its elements are encoded in nested context, as in Go. One that the runner cannot decode
            is bytes then, after its length.
    """

    mode: str
    time_sorted: bool = False
    coder: str = ""
    counts: bool = True
    nested: bool = False

    def to_bytes(self) -> bytes:
        """Return the transform's payload."""
        return json.dumps(asdict(self)).encode()

    @staticmethod
    def from_bytes(data: bytes) -> ReadSpec:
        """Return the spec in a payload."""
        return ReadSpec(**json.loads(data))


@dataclass(frozen=True, slots=True)
class WriteSpec:
    """How elements leave a stage.

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
        """Return the transform's payload."""
        return json.dumps(asdict(self)).encode()

    @staticmethod
    def from_bytes(data: bytes) -> WriteSpec:
        """Return the spec in a payload."""
        return WriteSpec(**json.loads(data))
