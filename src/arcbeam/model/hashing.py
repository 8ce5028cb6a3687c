"""The one hash that decides where a key lives. Leaf: standard library only.

Stable across processes, hosts and versions, because files and other tasks rely on it.
"""

from __future__ import annotations

import zlib

key_hash = zlib.crc32
"""Unsigned 32-bit hash of an encoded key; its shard is `key_hash(key) % shards`."""


def buckets_per_shard(shards: int) -> int:
    """How many buckets the keys of one shard fall into: about 4,096 in all, at least 16 each."""
    return max(16, 4096 // max(1, shards))
