"""What the engine must know of a stage to run it: its kind, as values.

Owns what a kind is made of, and which parts do not go together. Must not know a plan's protos.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from arcbeam.engine.grouping.strategy import Strategy
from arcbeam.engine.grouping.windowbuffer import Unpack
from arcbeam.engine.protocol.layout import Placed
from arcbeam.engine.state.timers import EXPIRATION
from arcbeam.model.plan import TimeDomain
from arcbeam.model.timestamps import Duration, Timestamp
from arcbeam.model.windows import Window
from arcbeam.sizes import threshold

Decode = Callable[[bytes], Window]
"""Makes a window of what its `ordered` gave."""


def _none_are_packed(packed: bytes) -> Iterable[bytes]:
    raise AssertionError("elements were packed, and nobody says how they are unpacked")


@dataclass(frozen=True, slots=True)
class Plain:
    """Elements are processed as they come."""


@dataclass(frozen=True, slots=True)
class Grouped:
    """Elements are grouped by key and window; panes are processed.

    Attributes:
        strategy: how.
        decode: of its windows.
        unpack: of what its elements were packed to (`arcbeam.engine.grouping.groupings.Together`), if any are.
    """

    strategy: Strategy
    decode: Decode
    unpack: Unpack = _none_are_packed


@dataclass(frozen=True, slots=True)
class Stateful:
    """Elements are processed by key, with state and timers.

    Attributes:
        families: of timers.
        decode: of its windows.
        expires: when the state of a window goes: its end and the allowed lateness; just its end if the input is in
            order, because the lateness is in its clock then.
        in_order: elements are processed in the order of their times, so much behind the watermark; None: as they
            come.
        at_expiration: there is a callback for it, which may put out elements of the window's last moment.
        cells: there is state. Without it, nothing may be left at the end of a window but timers of processing time.
    """

    families: Mapping[str, TimeDomain]
    decode: Decode
    expires: Callable[[Window], Timestamp]
    in_order: Duration | None = None
    at_expiration: bool = False
    cells: bool = True


@dataclass(frozen=True, slots=True)
class Splittable:
    """Elements have restrictions, which are processed in parts.

    Attributes:
        bound: how many of one root should live in a shard at most.
    """

    bound: int = threshold(1000, 3)


StageKind = Plain | Grouped | Stateful | Splittable


@dataclass(frozen=True, slots=True)
class StageSpec:
    """A stage, its place and its kind.

    Attributes:
        placed: where it is.
        kind: what it does with what comes.
        decode: of its elements' windows; only needed if it has side inputs, or stable input.
        stable: elements are processed in a micro-batch after the one in which they came: the same ones however often it
            runs.
        prepares: its user code offers `prepare_to_shutdown`.
    """

    placed: Placed
    kind: StageKind = field(default_factory=Plain)
    decode: Decode | None = None
    stable: bool = False
    prepares: bool = False

    def __post_init__(self) -> None:
        """Checks what goes together.

        Raises:
            ValueError: it does not; the stage is named.
        """
        if self.placed.side_inputs and isinstance(self.kind, Grouped):
            raise ValueError(f"{self.placed.name!r} groups, and has side inputs: what reads them is a stage of its own")
        if self.stable and isinstance(self.kind, Grouped):
            raise ValueError(f"{self.placed.name!r} groups, and wants stable input: who wants it is a stage of its own")
        if self.stable and self.decode is None:
            raise ValueError(f"{self.placed.name!r} wants stable input, so its windows must be known to be parked")
        if self.placed.side_inputs and self.decode is None:
            raise ValueError(f"{self.placed.name!r} has side inputs, so its windows must be known to be parked")
        if isinstance(self.kind, Stateful) and EXPIRATION in self.kind.families:
            raise ValueError(f"a timer family of {self.placed.name!r} has no name: that is the end of a window's")
