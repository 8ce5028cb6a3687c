"""The file of one shard of a multimap side input: an LMDB environment, written once.

Owns the layout of its entries:

    m                                version of the layout, hash of the first key
    h <window> <key>                 head of a key: CRC, flags, chain (if flagged), first chunk of values
    l <window> <SHA-256 of the key>  the same for a key that is too long for LMDB; the full key precedes the chunk
    x <chain> <sequence>             CRC and one more chunk of values of the key that owns the chain

A window is its length and its bytes, or 255 and a hash if it is long: so the bytes of one window are never a prefix of
another's. Chunks are only added. A head is rewritten at most once: when a key that seemed complete gets more values.
"""

from __future__ import annotations

import hashlib
import itertools
import struct
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from zlib import crc32

import lmdb

from arcbeam.model.rows import key_hash
from arcbeam.sizes import threshold
from arcbeam.store.blobs.errors import StoreError

VERSION = 1
_META = struct.Struct("<8sII")
_MAGIC = b"arcmulti"
_META_KEY = b"m"
_HEAD = struct.Struct("<IB")
_CRC = struct.Struct("<I")
_CHAIN = struct.Struct(">Q")
_LINK = struct.Struct(">cQQ")
_LENGTH = struct.Struct("<I")

_CHAINED = 1
_LONG = 2

_MAX_KEY = threshold(511, 40)
_MAX_WINDOW = threshold(64)
_HASHED = 255
_CHUNK_BYTES = threshold(256 * 1024)
"""Consecutive chunks of one key are joined up to this size."""
_BATCH_BYTES = threshold(8 << 20)
_BATCH_CHUNKS = threshold(32_768)
_FIRST_MAP_BYTES = threshold(64 << 20, 1 << 16)


def _window(window: bytes) -> bytes:
    size = len(window)
    return bytes((size,)) + window if size <= _MAX_WINDOW else bytes((_HASHED,)) + hashlib.sha256(window).digest()


def _head_key(window: bytes, key: bytes) -> bytes:
    """Return the head entry's key; it starts with `l` if the multimap's key is too long."""
    prefix = _window(window)
    if 1 + len(prefix) + len(key) <= _MAX_KEY:
        return b"h" + prefix + key
    return b"l" + prefix + hashlib.sha256(key).digest()


def window_of(head: bytes) -> bytes:
    """Return an identification of the window in a head entry's key: the same for all its heads, and for no other."""
    size = head[1]
    return head[1 : 2 + (hashlib.sha256().digest_size if size == _HASHED else size)]


def _head(chain: int, long_key: bytes | None, chunk: bytes) -> bytes:
    """Return a head entry's value."""
    flags, body = 0, chunk
    if long_key is not None:
        flags, body = _LONG, _LENGTH.pack(len(long_key)) + long_key + chunk
    if chain:
        flags, body = flags | _CHAINED, _CHAIN.pack(chain) + body
    return _HEAD.pack(crc32(body, flags), flags) + body


