"""Which kind of file system a path is on. Owns the choice; a kind is imported when it is needed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from apache_beam.io.filesystems import FileSystems

from arcbeam.io.parts.staging import Staging


def is_local(path: str) -> bool:
    """Whether a path is on this machine's own file system."""
    return FileSystems.get_scheme(path) in (None, "file")


def staging_for(path: str, options: Mapping[str, Any]) -> Staging:
    """What stages and publishes below a path.

    Args:
        path: a folder or URL.
        options: the pipeline's, those of Beam's file systems.
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
