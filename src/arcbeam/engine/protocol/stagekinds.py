"""The kinds of stages: what the engine must know of a stage to run it, as values.

Owns the parts of a kind, and which parts exclude each other. Must not know a plan's protos.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from arcbeam.engine.grouping.strategy import Strategy
from arcbeam.engine.grouping.windowbuffer import Unpack
from arcbeam.engine.protocol.layout import StagePlacement
from arcbeam.engine.state.timers import EXPIRATION
from arcbeam.model.plan import TimeDomain
from arcbeam.model.timestamps import Duration, Timestamp
from arcbeam.model.windows import Window
from arcbeam.sizes import threshold

Decode = Callable[[bytes], Window]
"""Makes a window from the result of its `ordered`."""


def _none_are_packed(packed: bytes) -> Iterable[bytes]:
    raise AssertionError("elements are packed, but the stage has no function to unpack them")


@dataclass(frozen=True, slots=True)
class Plain:
    """Elements are processed when they arrive."""


@dataclass(frozen=True, slots=True)
class Grouped:
    """Elements are grouped by key and window; panes are processed.

    Attributes:
        strategy: the grouping strategy.
        decode: the decoder of its windows.
        unpack: the function that unpacks elements (`engine.grouping.groupings.UniformElements`), if any are packed.
    """

    strategy: Strategy
    decode: Decode
    unpack: Unpack = _none_are_packed


@dataclass(frozen=True, slots=True)
class Stateful:
    """Elements are processed by key, with state and timers.

    Attributes:
        families: the timer families.
        decode: the decoder of its windows.
        expires: when the state of a window expires: at its end plus the allowed lateness. If the input is in order, at
            its end, because the clock of such a stage includes the lateness.
        in_order: elements are processed in the order of their times, later than the watermark by this; None: when they
            arrive.
        at_expiration: the user code has a callback for expiration, which may output elements at the window's last
            moment.
        cells: there is state. Without it, only processing-time timers may be left at the end of a window.
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
        bound: the wanted maximum of restrictions of one root in a shard.
    """

    bound: int = threshold(1000, 3)


StageKind = Plain | Grouped | Stateful | Splittable


@dataclass(frozen=True, slots=True)
class StageSpec:
    """A stage, its place and its kind.

    Attributes:
        placed: its place.
        kind: how it processes elements.
        decode: the decoder of its elements' windows; required only with side inputs or stable input.
        stable: elements are processed in a micro-batch after the one in which they arrived, so that retries see the
            same elements.
        prepares: its user code has `prepare_to_shutdown`.
    """

    placed: StagePlacement
    kind: StageKind = field(default_factory=Plain)
    decode: Decode | None = None
    stable: bool = False
    prepares: bool = False

    def __post_init__(self) -> None:
        """Check that the parts fit together.

        Raises:
            ValueError: they do not; the message names the stage.
        """
        if self.placed.side_inputs and isinstance(self.kind, Grouped):
            raise ValueError(f"{self.placed.name!r} groups and has side inputs: read these in a stage of its own")
        if self.stable and isinstance(self.kind, Grouped):
            raise ValueError(f"{self.placed.name!r} groups and requires stable input: require it in a stage of its own")
        if self.stable and self.decode is None:
            raise ValueError(f"{self.placed.name!r} requires stable input: blocking its elements requires `decode`")
        if self.placed.side_inputs and self.decode is None:
            raise ValueError(f"{self.placed.name!r} has side inputs: blocking its elements requires `decode`")
        if isinstance(self.kind, Stateful) and EXPIRATION in self.kind.families:
            raise ValueError(f"a timer family of {self.placed.name!r} has an empty name, which is reserved")