class KeyFileWriter:
    """Writes one file. Memory is bounded by a batch of a few MB and the largest chunk.

    Args:
        path: of the finished file; must not exist. `<path>.building` is used meanwhile.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._building = building_path(path)
        self._env = lmdb.open(
            str(self._building),
            subdir=False,
            lock=False,
            sync=False,
            metasync=False,
            meminit=False,
            map_size=_FIRST_MAP_BYTES,
            mode=0o600,
        )
        # Window and key. For a restored entry: its own key, and the full one if that is long.
        self._current: tuple[bytes, bytes] | None = None
        self._restoring = False
        self._parts: list[bytes] = []
        self._parts_bytes = 0
        self._sample = 0
        self._begun = False  # the current key's head is in a batch
        self._batch: list[tuple[bytes, bytes | None, bytes, bool]] = []
        self._batch_bytes = 0
        # State after the last applied chunk. Invariant: a batch that is applied again starts from the same state.
        self._chain = 0
        self._chains = 0
        self._links = 0

    def put(self, window: bytes, key: bytes, values: bytes) -> None:
        """Add whole encoded values to a key. Values of a key keep their order.

        Consecutive calls for a key are cheapest.
        """
        current = self._current
        if current is None or current[1] != key or current[0] != window:
            if current is not None:
                self._cut(last=True)
            else:
                self._sample = key_hash(key)
            self._current = (window, key)
            self._begun = False
        self._parts.append(values)
        self._parts_bytes += len(values)
        if self._parts_bytes >= _CHUNK_BYTES:
            self._cut(last=False)

    def restore(self, head: bytes, files: Sequence[KeyFile]) -> None:
        """Add the content of files under a head entry's key. Heads come in ascending order, each once, and no `put`."""
        for file in files:
            for long_key, chunk in file.under(head):
                if self._current is None:
                    self._sample = file.sample
                elif self._current[0] != head:
                    self._cut(last=True)
                if self._current is None or self._current[0] != head:
                    self._current, self._begun, self._restoring = (head, long_key), False, True
                self._parts.append(chunk)
                self._parts_bytes += len(chunk)
                if self._parts_bytes >= _CHUNK_BYTES:
                    self._cut(last=False)

    def _cut(self, *, last: bool) -> None:
        """Move the present values to the batch. Unless they are the `last` of their key, the key gets a chain."""
        assert self._current is not None
        if self._begun and not self._parts:
            return
        window, key = self._current
        chunk = b"".join(self._parts)
        head = b"" if self._begun else window if self._restoring else _head_key(window, key)
        self._batch.append((head, key if head[:1] == b"l" else None, chunk, not last))
        self._batch_bytes += len(chunk) + len(head)
        self._parts, self._parts_bytes, self._begun = [], 0, True
        if self._batch_bytes >= _BATCH_BYTES or len(self._batch) >= _BATCH_CHUNKS:
            self._apply()

    def _apply(self) -> None:
        """Write the batch."""
        self._transaction(self._apply_batch)
        self._batch, self._batch_bytes = [], 0

    def _transaction(self, write: Callable[[lmdb.Transaction], object]) -> None:
        """Run `write` in a transaction; repeat it with a larger map if the map is full."""
        before = (self._chain, self._chains, self._links)
        while True:
            try:
                with self._env.begin(write=True) as txn:
                    write(txn)
            except lmdb.MapFullError:
                self._chain, self._chains, self._links = before
                self._env.set_mapsize(2 * self._env.info()["map_size"])
            else:
                return

    def _apply_batch(self, txn: lmdb.Transaction) -> None:
        for head, long_key, chunk, chained in self._batch:
            if not head:
                self._link(txn, chunk)
                continue
            self._chain = self._new_chain() if chained else 0
            if not txn.put(head, _head(self._chain, long_key, chunk), overwrite=False):
                self._chain = self._reopened(txn, head)
                self._link(txn, chunk)

    def _new_chain(self) -> int:
        self._chains += 1
        return self._chains

    def _link(self, txn: lmdb.Transaction, chunk: bytes) -> None:
        self._links += 1
        txn.put(_LINK.pack(b"x", self._chain, self._links), _CRC.pack(crc32(chunk)) + chunk)

    def _reopened(self, txn: lmdb.Transaction, head: bytes) -> int:
        """Return the chain of an existing key; its head is rewritten if it has none yet."""
        value = txn.get(head)
        assert value is not None
        _, flags = _HEAD.unpack_from(value)
        if flags & _CHAINED:
            return int(_CHAIN.unpack_from(value, _HEAD.size)[0])
        chain, flags = self._new_chain(), flags | _CHAINED
        body = _CHAIN.pack(chain) + value[_HEAD.size :]
        txn.put(head, _HEAD.pack(crc32(body, flags), flags) + body)
        return chain

    def finish(self) -> int:
        """Complete the file, without free pages, and return its size in bytes; 0 if nothing was put."""
        if self._current is None:
            self.discard()
            return 0
        self._cut(last=True)
        self._apply()
        meta = _META.pack(_MAGIC, VERSION, self._sample)
        self._transaction(lambda txn: txn.put(_META_KEY, meta + _CRC.pack(crc32(meta))))
        self._env.copy(str(self._path), compact=True)
        self.discard()
        return self._path.stat().st_size

    def discard(self) -> None:
        """Close and remove the temporary file. A finished file stays."""
        self._env.close()
        self._building.unlink(missing_ok=True)


def building_path(path: Path) -> Path:
    """Return the path of a file before it is complete."""
    return path.with_name(f"{path.name}.building")


