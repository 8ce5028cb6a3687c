"""Chooses the backend for a URL.

Owns the schemes. Must not know what is stored.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

from arcbeam.store.blobs.durable import ClearableBlobs
from arcbeam.store.blobs.errors import StoreError
from arcbeam.store.blobs.folder import FolderBlobs
from arcbeam.store.blobs.private import check_ours

_SCHEME = re.compile(r"([a-zA-Z][a-zA-Z0-9+.-]*)://")
_OBJECT_STORES = ("s3", "s3a", "gs", "az", "azure", "abfs", "abfss")
_HADOOP = ("hdfs", "viewfs")


def open_blobs(url: str, config: Mapping[str, Any] | None = None, *, made: bool = False) -> ClearableBlobs:
    """Open the location of a URL; nothing is read or written yet.

    Args:
        url: a local path or `file://`; `s3://bucket/prefix`, `gs://…`, `abfs://…`; `hdfs://host:port/path`. Object
            stores take credentials from the environment, as obstore does. S3 also takes them from the URL, as
            `s3://key:secret@bucket/prefix?region=…&endpoint_override=…`, with `scheme=http` if that endpoint has no
            TLS. HDFS needs Hadoop's native library, where pyarrow finds it.
        config: settings for an object store, as for obstore's `from_url` (`endpoint`, `region`, …).
        made: whether another process has written there: then a missing folder is unavailable, and is not created.

    Raises:
        StoreError: the scheme is unknown, or the location cannot be opened.
    """
    match = _SCHEME.match(url)
    if match is None:
        return FolderBlobs(url, made=made)
    scheme = match[1].lower()
    if scheme == "file":
        return FolderBlobs(Path(unquote(urlsplit(url).path)), made=made)
    try:
        if scheme in _OBJECT_STORES:
            from obstore.store import from_url

            from arcbeam.store.blobs.objects import ObjectBlobs

            settings: Any = {**_of_url(url), **(config or {})}
            # An endpoint is plain HTTP only if that is set: here, or in the environment (AWS_ALLOW_HTTP).
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
            "check the URL, its credentials and settings",
        ) from e
    raise StoreError(
        f"'{shown(url)}': unknown scheme '{scheme}://'",
        f"use a folder, or a URL that begins with {', '.join(f'{s}://' for s in (*_OBJECT_STORES, *_HADOOP))}",
    )


def check_owner(url: str) -> None:
    """Refuse a local folder that another user may have filled: files in a job's folder can run code when read.

    Object stores and HDFS have their own access rules.

    Raises:
        StoreError: it is another user's, or all users can write to it.
    """
    match = _SCHEME.match(url)
    if match is not None and match[1].lower() != "file":
        return
    folder = Path(unquote(urlsplit(url).path)) if match else Path(url)
    try:
        # For a link that the user gives, its target counts.
        check_ours(folder.resolve())
    except FileNotFoundError:
        return
    except OSError as e:
        raise StoreError(
            f"the job in '{folder}' is not resumed: {e.strerror}; a user with this right could run code under your "
            "account",
            "use a folder that you own; or take it over with chown, and remove the rights of others with chmod o-w; or "
            "share it with one of your groups (chmod g+rwxs,o-w)",
        ) from e


def _of_url(url: str) -> dict[str, str]:
    """Return the settings in a URL of S3; obstore ignores them."""
    parts = urlsplit(url)
    if not parts.scheme.lower().startswith("s3"):
        return {}
    options = dict(parse_qsl(parts.query))
    endpoint = options.get("endpoint_override", "")
    if endpoint and "://" not in endpoint:
        endpoint = f"{options.get('scheme', 'https')}://{endpoint}"
    found = {
        "access_key_id": unquote(parts.username or ""),
        "secret_access_key": unquote(parts.password or ""),
        "region": options.get("region", ""),
        "endpoint": endpoint,
    }
    return {name: value for name, value in found.items() if value}


def shown(url: str) -> str:
    """Return a URL without a user's name and secret, for people; a path as an absolute one."""
    return re.sub(r"//[^/@]*@", "//…@", url) if _SCHEME.match(url) else os.path.abspath(url)


def below(url: str, name: str) -> str:
    """Return the URL of `name` below the location of a URL, or path."""
    # A URL may have settings after its path.
    path, mark, settings = url.partition("?") if _SCHEME.match(url) else (url, "", "")
    return f"{path.rstrip('/')}/{name}{mark}{settings}"
