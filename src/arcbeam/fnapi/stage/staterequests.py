"""What a worker asks for while it processes a bundle: side inputs, and the state of the bundle's user keys.

Owns pages, and the encoding of windows, which workers write with milliseconds. Runs on the task's thread: the state and
the side inputs of a task are for one thread. Must not know where side inputs are stored.
"""

from __future__ import annotations

import contextlib
import struct
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any, Final

from apache_beam.portability.api import beam_fn_api_pb2 as fn_pb
from apache_beam.portability.api import beam_runner_api_pb2 as runner_pb
from apache_beam.runners.pipeline_context import PipelineContext

from arcbeam.fnapi.descriptors import par_do_payload
from arcbeam.fnapi.stage.keybatch import KeyBatch
from arcbeam.fnapi.wire.skipping import Skip, UnknownCoderError, read_varint, skipper
from arcbeam.harness.state.statehandler import CellId
from arcbeam.harness.streaming.state import ViewState
from arcbeam.model.plan import Stage
from arcbeam.sizes import threshold

_PAGE: Final = threshold(1 << 20)
"""Bytes of an answer, if it does not end earlier; one chunk is never divided."""
_OF_KEYS: Final = (
    "bag_user_state",
    "ordered_list_user_state",
    "multimap_user_state",
    "multimap_keys_user_state",
    "multimap_entries_user_state",
)
_COUNT: Final = struct.Struct(">i")


class _Raw:
    """A coder of what is encoded already."""

    def encode(self, data: bytes) -> bytes:
        return data

    def decode(self, data: bytes) -> bytes:
        return data


_RAW: Final = _Raw()


class _Entries:
    """A coder of the entries of an ordered list, (sort key, encoded entry), in which the sort key is encoded, too."""

    def encode(self, entry: tuple[int, bytes]) -> bytes:
        return entry[1]

    def decode(self, data: bytes) -> bytes:
        return data


_ENTRIES: Final = _Entries()


