"""Small documents that are stored as JSON, each with the version of its format.

Owns where the version is, and what happens to a document of a newer one. Must not know what a document means.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from arcbeam.errors import ArcbeamError


class NewerDocumentError(ArcbeamError, ValueError):
    """A newer version of arcbeam has written a document. Nothing was changed."""


def encode(version: int, record: Mapping[str, Any]) -> bytes:
    """Return a document.

    Args:
        version: of its format.
        record: JSON values.
    """
    return json.dumps({"version": version, **record}, separators=(",", ":")).encode()


def decode(data: bytes, version: int, what: str) -> dict[str, Any]:
    """Return the record in a document, without its version.

    Args:
        data: its bytes.
        version: the newest one that the caller reads.
        what: what the document is, for errors: "a request".

    Raises:
        ValueError: it is no document.
        NewerDocumentError: its version is newer.
    """
    return checked(json.loads(data), version, what)


def checked(record: Any, version: int, what: str) -> dict[str, Any]:
    """Return a record without its version; otherwise like `decode`."""
    if not isinstance(record, dict) or type(record.get("version")) is not int:
        raise ValueError(f"it is not {what}: {record!r:.200}")
    if record["version"] > version:
        raise NewerDocumentError(
            f"{what} has format {record['version']}; this version of arcbeam reads up to {version}",
            "nothing was changed: use the version of arcbeam that wrote it, or a newer one",
        )
    return {name: value for name, value in record.items() if name != "version"}
