"""Writes that group: values by key (and window), in bounded memory, before Spark moves them.

Owns the tables of a task, and which of their contents are written together. Must not know Spark.

For opaque values (`harness.encoding.opaque`) the tables hold encodings, because only their size is known.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from sys import getsizeof
from typing import Any

from typing_extensions import override

from arcbeam.errors import CoderError
from arcbeam.harness.encoding.blocks import Block
from arcbeam.harness.encoding.bulk import ListBytes
from arcbeam.harness.encoding.codererrors import coder_error, key_error
from arcbeam.harness.encoding.frames import BLOB_BYTES, record
from arcbeam.harness.encoding.keyforms import PLAIN, KeyForms, Kind
from arcbeam.harness.encoding.opaque import Encodings, IsOpaque, opacity
from arcbeam.harness.encoding.windowcoder import WindowBytes
from arcbeam.harness.operations.blockoperation import BLOCK_ELEMENTS_MAX
from arcbeam.harness.operations.write import Write
from arcbeam.model.plan import Routing
from arcbeam.model.rows import buckets_per_shard, key_hash
from arcbeam.model.urns import WriteSpec

_PLAIN = (int, float, str, bytes, bool, type(None))
"""Types whose size in memory is known."""
_POINTER = 16
"""Bytes of a list's reference to an object, with spare capacity and the object's alignment."""
_OBJECT_OVERHEAD = 64
"""Bytes of a small Python object in a list besides its encoded size; for the memory budget."""
_PRIME = 7919
_GROUP_OVERHEAD = 250
"""Bytes of a key (or of a window of a key) in the tables, besides its values."""


class GroupWrite(Write):
    """GROUPED and SIDE_KEYED: values by key, without timestamps and panes.

    Buffers values by key in memory, up to the budget, and writes them as *groups*.

    Keys are compared by their forms (`harness.encoding.keyforms`): 1, 1.0 and True are equal but different keys.
    """

    def __init__(self, name: Any, factory: Any, spec: WriteSpec, coder: Any) -> None:
        super().__init__(name, factory, spec, coder)
        element_coder = coder.wrapped_value_coder
        self._key_coder, self._value_coder = element_coder.key_coder(), element_coder.value_coder()
        key_impl = self._key_coder.get_impl()
        # State keys of a multimap side input are in the nested encoding.
        self._encode_key = key_impl.encode_nested if spec.routing == Routing.SIDE_KEYED else key_impl.encode
        self._forms = KeyForms(key_impl, self._encode_key)
        self._overhead = 0
        value_impl = self._value_coder.get_impl()
        self._estimate, self._encode_value = value_impl.estimate_size, value_impl.encode_nested
        self._is_opaque = opacity(self._value_coder)
        self._buckets = buckets_per_shard(self._shards)
        self._clear()

        self._payload_coder = self._value_coder
        # Readers of a multimap need single values, not lists in bulk form.
        bulk = self._wiring.settings.bulk_values and spec.routing != Routing.SIDE_KEYED
        self._encode_values: Callable[[list[Any]], bytes] = ListBytes(self._value_coder, bulk=bulk).encode
        self._encode_payload = self._encode_values

    def _table(self) -> dict[Any, Any]:
        """Return a new table by key."""
        return defaultdict(list)

    def _clear(self) -> None:
        self._tables: dict[Kind, dict[Any, Any]] = defaultdict(self._table)
        # Keys by form, for forms that are neither the key nor its encoding.
        self._keys: dict[Kind, dict[Any, Any]] = {}
        self._count = 0
        # Whether the tables hold encodings.
        self._encoded = False
        self._longest = 1
        self._last_check = 0
        self._last_groups = 0
        self._held = 0.0
        self._held_by_values = 0.0

    @override
    def begin_task(self) -> None:
        super().begin_task()
        self._clear()
        # The budget is the task's: a stage that writes to several exchanges divides it.
        sharing = sum(isinstance(op, GroupWrite) for op in self._wiring.writers)
        self._budget = self._wiring.settings.group_memory_bytes // sharing

    def _take(self, block: Block) -> None:
        start, count = 0, len(block)
        while start < count:
            # The limit grows with each check.
            stop = start + self._longest
            part = block if start == 0 and stop >= count else block.slice(start, stop)
            start = stop
            if self._is_opaque is not None:
                part = self._without_opaque(part, self._is_opaque)
            try:
                self._absorb(part)
            except Exception as e:
                found = key_error(self._key_coder, self.key_producer, e, part.values)
                if found is None:
                    raise
                raise found from e
            self._check(part.values)

    def _without_opaque(self, block: Block, is_opaque: IsOpaque) -> Block:
        """Return the block, with encodings instead of values if some are opaque; then until the next flush."""
        pairs = block.values
        if not self._encoded:
            try:
                if not (is_opaque(pairs[0][1]) or is_opaque(pairs[-1][1])):
                    return block
            except Exception:
                # The code that reads or encodes the element reports the error.
                return block
            if self._count:
                self._flush()
            self._encoded = True
        try:
            return block.with_values([(key, self._encode_value(value)) for key, value in pairs])
        except Exception as e:
            raise self._group_error(e, [value for _, value in pairs]) from e

    def _absorb(self, block: Block) -> None:
        """Add a block to the tables and to the count."""
        for alike in self._forms.of(block.values):
            table = self._tables[alike.kind]
            before = len(table)
            for form, value in alike.pairs:
                table[form].append(value)
            if alike.keys is not None:
                alike.note_keys(self._keys.setdefault(alike.kind, {}), table, before)
        self._count += len(block)

    def _check(self, taken: list[Any]) -> None:
        """Sample the size of keys and values, and write everything when the budget is used up."""
        # At three places, one of which moves: sizes may have a periodic pattern.
        sample = [taken[0], taken[-1], taken[self._count * _PRIME % len(taken)]]
        try:
            size = sum(self._footprint(value) for _, value in sample) / 3
        except Exception as e:
            raise self._group_error(e, [value for _, value in taken]) from e
        key = sample[2][0]
        held = size * (self._count - self._last_check)
        groups = self._group_count()
        self._held_by_values += held
        self._held += held + (groups - self._last_groups) * (getsizeof(key) + _GROUP_OVERHEAD)
        self._last_check, self._last_groups = self._count, groups
        # Large values are checked more often: an interval never holds more than a sixteenth of the budget.
        longest = max(1, min(2 * self._longest, BLOCK_ELEMENTS_MAX, int(self._budget / 16 / size)))
        if self._held > self._budget:
            self._flush()
        self._longest = longest
        self._waiting_limit = min(self._waiting_limit, longest)

    def _footprint(self, value: Any) -> int:
        """Return the approximate memory of a value in a list, in bytes."""
        if self._encoded or type(value) in _PLAIN:
            return getsizeof(value) + _POINTER + self._overhead
        encoded: int = self._estimate(value, True)
        return encoded + _OBJECT_OVERHEAD + self._overhead

    def _group_count(self) -> int:
        """Return how many lists of values are buffered."""
        return sum(map(len, self._tables.values()))

    def _group_error(self, error: Exception, values: list[Any]) -> CoderError:
        return coder_error(self._payload_coder, self.producer, error, values)

    def _values_of(self, payload: list[Any]) -> list[Any]:
        """Return the values that the tables hold in some form."""
        return payload

    def _groups(self) -> Iterable[tuple[bytes, bytes, list[Any]]]:
        """Yield (encoded key, encoded window, payload values) of everything buffered, and remove it."""
        for kind, table in self._tables.items():
            encode = self._encoder(kind)
            while table:
                form, values = table.popitem()
                try:
                    encoded = encode(form)
                except Exception as e:
                    raise self._refused(e, kind, form) from e
                yield encoded, b"", values

    def _refused(self, error: Exception, kind: Kind, form: Any) -> CoderError:
        """Return the error for a key that cannot be encoded, although its form was usable."""
        key = self._keys.get(kind, {}).get(form, form)
        return coder_error(self._key_coder, self.key_producer, error, [key], ", a key")

    def _encoder(self, kind: Kind) -> Callable[[Any], bytes]:
        """Return the function that encodes keys from forms of a kind."""
        encode, keys = self._encode_key, self._keys.get(kind)
        if kind is None:
            return bytes
        return encode if keys is None else lambda form: encode(keys[form])

    @property
    def _most_values(self) -> int:
        """Values of a group that are written together."""
        average = self._held_by_values / self._count if self._count else 0
        return max(1, int(BLOB_BYTES / (average + 1)))

    def _pieces(self) -> Iterator[tuple[bytes, bytes, bytes]]:
        """Yield (encoded key, encoded window, payload) of everything buffered, and remove it."""
        self._encode_payload = Encodings().encode if self._encoded else self._encode_values
        limit = self._most_values
        for key, window, values in self._groups():
            pieces = (
                (values,) if len(values) <= limit else [values[i : i + limit] for i in range(0, len(values), limit)]
            )
            for piece in pieces:
                try:
                    payload = self._encode_payload(piece)
                except Exception as e:
                    raise self._group_error(e, self._values_of(piece)) from e
                yield key, window, payload

    def _records(self) -> Iterator[tuple[bytes, bytes]]:
        """Yield encoded key and record of everything buffered, and remove it."""
        for key, window, payload in self._pieces():
            yield key, record(key, window, payload)

    def _flush(self) -> None:
        shards, places = self._shards, self._shards * self._buckets
        # By place: the remainder of a hash, which determines shard and bucket.
        parts_at: list[list[bytes] | None] = [None] * places
        sizes = [0] * places
        for key, part in self._records():
            place = key_hash(key) % places
            parts = parts_at[place]
            if parts is None:
                parts_at[place], sizes[place] = [part], len(part)
            else:
                parts.append(part)
                sizes[place] += len(part)
            if sizes[place] > BLOB_BYTES:
                self._put(place % shards, place // shards, b"".join(parts_at[place] or ()))
                parts_at[place] = None
        for place, parts in enumerate(parts_at):
            if parts is not None:
                self._put(place % shards, place // shards, b"".join(parts))
        self._written += self._count
        self._clear()

    @override
    def drain(self) -> None:
        if self._count:
            self._flush()
        super().drain()


class WindowedGroupWrite(GroupWrite):
    """The same for other windows than the global one: for each key, the tables hold a table by encoded window."""

    def __init__(self, name: Any, factory: Any, spec: WriteSpec, coder: Any) -> None:
        super().__init__(name, factory, spec, coder)
        self._windows = WindowBytes(coder.window_coder)

    def _table(self) -> dict[Any, Any]:
        return defaultdict(dict)

    def _clear(self) -> None:
        super()._clear()
        self._lists = 0

    def _group_count(self) -> int:
        return super()._group_count() + self._lists

    def _absorb(self, block: Block) -> None:
        tables, one, encode_windows = self._tables, self._forms.one, self._windows.of
        lists = count = 0
        for (key, value), windows in zip(block.values, block.windows_of_each(), strict=False):
            kind: Kind = type(key)
            form = key
            if kind not in PLAIN:
                kind, form = one(key)
                if kind is not None and form is not key:
                    self._keys.setdefault(kind, {})[form] = key
            by_window = tables[kind][form]
            for window in encode_windows(windows):
                values = by_window.get(window)
                if values is None:
                    by_window[window] = [value]
                    lists += 1
                else:
                    values.append(value)
            count += len(windows)
        self._lists += lists
        self._count += count

    def _groups(self) -> Iterable[tuple[bytes, bytes, list[Any]]]:
        for kind, table in self._tables.items():
            encode = self._encoder(kind)
            while table:
                form, windows = table.popitem()
                try:
                    encoded = encode(form)
                except Exception as e:
                    raise self._refused(e, kind, form) from e
                for window, values in windows.items():
                    yield encoded, window, values