class KeyFile:
    """Reads one file. Safe among threads; not across a fork, and open once in a process (LMDB's rules).

    Args:
        path: the local file.
        name: of the file, for errors.
        size: its size in bytes, as its writer returned it.

    Attributes:
        sample: `key_hash` of one of its keys.

    Raises:
        StoreError: damaged, cut off, not a key file, or written by a newer version.
    """

    def __init__(self, path: Path, name: str, size: int) -> None:
        self._name = name
        found = path.stat().st_size
        if found != size:  # SUBTLE: LMDB maps the file; reading past its end would kill the process
            raise StoreError(f"side-input file '{name}' is cut off: {found} bytes of {size}")
        try:
            self._env = lmdb.open(str(path), subdir=False, readonly=True, lock=False, create=False, readahead=False)
            with self._env.begin() as txn:
                meta = txn.get(_META_KEY)
        except lmdb.Error as e:
            raise StoreError(f"side-input file '{name}' is damaged ({e})") from e
        if meta is None or len(meta) != _META.size + _CRC.size:
            raise self._damaged("no version")
        magic, version, self.sample = _META.unpack_from(meta)
        if magic != _MAGIC or _CRC.unpack_from(meta, _META.size)[0] != crc32(meta[: _META.size]):
            raise self._damaged("version")
        if version > VERSION:
            raise StoreError(
                f"side-input file '{name}' has format {version}, this version of arcbeam reads up to {VERSION}",
                "use the same version of arcbeam on the driver and on all executors",
            )
        self._local = threading.local()

    def _txn(self) -> lmdb.Transaction:
        """Return this thread's read transaction. The file never changes, so it may stay open."""
        txn: lmdb.Transaction | None = getattr(self._local, "txn", None)
        if txn is None:
            txn = self._local.txn = self._env.begin()
        return txn

    def values(self, window: bytes, key: bytes) -> Iterator[bytes]:
        """Yield the chunks of values of a key, in their order; none if the key does not exist."""
        flags, body = self._head(_head_key(window, key))
        if not flags:
            return iter((body,)) if body else iter(())
        return self._further(flags, body, key)

    def heads(self) -> Iterator[bytes]:
        """Yield the keys of all head entries, ascending; `window_of` returns their window."""
        with self._env.begin() as txn, txn.cursor() as cursor:
            for kind in (b"h", b"l"):
                if cursor.set_range(kind):
                    yield from itertools.takewhile(lambda head: head[:1] == kind, cursor.iternext(values=False))  # noqa: B023 - read here

    def under(self, head: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Yield the content under a head entry's key: for each chunk the full key, if it is long, and the values.

        A key without values has one empty chunk.
        """
        flags, body = self._head(head)
        key = _long_key(body, _CHAIN.size if flags & _CHAINED else 0)[0] if flags & _LONG else b""
        if body or flags:
            chunks = self._further(flags, body, key) if flags else iter((body,))
            first = next(chunks, b"")
            yield key, first
            for chunk in chunks:
                yield key, chunk
        elif self._txn().get(head) is not None:
            yield key, b""

    def _head(self, head: bytes) -> tuple[int, bytes]:
        """Return flags and body of a head entry; nothing if there is none."""
        try:
            value = self._txn().get(head)
        except lmdb.Error as e:
            raise self._damaged(str(e)) from e
        if value is None:
            return 0, b""
        crc, flags = _HEAD.unpack_from(value)
        body = bytes(value[_HEAD.size :])
        if crc32(body, flags) != crc:
            raise self._damaged("values of a key")
        return flags, body

    def _further(self, flags: int, body: bytes, key: bytes) -> Iterator[bytes]:
        position, chain = 0, b""
        if flags & _CHAINED:
            chain, position = body[: _CHAIN.size], _CHAIN.size
        if flags & _LONG:
            found, position = _long_key(body, position)
            if found != key:
                return
        if position < len(body):
            yield body[position:]
        if not chain:
            return
        prefix = b"x" + chain
        with self._env.begin() as txn, txn.cursor() as cursor:
            more = cursor.set_range(prefix)
            while more and cursor.key().startswith(prefix):
                value = cursor.value()
                chunk = value[_CRC.size :]
                if _CRC.unpack_from(value)[0] != crc32(chunk):
                    raise self._damaged("values of a key")
                yield chunk
                more = cursor.next()

    def keys(self, window: bytes) -> Iterator[bytes]:
        """Yield the keys of a window, each once."""
        with self._env.begin() as txn, txn.cursor() as cursor:
            prefix = b"h" + _window(window)
            start = len(prefix)
            if cursor.set_range(prefix):
                for key in cursor.iternext(keys=True, values=False):
                    if not key.startswith(prefix):
                        break
                    yield key[start:]
            prefix = b"l" + prefix[1:]
            more = cursor.set_range(prefix)
            while more and cursor.key().startswith(prefix):
                value = cursor.value()
                crc, flags = _HEAD.unpack_from(value)
                body = value[_HEAD.size :]
                if crc32(body, flags) != crc or not flags & _LONG:
                    raise self._damaged("a long key")
                yield _long_key(body, _CHAIN.size if flags & _CHAINED else 0)[0]
                more = cursor.next()

    def close(self) -> None:
        """Close the file; the object cannot be used any more."""
        self._env.close()

    def _damaged(self, what: str) -> StoreError:
        return StoreError(f"side-input file '{self._name}' is damaged ({what})")


def _long_key(body: bytes, position: int) -> tuple[bytes, int]:
    """Return the full key at `position` in a head entry's body, and the position of the chunk."""
    (length,) = _LENGTH.unpack_from(body, position)
    position += _LENGTH.size
    return body[position : position + length], position + length
