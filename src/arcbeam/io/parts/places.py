"""The staging implementation for a path. Owns the choice; imports an implementation when it is needed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from apache_beam.io.filesystems import FileSystems

from arcbeam.io.parts.staging import Staging


def is_local(path: str) -> bool:
    """Return whether a path is on this machine's file system."""
    return FileSystems.get_scheme(path) in (None, "file")


def staging_for(path: str, options: Mapping[str, Any]) -> Staging:
    """Return the staging implementation for a path.

    Args:
        path: a folder or URL.
        options: the pipeline's options for Beam's file systems.
    """
    path = path.rstrip("/")
    scheme = FileSystems.get_scheme(path)
    if scheme == "s3":
        from arcbeam.io.parts.objects import ObjectStaging

        return ObjectStaging(path, options)
    if is_local(path):
        from arcbeam.io.parts.local import LocalStaging

        return LocalStaging(path.removeprefix("file://"))
    from arcbeam.io.parts.filesystems import FileSystemStaging

    return FileSystemStaging(path, options)
