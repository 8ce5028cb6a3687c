"""Window functions that only an SDK worker can call: merging, and the mapping from a window to a side input's.

Owns the requests to the worker, and their results: a function of windows has the same result each time. Must not know
keys.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from apache_beam.coders import coders
from apache_beam.coders.coder_impl import create_InputStream
from apache_beam.portability import common_urns
from apache_beam.transforms.window import GlobalWindows

from arcbeam.fnapi import descriptors
from arcbeam.fnapi.lost import SdkWorkerLostError
from arcbeam.fnapi.service.connection import Connection
from arcbeam.fnapi.stage.calls import Calls, Serve
from arcbeam.fnapi.wire.incoming import WholeElements
from arcbeam.fnapi.wire.skipping import CutShortError, skipper
from arcbeam.harness.bundle.workerwindows import Merges
from arcbeam.sizes import cache_size

_KNOWN_MAX = cache_size(10_000)
_GLOBAL = coders.GlobalWindowCoder()


class WindowCalls:
    """Asks a worker about windows.

    Args:
        worker: the worker.
        id: begins the ids of descriptors; unique for the worker.
        protos: `Coder` protos by id, as the worker has them; they have all coders of the strategies.
        address: see `descriptors.descriptor`.
        step: name of the transform that needs the windows, for errors.
        serve: serves the open bundle of the stage.
    """

    def __init__(
        self, worker: Connection, id: str, protos: Mapping[str, Any], address: str, step: str, serve: Serve
    ) -> None:
        self._worker, self._id, self._protos = worker, id, protos
        self._address, self._step, self._serve = address, step, serve

    def merging(self, strategy: Any) -> Callable[[Sequence[Any]], Merges]:
        """Return a function that returns which windows merge.

        Args:
            strategy: `WindowingStrategy`, as the worker has it.
        """
        made = descriptors.merging(f"{self._id}/merge", self._step, self._protos, strategy, self._address)
        window = _coder(self._protos, strategy.window_coder_id)
        some = coders.IterableCoder(window)
        merges = coders.IterableCoder(coders.TupleCoder((window, some)))
        ask = self._asking(made, some, coders.TupleCoder((some, merges)))
        known: dict[frozenset[Any], Merges] = {}

        def merged(windows: Sequence[Any]) -> Merges:
            these = frozenset(windows)
            found = known.get(these)
            if found is None:
                if len(known) > _KNOWN_MAX:
                    known.clear()
                _, answer = ask(windows)
                found = known[these] = [(result, list(replaced)) for result, replaced in answer]
            return found

        return merged

    def mapping(self, channel: int, mapping: Any, main: Any, side: Any) -> Callable[[Any], Any]:
        """Return a function that returns the side input's window for a window of the main input.

        Args:
            channel: of the side input.
            mapping: `FunctionSpec` of the mapping.
            main: `WindowingStrategy` of the main input, as the worker has it.
            side: of the side input.
        """
        id, of = f"{self._id}/map {channel}", (main, side)
        made = descriptors.mapping(id, self._step, self._protos, mapping, of, self._address)
        return self._asking(
            made, _coder(self._protos, main.window_coder_id), _coder(self._protos, side.window_coder_id)
        )

    def _asking(self, made: Any, of: Any, to: Any) -> Callable[[Any], Any]:
        """Return a function that sends a value with coder `of`, and returns the answer with coder `to`."""
        call = Calls(self._worker, made, self._step, self._serve)
        encode = coders.WindowedValueCoder(coders.TupleCoder((coders.BytesCoder(), of)), _GLOBAL).get_impl()
        decode = coders.WindowedValueCoder(coders.TupleCoder((coders.BytesCoder(), to)), _GLOBAL).get_impl()
        skip = skipper(made.coders, descriptors.CALLED)

        def ask(value: Any) -> Any:
            data = call(encode.encode_nested(GlobalWindows.windowed_value((b"", value))))
            whole = WholeElements(skip)
            data = whole.of(data)
            try:
                whole.end()
            except CutShortError as e:
                raise SdkWorkerLostError(f"an answer of the SDK worker about windows is malformed: {e}") from None
            if whole.count != 1:
                raise SdkWorkerLostError(f"the SDK worker has given {whole.count} answers about windows, not one")
            return decode.decode_from_stream(create_InputStream(data), True).value[1]

        return ask


def _coder(protos: Mapping[str, Any], id: str) -> Any:
    """Return the coder that reads windows here."""
    urn = protos[id].spec.urn
    if urn == common_urns.coders.CUSTOM_WINDOW.urn:
        return coders.TimestampPrefixingOpaqueWindowCoder()
    return coders.IntervalWindowCoder() if urn == common_urns.coders.INTERVAL_WINDOW.urn else _GLOBAL
