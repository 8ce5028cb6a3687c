"""Write operations: where elements leave a stage, in place of the SDK's data plane.

Owns buffering, grouping and routing to shards. Buffers belong to the task, not to the bundle: `drain` empties them.
Must not know Spark.
"""

from __future__ import annotations

import traceback
from collections.abc import Iterable
from sys import getsizeof
from typing import Any

from apache_beam import coders
from apache_beam.coders.coder_impl import create_OutputStream
from apache_beam.coders.coders import GlobalWindowCoder
from apache_beam.runners.common import NameContext
from apache_beam.runners.worker import bundle_processor, operations
from apache_beam.utils.windowed_value import WindowedValue

from arcbeam.errors import CoderError
from arcbeam.harness.frames import BLOB_BYTES, Runs, record
from arcbeam.harness.wiring import Wiring
from arcbeam.model.hashing import buckets_per_shard, key_hash
from arcbeam.model.plan import Routing
from arcbeam.model.rows import Row
from arcbeam.model.urns import WRITE_URN, WriteSpec

_SAMPLE_EVERY = 251
"""A prime: sizes that come in a pattern are not always sampled at the same place of it."""
_LONGEST_RUN = 2048
_MOST_IN_RUNS = 1 << 18
_MOST_WINDOWS = 4096
_OBJECT_OVERHEAD = 64
"""Bytes that a small Python object in a list costs beside its encoded size; for the memory budget."""
_STREAMS_BYTES = 64 << 20
"""What encoded elements may take in memory until there are enough for a blob, over all shards or windows."""
_GROUP_OVERHEAD = 250
"""Bytes that a key (or a window of a key) costs in the tables beside its values."""


class _Write(operations.Operation):  # type: ignore[misc]  # Beam is untyped
    """What all writes share. `process` is on the hot path: no attribute chains in subclasses' loops."""

    def __init__(self, name: Any, factory: Any, spec: WriteSpec, coder: Any) -> None:
        super().__init__(name, None, factory.counter_factory, factory.state_sampler)
        self._wiring: Wiring = factory.data_channel_factory
        self._wiring.writers.append(self)
        self._channel = spec.channel
        self._explode = spec.explode
        self._shards = self._wiring.settings.shards
        self._windowed_coder = coder
        self._written = 0
        self._producer = ""

    def _put(self, shard: int, bucket: int, blob: bytes) -> None:
        self._wiring.outbox.put(Row(self._channel, shard, bucket, blob))

    def _coder_error(self, error: Exception, values: Iterable[Any]) -> CoderError:
        """What a failing encode means to the user: the first element that fails, and its step."""
        impl = self._windowed_coder.wrapped_value_coder.get_impl()
        culprit = next((v for v in values if not _encodes(impl, v)), None)
        coder = self._windowed_coder.wrapped_value_coder
        what = f"{coder} cannot encode {_shortened(culprit)}: {type(error).__name__}: {error}"
        return CoderError(self._producer, what, "".join(traceback.format_exception(error)))

    def begin_task(self) -> None:
        """A task begins: nothing is buffered."""
        self._written = 0

    def drain(self) -> None:
        """The task's last bundle is done: hands over everything that is buffered."""
        counts = self._wiring.elements_out
        counts[self._channel] = counts.get(self._channel, 0) + self._written
        self._written = 0


