"""Which backend a URL names.

Owns the schemes. Knows nothing of what is stored.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from arcbeam.store.blobs.durable import DurableBlobs
from arcbeam.store.blobs.errors import StoreError
from arcbeam.store.blobs.folder import FolderBlobs

_SCHEME = re.compile(r"([a-zA-Z][a-zA-Z0-9+.-]*)://")
_OBJECT_STORES = ("s3", "s3a", "gs", "az", "azure", "abfs", "abfss")
_HADOOP = ("hdfs", "viewfs")


def open_blobs(url: str, config: Mapping[str, Any] | None = None) -> DurableBlobs:
    """Opens the place that a URL names; nothing is read or written yet.

    Args:
        url: a local path or `file://`; `s3://bucket/prefix`, `gs://…`, `abfs://…` (credentials from the environment, as
            obstore finds them); `hdfs://host:port/path` (Hadoop's native library, as pyarrow finds it).
        config: settings for an object store, as obstore's `from_url` takes them (`endpoint`, `region`, …).

    Raises:
        StoreError: the scheme is unknown, or the place cannot be opened.
    """
    match = _SCHEME.match(url)
    if match is None:
        return FolderBlobs(url)
    scheme = match[1].lower()
    if scheme == "file":
        return FolderBlobs(Path(unquote(urlsplit(url).path)))
    try:
        if scheme in _OBJECT_STORES:
            from obstore.store import from_url

            from arcbeam.store.blobs.objects import ObjectBlobs

            settings: Any = dict(config or {})
            # An endpoint is plain HTTP only if it was said so: here, or in the environment (AWS_ALLOW_HTTP).
            plain = str(settings.get("endpoint", "")).startswith("http://")
            opened = from_url(url, config=settings, client_options={"allow_http": True} if plain else None)
            return ObjectBlobs(opened, shown(url))
        if scheme in _HADOOP:
            from pyarrow import fs

            from arcbeam.store.blobs.hadoop import HadoopBlobs

            filesystem, root = fs.FileSystem.from_uri(url)
            return HadoopBlobs(filesystem, root, shown(url))
    except Exception as e:  # obstore and pyarrow have no common base for a bad URL, a bad setting, a missing library
        raise StoreError(
            f"'{shown(url)}' cannot be opened: {str(e).splitlines()[0] if str(e) else type(e).__name__}",
            "see that the URL, its credentials and settings are right",
        ) from e
    raise StoreError(
        f"'{shown(url)}': nothing here knows '{scheme}://'",
        f"use a folder, or a URL that begins with {', '.join(f'{s}://' for s in (*_OBJECT_STORES, *_HADOOP))}",
    )


def shown(url: str) -> str:
    """A URL without a user's name and secret, for people; a path as an absolute one."""
    return re.sub(r"//[^/@]*@", "//…@", url) if _SCHEME.match(url) else os.path.abspath(url)
