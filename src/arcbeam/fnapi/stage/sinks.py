"""The outputs of a worker: their bytes become blocks of elements, or timers.

Owns how they are decoded. Must not know what is done with them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any

from apache_beam import coders
from apache_beam.coders.coder_impl import PaneInfoCoderImpl, create_InputStream
from apache_beam.portability import common_urns
from typing_extensions import override

from arcbeam.fnapi.lost import SdkWorkerLostError
from arcbeam.fnapi.service.instruction import Output
from arcbeam.fnapi.wire.incoming import WholeElements
from arcbeam.fnapi.wire.runs import ElementRun, Runs
from arcbeam.fnapi.wire.skipping import CutShortError, Skip, skipper
from arcbeam.fnapi.wire.skippingmany import skipper_of_many
from arcbeam.fnapi.wire.times import from_millis
from arcbeam.harness.encoding.blocks import Block, Each
from arcbeam.harness.encoding.frames import COUNT
from arcbeam.harness.encoding.windowcoder import WindowTuples
from arcbeam.harness.operations.encodedpairs import EncodedPairs, PairLayout


class OutputSink(ABC):
    """An output of the worker.

    Attributes:
        ended: whether the open bundle puts out no more here.
    """

    def __init__(self) -> None:
        self.begin()

    def begin(self) -> None:
        """Begin a bundle."""
        self.ended = False

    @property
    @abstractmethod
    def _stream(self) -> Runs | WholeElements: ...

    def end(self) -> None:
        """End the bundle's output here. Idempotent.

        Raises:
            SdkWorkerLostError: it ends inside of an element.
        """
        self.ended = True
        try:
            self._stream.end()
        except CutShortError as e:
            raise SdkWorkerLostError(f"an output of the SDK worker is malformed: {e}") from None

    def _check(self, output: Output) -> None:
        if self.ended and output.data:
            raise SdkWorkerLostError(f"the SDK worker continues an output of {output.transform!r} that it has ended")


class BlockSink(OutputSink):
    """An output of elements.

    Args:
        protos: `Coder` protos by id.
        id: id of the elements' coder.
        coder: the coder itself, of windowed values.
    """

    def __init__(self, protos: Any, id: str, coder: Any) -> None:
        self._runs = Runs(protos, id)
        self._decode = coder.get_impl().decode_from_stream
        self._decode_values = coders.ListCoder(coder.wrapped_value_coder).get_impl().decode
        self._windows = WindowTuples(coder.window_coder.get_impl())
        self._panes = PaneInfoCoderImpl()
        self._stamp = b""
        self._pairs = _pairs(protos, id, coder.wrapped_value_coder)
        super().__init__()

    @override
    def begin(self) -> None:
        super().begin()
        self._runs.begin()

    def blocks(self, output: Output) -> Iterator[Block]:
        """Yield blocks of the elements that are complete with an output.

        Raises:
            SdkWorkerLostError: the worker does not follow the protocol.
        """
        self._check(output)
        for part in self._runs.of(output.data):
            yield from_millis(self._block(part) if isinstance(part, ElementRun) else Block.of(self._elements(part)))
        if output.last:
            self.end()

    @property
    @override
    def _stream(self) -> Runs:
        return self._runs

    def _block(self, run: ElementRun) -> Block:
        if run.stamp != self._stamp:
            # The next run usually has the same one; blocks are compared by identity.
            stream = create_InputStream(run.stamp)
            self._shared = (
                self._windows.decode_from_stream(stream, True),
                self._panes.decode_from_stream(stream, True),
            )
            self._stamp = run.stamp
        if isinstance(run.micros, list):
            micros: Any = Each(run.micros)
        elif self._pairs is not None:
            return EncodedPairs(self._pairs, run.values, run.ends, run.micros, *self._shared)
        else:
            micros = run.micros
        return Block(self._decode_values(COUNT.pack(run.count) + run.values), micros, *self._shared)

    def _elements(self, data: bytes) -> list[Any]:
        stream, decode, found = create_InputStream(data), self._decode, []
        while stream.size() > 0:
            found.append(decode(stream, True))
        return found


def _pairs(protos: Any, id: str, coder: Any) -> PairLayout | None:
    """Return how pairs are encoded; None if the values are no pairs."""
    pair = protos[protos[id].component_coder_ids[0]]
    if pair.spec.urn != common_urns.coders.KV.urn or type(coder) is not coders.TupleCoder:
        return None
    return PairLayout.of(coder, skipper_of_many(protos, pair.component_coder_ids[0]))


class WholeSink(OutputSink):
    """An output whose elements are cut one by one.

    Args:
        skip: skips an element.
    """

    def __init__(self, skip: Skip) -> None:
        self._skip = skip
        super().__init__()

    @override
    def begin(self) -> None:
        super().begin()
        self._whole = WholeElements(self._skip)

    @property
    @override
    def _stream(self) -> WholeElements:
        return self._whole


class WorkerTimerSink(WholeSink):
    """Timers that the worker sets and clears.

    Args:
        protos: `Coder` protos by id.
        id: id of the timers' coder.
        coder: the coder itself.
    """

    def __init__(self, protos: Any, id: str, coder: Any) -> None:
        self._decode = coder.get_impl().decode_from_stream
        super().__init__(skipper(protos, id))

    def timers(self, output: Output) -> list[Any]:
        """Return the timers that are complete with an output.

        Raises:
            SdkWorkerLostError: the worker does not follow the protocol.
        """
        self._check(output)
        data = self._whole.of(output.data)
        if output.last:
            self.end()
        stream, decode, found = create_InputStream(data), self._decode, []
        while stream.size() > 0:
            found.append(decode(stream, True))
        return found
