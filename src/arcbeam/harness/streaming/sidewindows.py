"""The side inputs of a stage in a micro-batch: which of their windows an element reads, and which are available.

Owns the mapping from a window of the stage to windows of its side inputs, as in the SDK. Must not know when the
watermark has passed a window.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from apache_beam.portability import common_urns
from apache_beam.portability.api import beam_runner_api_pb2 as runner_pb
from apache_beam.pvalue import SideInputData
from apache_beam.runners import pipeline_context
from apache_beam.transforms.sideinputs import default_window_mapping_fn

from arcbeam.harness.bundle.windows import Windows
from arcbeam.harness.bundle.workerwindows import WorkerWindowFn
from arcbeam.model.plan import Stage
from arcbeam.model.timestamps import Timestamp
from arcbeam.model.windows import Window
from arcbeam.sizes import cache_size

_MULTIMAP = common_urns.side_inputs.MULTIMAP.urn
_KNOWN_MAX = cache_size(10_000)


class Presence(Protocol):
    """Which contents of side inputs exist. Windows are encoded as in the SDK."""

    def has_chunks(self, channel: int, window: bytes) -> bool:
        """Return whether an iterable has contents in a window."""

    def has_keys(self, channel: int, window: bytes) -> bool:
        """Return whether a multimap has contents in a window."""


@dataclass(frozen=True, slots=True)
class _Side:
    """A side input of the stage."""

    channel: int
    keyed: bool
    eager: bool
    mapping: Any
    windows: Windows
    encode: Any


class SideWindows:
    """The side inputs of a stage.

    Args:
        stage: the stage.
        windows: the windows of the stage's input.

    Attributes:
        unmapped: the side inputs whose mapping only an SDK worker can call, by channel: the mapping and the windowing
            strategies of the main input and of the side input, as the worker has them. They need a `map_by`.
    """

    def __init__(self, stage: Stage, windows: Windows) -> None:
        self._windows = windows
        here = runner_pb.Components.FromString(stage.payload)
        components = here if stage.remote is None else runner_pb.Components.FromString(stage.remote.components)
        context = pipeline_context.PipelineContext(here)
        self._sides: dict[int, _Side] = {}
        self.unmapped: dict[int, tuple[Any, Any, Any]] = {}
        for side in stage.side_inputs:
            transform = components.transforms[side.transform]
            proto = runner_pb.ParDoPayload.FromString(transform.spec.payload).side_inputs[side.tag]
            pcoll = components.pcollections[transform.inputs[side.tag]]
            strategy = context.windowing_strategies.get_by_id(pcoll.windowing_strategy_id)
            coder = context.coders.get_by_id(here.windowing_strategies[pcoll.windowing_strategy_id].window_coder_id)
            if stage.remote is None:
                mapping: Any = SideInputData.from_runner_api(proto, context).window_mapping_fn
            elif isinstance(strategy.windowfn, WorkerWindowFn):
                mapping = None
                self.unmapped[side.channel] = (
                    proto.window_mapping_fn,
                    components.windowing_strategies[_main(components, transform).windowing_strategy_id],
                    strategy.windowfn.strategy,
                )
            else:
                mapping = default_window_mapping_fn(strategy.windowfn)
            # If several transforms of the stage read it, they map alike: the mapping belongs to the side input.
            self._sides[side.channel] = _Side(
                side.channel,
                proto.access_pattern.urn == _MULTIMAP,
                side.eager,
                mapping,
                Windows(coder),
                coder.encode,
            )
        self._needed: dict[Window, tuple[tuple[int, bytes], ...]] = {}

    def needed(self, window: Window) -> Sequence[tuple[int, bytes]]:
        """Return what an element of a window reads: channels, and their windows in the engine's encoding."""
        known = self._needed.get(window)
        if known is None:
            if len(self._needed) > _KNOWN_MAX:
                self._needed.clear()
            theirs = self._windows.theirs(window)
            known = self._needed[window] = tuple(
                (side.channel, side.windows.ours(side.mapping(theirs)).ordered()) for side in self._sides.values()
            )
        return known

    def map_by(self, channel: int, mapping: Callable[[Any], Any]) -> None:
        """Set the mapping of an unmapped side input, before any element."""
        self._sides[channel] = replace(self._sides[channel], mapping=mapping)

    def until(self, channel: int, window: bytes) -> Timestamp:
        """Return the last moment of a side input's window."""
        return self._sides[channel].windows.decode(window).max_timestamp

    def is_there(self, channel: int, window: bytes, presence: Presence) -> bool:
        """Return whether a window may be read before its end: its trigger permits it, and it has contents."""
        side = self._sides[channel]
        # SUBTLE: an interval is read when it is complete, although its trigger may fire before: the SDK's tests for
        # every runner expect that.
        if not side.eager or side.windows.intervals:
            return False
        encoded = side.encode(side.windows.theirs(side.windows.decode(window)))
        return presence.has_keys(channel, encoded) if side.keyed else presence.has_chunks(channel, encoded)


def _main(components: Any, transform: Any) -> Any:
    """Return the PCollection of the main input of a transform that has a side input."""
    sides = runner_pb.ParDoPayload.FromString(transform.spec.payload).side_inputs
    return next(components.pcollections[pcoll] for tag, pcoll in transform.inputs.items() if tag not in sides)