class StateRequests:
    """Answers the requests of one stage's bundles, one bundle after the other.

    Args:
        stage: the stage; it has a part for a worker.
        state: side inputs and state.
        key_batch: the user keys of the open bundle; None if the stage has no state.

    Attributes:
        sides: the side inputs of the stage, by transform and the transform's name for it.
    """

    def __init__(self, stage: Stage, state: ViewState, key_batch: KeyBatch | None = None) -> None:
        assert stage.remote is not None
        self._state, self._key_batch = state, key_batch
        self.sides = [(side.transform, side.tag) for side in stage.side_inputs]
        part = runner_pb.Components.FromString(stage.remote.components)
        windows = _WindowCoders(runner_pb.Components.FromString(stage.payload), part)
        self._windows: dict[tuple[str, str], tuple[Any, Any]] = {}
        for side in stage.side_inputs:
            pcoll = part.pcollections[part.transforms[side.transform].inputs[side.tag]]
            self._windows[side.transform, side.tag] = windows.of(pcoll.windowing_strategy_id)
        self._skips: dict[tuple[str, str], Skip] = {}
        for transform in part.transforms.values():
            payload = par_do_payload(transform)
            for name, spec in payload.state_specs.items() if payload is not None else ():
                coder = _coder_of_elements(spec)
                # A Java worker does not prefix values of its own coders.
                with contextlib.suppress(UnknownCoderError):
                    if coder is not None:
                        self._skips[transform.unique_name, name] = skipper(part.coders, coder)
        self._main = windows.of(part.pcollections[stage.remote.source.pcoll].windowing_strategy_id)
        self.begin()

    def begin(self) -> None:
        """Begin a bundle: large groups are dropped."""
        self._begun: dict[tuple[bytes, int], Iterator[bytes]] = {}
        """What follows a page that was read, by key and the number of chunks before; so nothing is read twice."""
        self._large: dict[bytes, Iterable[bytes]] = {}

    def keep(self, values: Iterable[bytes]) -> bytes:
        """Keep the values of a large group until the next bundle begins; return the token by which they are read.

        Args:
            values: encoded in nested context; iterated once for each time that the worker reads them.
        """
        token = b"%d" % len(self._large)
        self._large[token] = values
        return token

    def answer(self, request: Any) -> Any:
        """Return the `StateResponse` of a `StateRequest`. What cannot be answered is an error in it."""
        response = fn_pb.StateResponse(id=request.id)
        try:
            key = self._ours(request.state_key)
            match request.WhichOneof("request"):
                case "get":
                    self._get(request.get.continuation_token, key, response.get)
                case "append":
                    self._begun.clear()
                    self._append(key, request.append.data)
                    response.append.SetInParent()
                case "clear":
                    self._begun.clear()
                    self._clear(key)
                    response.clear.SetInParent()
        except Exception as e:
            return fn_pb.StateResponse(id=request.id, error=f"{type(e).__name__}: {e}")
        return response

    def _append(self, key: Any, data: bytes) -> None:
        kind = key.WhichOneof("type")
        # SUBTLE: what is appended may be several elements, or none. The content of a bag, and of a multimap's key, is
        # their concatenation, so their limits do not matter there.
        if kind == "bag_user_state":
            self._state.extend(key, _RAW, [data] if data else [])
        elif kind == "ordered_list_user_state":
            self._state.extend(key, _ENTRIES, self._entries(key.ordered_list_user_state, data))
        elif kind == "multimap_user_state":
            self._state.extend_map(_cell(key.multimap_user_state), key.multimap_user_state.map_key, data)
        else:
            raise ValueError(f"state of kind '{kind}' cannot be written")

    def _entries(self, state: Any, data: bytes) -> Iterator[tuple[int, bytes]]:
        """Yield the entries of appended bytes with their sort keys: each is a varint and an element."""
        skip, at = self._skips[state.transform_id, state.user_state_id], 0
        while at < len(data):
            sort_key, begin = read_varint(data, at)
            end = skip(data, begin)
            yield sort_key - (1 << 64) if sort_key >> 63 else sort_key, data[at:end]
            at = end

    def _clear(self, key: Any) -> None:
        kind = key.WhichOneof("type")
        if kind in ("bag_user_state", "ordered_list_user_state"):
            self._state.clear(key)
        elif kind == "multimap_user_state":
            self._state.clear_map_key(_cell(key.multimap_user_state), key.multimap_user_state.map_key)
        elif kind == "multimap_keys_user_state":
            self._state.clear_map(_cell(key.multimap_keys_user_state))
        else:
            raise ValueError(f"state of kind '{kind}' cannot be written")

    def _get(self, token: bytes, key: Any, response: Any) -> None:
        # SUBTLE: a token is a number of chunks, not an iterator: a worker may use it again, also in a later bundle, and
        # then reads what was appended meanwhile.
        start, place = int(token or b"0"), key.SerializeToString()
        chunks = self._begun.pop((place, start), None)
        if chunks is None:
            chunks = islice(self._chunks(key), start, None)
        page, size = [], 0
        for chunk in chunks:
            page.append(chunk)
            size += len(chunk)
            if size >= _PAGE:
                next = start + len(page)
                response.continuation_token = b"%d" % next
                self._begun[place, next] = chunks
                break
        response.data = b"".join(page)

    def _chunks(self, key: Any) -> Iterator[bytes]:
        kind = key.WhichOneof("type")
        if kind in ("bag_user_state", "ordered_list_user_state"):
            return iter(self._state.blocking_get(key, _RAW))
        if kind == "multimap_user_state":
            return self._state.read_map(_cell(key.multimap_user_state), key.multimap_user_state.map_key)
        if kind == "multimap_keys_user_state":
            return self._state.read_map_keys(_cell(key.multimap_keys_user_state))
        if kind == "multimap_entries_user_state":
            return self._map_entries(key.multimap_entries_user_state)
        if kind == "runner":
            return iter(self._large[key.runner.key])
        return self._state.side_chunks(key)

    def _map_entries(self, state: Any) -> Iterator[bytes]:
        """Yield the entries of a multimap: for each key, the key and the list of its values."""
        skip = self._skips.get((state.transform_id, state.user_state_id))
        if skip is None:
            raise ValueError(
                f"entries of the state '{state.user_state_id}' cannot be read: its values have no known length. "
                "Use a standard coder of Beam for them, or read keys and values"
            )
        cell = _cell(state)
        for map_key in self._state.read_map_keys(cell):
            values = b"".join(self._state.read_map(cell, map_key))
            count = at = 0
            while at < len(values):
                at, count = skip(values, at), count + 1
            yield b"".join((map_key, _COUNT.pack(count), values))

    def _ours(self, state_key: Any) -> Any:
        """Return the key with the window as it is encoded here."""
        ours = fn_pb.StateKey()
        ours.CopyFrom(state_key)
        kind = ours.WhichOneof("type")
        if kind not in (None, "runner"):
            part = getattr(ours, kind)
            there, here = self._windows.get((part.transform_id, getattr(part, "side_input_id", "")), self._main)
            part.window = here.encode(there.decode(part.window))
            if kind in _OF_KEYS and self._key_batch is not None:
                self._state.enter(self._key_batch.key_of(part.key))
        return ours


class _WindowCoders:
    """The coders of windows in a worker's requests, and of the same windows here.

    Args:
        here, there: the stage's components in the task's process and in the worker.
    """

    def __init__(self, here: Any, there: Any) -> None:
        self._here, self._there = here, there

    def of(self, strategy: str) -> tuple[Any, Any]:
        """Return the worker's coder and ours for the windows of a strategy."""
        here, there = (each.windowing_strategies[strategy].window_coder_id for each in (self._here, self._there))
        ours = PipelineContext(self._here).coders.get_by_id(here)
        # Windows that only the worker can decode have the same bytes here.
        return (PipelineContext(self._there).coders.get_by_id(there) if here == there else ours), ours


def _coder_of_elements(spec: Any) -> Any:
    """Return the id of a coder whose values must be separated: an ordered list's elements, or a map's values."""
    match spec.WhichOneof("spec"):
        case "ordered_list_spec":
            return spec.ordered_list_spec.element_coder_id
        case "map_spec":
            return spec.map_spec.value_coder_id
        case "multimap_spec":
            return spec.multimap_spec.value_coder_id
    return None


def _cell(state: Any) -> CellId:
    return state.transform_id, state.user_state_id, state.window
