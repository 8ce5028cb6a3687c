"""The staging implementation for a path, and the options that it needs.

Owns the choice; imports an implementation when it is needed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from apache_beam.io.filesystems import FileSystems
from apache_beam.options.pipeline_options import (
    AzureOptions,
    GoogleCloudOptions,
    HadoopFileSystemOptions,
    PipelineOptions,
    S3Options,
)

from arcbeam.errors import SetupError
from arcbeam.io.parts.staging import Staging
from arcbeam.secrets import how_to_give, installed

_VIEWS: Final = (S3Options, HadoopFileSystemOptions, GoogleCloudOptions, AzureOptions)


def options_of(pipeline: Any) -> Mapping[str, Any]:
    """Return the options that configure Beam's file systems. Spark's processes learn them in no other way."""
    options: PipelineOptions = pipeline.options
    return {
        name: value
        for view in _VIEWS
        for name, value in options.view_as(view).get_all_options(drop_default=True, current_only=True).items()
        if isinstance(value, str | int | float | bool | list)
    }


def opened(path: str, options: Mapping[str, Any], secrets: Sequence[str]) -> Staging:
    """Return the staging for a path, in a process that has the job's secrets.

    Args:
        path: a folder or URL.
        options: see `options_of`, without secrets.
        secrets: names of the options that are secret.

    Raises:
        SetupError: the process lacks one of them.
    """
    known = {name: installed(name) for name in secrets}
    if missing := sorted(name for name, value in known.items() if value is None):
        raise SetupError(
            f"cannot access the files in {path}: the secret option {missing[0]} is missing", how_to_give(missing)
        )
    return staging_for(path, {**options, **known})


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
