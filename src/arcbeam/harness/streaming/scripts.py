"""A script for user code: the elements that it adds, and the current time.

Owns both. Must not know when events happen.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence

from apache_beam.testing.test_stream import WindowedValueHolder
from apache_beam.transforms.window import GlobalWindow
from apache_beam.utils.timestamp import Timestamp as SdkTimestamp
from apache_beam.utils.windowed_value import PANE_INFO_UNKNOWN, create

from arcbeam.engine.grouping.groupings import KeyElements
from arcbeam.harness.encoding.blocks import Block
from arcbeam.harness.streaming.elements import NO_KEY, BlockElements, Codec
from arcbeam.model.timestamps import Timestamp

_GLOBAL = (GlobalWindow(),)


def scripted_elements(
    elements: Sequence[tuple[bytes, Timestamp]], codec: Codec, decode: Callable[[bytes], object]
) -> Iterator[tuple[bytes, KeyElements]]:
    """Yield elements in the global window; one that the SDK's holder wraps has its own time, windows and pane.

    Args:
        elements: encoded values and their times.
        codec: codec of the stage that outputs them.
        decode: decodes a value.
    """
    if elements:
        created = (create(decode(value), time, _GLOBAL, PANE_INFO_UNKNOWN) for value, time in elements)
        block = Block.of([_unwrapped(element.value) or element for element in created])
        yield NO_KEY, BlockElements(block, codec)


def _unwrapped(value: object) -> object | None:
    return value.windowed_value if isinstance(value, WindowedValueHolder) else None


@contextlib.contextmanager
def showing(now: Timestamp) -> Iterator[None]:
    """While open, `Timestamp.now()` in this process returns the job's time.

    The SDK calls it where it needs processing time, for example to compute the delay of a deferred restriction. If only
    a script moves the clock, the real time would be wrong.
    """
    real = SdkTimestamp.now
    SdkTimestamp.now = staticmethod(lambda: SdkTimestamp(micros=now))
    try:
        yield
    finally:
        SdkTimestamp.now = staticmethod(real)