class ElementWrite(_Write):
    """FORWARD and SPREAD: windowed values as *runs*, to one place or round-robin to all shards."""

    def __init__(self, name: Any, factory: Any, spec: WriteSpec, coder: Any) -> None:
        super().__init__(name, factory, spec, coder)
        self._append = Runs(coder).append
        self._estimate = coder.wrapped_value_coder.get_impl().estimate_size
        self._targets = self._shards if spec.routing == Routing.SPREAD else 1
        self._blob_bytes = max(4096, min(BLOB_BYTES, _STREAMS_BYTES // self._targets))
        # A run holds about a tenth of a blob per shard.
        self._run_bytes = self._blob_bytes // 10 * self._targets
        self._longest = min(_LONGEST_RUN * self._targets, max(_MOST_IN_RUNS, self._targets))
        self._first_look = 1
        self.begin_task()

    def begin_task(self) -> None:
        """See `_Write`."""
        super().begin_task()
        self._streams = [create_OutputStream() for _ in range(self._targets)]
        self._first = self._wiring.partition % self._targets
        self._header: Any = None
        self._windows: Any = None
        self._pane: Any = None
        self._micros = 0
        self._new_run()

    def _new_run(self) -> None:
        self._run: list[Any] = []
        self._limit = self._first_look
        self._looked = 0
        self._held = 0

    def process(self, o: Any) -> None:
        """Takes one windowed value."""
        windows = o.windows
        if windows is not self._windows or o.timestamp_micros != self._micros or o.pane_info is not self._pane:
            self._flush_run()
            if self._explode and len(windows) > 1:
                for window in windows:
                    self._begin_run(WindowedValue(o.value, o.timestamp, (window,), o.pane_info))
                    self._run.append(o.value)
                    self._flush_run()
                return
            self._begin_run(o)
        self._run.append(o.value)
        if len(self._run) >= self._limit:
            self._look()

    def _look(self) -> None:
        """Samples the size of an element; flushes the run if it is long enough."""
        length = len(self._run)
        try:
            size = self._estimate(self._run[-1], True) + 1
        except Exception as e:
            raise self._coder_error(e, self._run) from e
        self._held += size * (length - self._looked)
        self._looked = length
        room = self._run_bytes - self._held
        if room <= 0 or length >= self._longest:
            self._first_look = max(1, min(_SAMPLE_EVERY, self._run_bytes // size))
            self._flush_run()
        else:
            self._limit = min(self._longest, length + max(1, min(_SAMPLE_EVERY, length, room // size)))

    def _begin_run(self, o: Any) -> None:
        self._header, self._windows, self._micros, self._pane = o, o.windows, o.timestamp_micros, o.pane_info

    def _flush_run(self) -> None:
        """Encodes the run; element i of it goes to shard i, in turn."""
        run = self._run
        if not run:
            return
        self._new_run()
        targets = self._targets
        for i in range(min(targets, len(run))):
            target = (self._first + i) % targets
            stream = self._streams[target]
            try:
                self._append(self._header, run if targets == 1 else run[i::targets], stream)
            except Exception as e:
                raise self._coder_error(e, run) from e
            if stream.size() > self._blob_bytes:
                self._streams[target] = create_OutputStream()
                self._put(target, 0, stream.get())
        self._first = (self._first + len(run)) % targets
        self._written += len(run)

    def drain(self) -> None:
        """See `_Write`."""
        self._flush_run()
        for target, stream in enumerate(self._streams):
            if stream.size():
                self._put(target, 0, stream.get())
        self._streams = []
        self._windows = None
        super().drain()


class _Grouping(_Write):
    """Buffers values by key in memory, up to the budget, and writes them as *groups*.

    Keys of exact type int, str or bytes are grouped as objects (equal objects have equal encodings); all others by
    their encoding: 1, 1.0 and True are equal but not the same key.
    """

    def __init__(self, name: Any, factory: Any, spec: WriteSpec, coder: Any) -> None:
        super().__init__(name, factory, spec, coder)
        element_coder = coder.wrapped_value_coder
        self._key_coder, self._value_coder = element_coder.key_coder(), element_coder.value_coder()
        self._encode_key = self._key_coder.get_impl().encode
        self._window_impl = coder.window_coder.get_impl()
        self._buckets = buckets_per_shard(self._shards)
        self._clear()

    def _set_payload_coder(self, payload_coder: Any) -> None:
        self._payload_coder = payload_coder
        self._payload_impl = coders.ListCoder(payload_coder).get_impl()
        self._estimate = payload_coder.get_impl().estimate_size

    def _clear(self) -> None:
        self._tables: dict[type, dict[Any, Any]] = {int: {}, str: {}, bytes: {}}
        self._encoded: dict[Any, Any] = {}
        self._count = 0
        self._next_check = 1
        self._last_check = 0
        self._last_groups = 0
        self._held = 0.0
        self._held_by_values = 0.0

    def begin_task(self) -> None:
        """See `_Write`."""
        super().begin_task()
        self._clear()
        # The budget is the task's: a stage that writes to several exchanges shares it out.
        sharing = sum(isinstance(op, _Grouping) for op in self._wiring.writers)
        self._budget = self._wiring.settings.group_memory_bytes // sharing

    def _check(self, key: Any, value: Any) -> None:
        """Samples the size of a key and a value, and writes everything out when the budget is used up."""
        try:
            size = self._estimate(value, True) + _OBJECT_OVERHEAD
        except Exception as e:
            raise self._group_error(e, [value]) from e
        held = size * (self._count - self._last_check)
        groups = self._group_count()
        self._held_by_values += held
        self._held += held + (groups - self._last_groups) * (getsizeof(key) + _GROUP_OVERHEAD)
        self._last_check, self._last_groups = self._count, groups
        if self._held > self._budget:
            self._flush()
        else:
            # Large values are looked at more often: an interval never holds more than a sixteenth of the budget.
            step = min(_SAMPLE_EVERY, self._count + 1, max(1, int(self._budget / 16 / size)))
            self._next_check = self._count + step

    def _group_count(self) -> int:
        """How many lists of values are buffered."""
        return len(self._encoded) + sum(map(len, self._tables.values()))

    def _group_error(self, error: Exception, values: list[Any]) -> CoderError:
        culprit = next((v for v in values if not _encodes(self._payload_coder.get_impl(), v)), None)
        what = f"{self._payload_coder} cannot encode {_shortened(culprit)}: {type(error).__name__}: {error}"
        return CoderError(self._producer, what, "".join(traceback.format_exception(error)))

    def _groups(self) -> Iterable[tuple[bytes, bytes, list[Any]]]:
        """(encoded key, encoded window, payload values) of everything buffered; takes it from the tables."""
        raise NotImplementedError

    def _flush(self) -> None:
        encode, shards, buckets = self._payload_impl.encode, self._shards, self._buckets
        blobs: dict[tuple[int, int], list[bytes]] = {}
        sizes: dict[tuple[int, int], int] = {}
        average = self._held_by_values / self._count if self._count else 0
        limit = max(1, int(BLOB_BYTES / (average + 1)))
        for key, window, values in self._groups():
            hashed = key_hash(key)
            place = (hashed % shards, hashed // shards % buckets)
            pieces = [values] if len(values) <= limit else [values[i : i + limit] for i in range(0, len(values), limit)]
            for piece in pieces:
                try:
                    part = record(key, window, encode(piece))
                except Exception as e:
                    raise self._group_error(e, piece) from e
                parts = blobs.get(place)
                if parts is None:
                    blobs[place], sizes[place] = [part], len(part)
                else:
                    parts.append(part)
                    sizes[place] += len(part)
                if sizes[place] > BLOB_BYTES:
                    self._put(*place, b"".join(blobs.pop(place)))
        for place, parts in blobs.items():
            self._put(*place, b"".join(parts))
        self._written += self._count
        self._clear()

    def drain(self) -> None:
        """See `_Write`."""
        if self._count:
            self._flush()
        super().drain()


class GroupWrite(_Grouping):
    """GROUPED and SIDE_KEYED: values by key and window; timestamps and panes are not kept."""

    def __init__(self, name: Any, factory: Any, spec: WriteSpec, coder: Any) -> None:
        super().__init__(name, factory, spec, coder)
        self._set_payload_coder(self._value_coder)
        if spec.routing == Routing.SIDE_KEYED:
            # State keys of a multimap side input are in the nested encoding.
            self._encode_key = self._key_coder.get_impl().encode_nested

    def process(self, o: Any) -> None:
        """Takes one windowed value."""
        key, value = o.value
        groups = self._tables.get(type(key))
        if groups is None:
            key, groups = self._encode_key(key), self._encoded
        values = groups.get(key)
        if values is None:
            groups[key] = [value]
        else:
            values.append(value)
        self._count += 1
        if self._count >= self._next_check:
            self._check(key, value)

    def _groups(self) -> Iterable[tuple[bytes, bytes, list[Any]]]:
        for table in self._tables.values():
            while table:
                key, values = table.popitem()
                yield self._encode_key(key), b"", values
        while self._encoded:
            key, values = self._encoded.popitem()
            yield key, b"", values


class WindowedGroupWrite(GroupWrite):
    """The same for other than the global window: the tables hold a table by window for each key."""

    def _clear(self) -> None:
        super()._clear()
        self._lists = 0

    def _group_count(self) -> int:
        return super()._group_count() + self._lists

    def process(self, o: Any) -> None:
        """Takes one windowed value."""
        key, value = o.value
        groups = self._tables.get(type(key))
        if groups is None:
            key, groups = self._encode_key(key), self._encoded
        windows = groups.get(key)
        if windows is None:
            windows = groups[key] = {}
        for window in o.windows:
            values = windows.get(window)
            if values is None:
                windows[window] = [value]
                self._lists += 1
            else:
                values.append(value)
            self._count += 1
        if self._count >= self._next_check:
            self._check(key, value)

    def _groups(self) -> Iterable[tuple[bytes, bytes, list[Any]]]:
        encoded_windows: dict[Any, bytes] = {}
        for table in (*self._tables.values(), self._encoded):
            raw = table is not self._encoded
            while table:
                key, windows = table.popitem()
                encoded = self._encode_key(key) if raw else key
                for window, window_values in windows.items():
                    window_bytes = encoded_windows.get(window)
                    if window_bytes is None:
                        window_bytes = encoded_windows[window] = self._window_impl.encode(window)
                    yield encoded, window_bytes, window_values


class KeyedWrite(GroupWrite):
    """KEYED: whole windowed values by key, in order of arrival; for state, timers and general triggers."""

    def __init__(self, name: Any, factory: Any, spec: WriteSpec, coder: Any) -> None:
        super().__init__(name, factory, spec, coder)
        self._set_payload_coder(coders.WindowedValueCoder(self._value_coder, coder.window_coder))

    def process(self, o: Any) -> None:
        """Takes one windowed value."""
        key, value = o.value
        o = o.with_value(value)
        groups = self._tables.get(type(key))
        if groups is None:
            key, groups = self._encode_key(key), self._encoded
        values = groups.get(key)
        if values is None:
            groups[key] = [o]
        else:
            values.append(o)
        self._count += 1
        if self._count >= self._next_check:
            self._check(key, o)


class SideWrite(_Write):
    """SIDE: encoded elements by window, straight to an immutable file of the task's."""

    def __init__(self, name: Any, factory: Any, spec: WriteSpec, coder: Any) -> None:
        super().__init__(name, factory, spec, coder)
        self._encode = coder.wrapped_value_coder.get_impl().encode_to_stream
        self._window_impl = coder.window_coder.get_impl()
        self.begin_task()

    def begin_task(self) -> None:
        """See `_Write`."""
        super().begin_task()
        self._streams: dict[Any, Any] = {}
        self._blob_bytes = BLOB_BYTES
        self._file: Any = None

    def process(self, o: Any) -> None:
        """Takes one windowed value."""
        for window in o.windows:
            stream = self._streams.get(window)
            if stream is None:
                stream = self._streams[window] = create_OutputStream()
                if len(self._streams) > _MOST_WINDOWS:
                    self._flush()
                    stream = self._streams[window] = create_OutputStream()
                self._blob_bytes = min(BLOB_BYTES, _STREAMS_BYTES // len(self._streams))
            try:
                self._encode(o.value, stream, True)
            except Exception as e:
                raise self._coder_error(e, [o.value]) from e
            self._written += 1
            if stream.size() > self._blob_bytes:
                self._append(window, self._streams.pop(window))

    def _append(self, window: Any, stream: Any) -> None:
        if self._file is None:
            self._file = self._wiring.side_writer(self._channel)  # type: ignore[operator]
        if stream.size():
            self._file.append(self._window_impl.encode(window), stream.get())

    def _flush(self) -> None:
        for window, stream in self._streams.items():
            self._append(window, stream)
        self._streams = {}

    def drain(self) -> None:
        """See `_Write`."""
        self._flush()
        if self._file is not None:
            done = self._file.close()
            if done is not None:
                self._wiring.side_files.append(done)
            self._file = None
        super().drain()


def _encodes(impl: Any, value: Any) -> bool:
    try:
        impl.encode(value)
    except Exception:
        return False
    return True


def _shortened(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 200 else f"{text[:200]}… ({type(value).__name__})"


_WRITES: dict[Routing, type[_Write]] = {
    Routing.FORWARD: ElementWrite,
    Routing.SPREAD: ElementWrite,
    Routing.GROUPED: GroupWrite,
    Routing.SIDE_KEYED: GroupWrite,
    Routing.KEYED: KeyedWrite,
    Routing.SIDE: SideWrite,
}


def register() -> None:
    """Teaches the SDK's factory our write. Idempotent."""

    @bundle_processor.BeamTransformFactory.register_urn(WRITE_URN, None)  # type: ignore[untyped-decorator]
    def create(factory: Any, transform_id: str, transform: Any, payload: bytes, consumers: Any) -> Any:
        spec = WriteSpec.from_bytes(payload)
        pcoll = next(iter(transform.inputs.values()))
        coder = factory.get_windowed_coder(pcoll)
        kind = _WRITES[Routing(spec.routing)]
        if kind is GroupWrite and not isinstance(coder.window_coder, GlobalWindowCoder):
            kind = WindowedGroupWrite
        op = kind(NameContext(transform.unique_name, transform_id), factory, spec, coder)
        op._producer = next(
            (t.unique_name for t in factory.descriptor.transforms.values() if pcoll in t.outputs.values()), pcoll
        )
        return op
