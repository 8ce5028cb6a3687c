"""Folders on all file systems in which parts are staged and published."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from apache_beam.io.localfilesystem import LocalFileSystem

from arcbeam.io.parts.filesystems import FileSystemStaging
from arcbeam.io.parts.places import staging_for
from arcbeam.io.parts.staging import Staging
from tests.store.backends import s3_server


class Elsewhere(LocalFileSystem):  # type: ignore[misc]  # Beam is untyped
    """A folder of this host as a file system that only Beam knows. Its rename behaves like that of HDFS."""

    def __init__(self, pipeline_options: Any) -> None:
        super().__init__(pipeline_options)
        self.options = pipeline_options

    @classmethod
    def scheme(cls) -> str:
        return "elsewhere"

    def _local(self, path: str) -> str:
        return path.removeprefix("elsewhere://")

    def exists(self, path: str) -> bool:
        return bool(super().exists(self._local(path)))

    def mkdirs(self, path: str) -> None:
        super().mkdirs(self._local(path))

    def create(self, path: str, **kwargs: Any) -> Any:
        return super().create(self._local(path), **kwargs)

    def open(self, path: str, **kwargs: Any) -> Any:
        return super().open(self._local(path), **kwargs)

    def match(self, patterns: Any, limits: Any = None) -> Any:
        return super().match([self._local(each) for each in patterns], limits)

    def rename(self, sources: Any, destinations: Any) -> None:
        if any(map(self.exists, destinations)):
            raise OSError("rename refused: it exists")
        super().rename(list(map(self._local, sources)), list(map(self._local, destinations)))

    def delete(self, paths: Any) -> None:
        super().delete(list(map(self._local, paths)))


@pytest.fixture(scope="session")
def s3_endpoint() -> Iterator[str]:
    """An S3 server in this process, with the bucket "jobs"."""
    with s3_server() as endpoint:
        yield endpoint


@pytest.fixture(scope="session")
def s3_options(s3_endpoint: str) -> dict[str, Any]:
    """The options for Beam's S3 client."""
    return {
        "s3_endpoint_url": s3_endpoint,
        "s3_access_key_id": "k",
        "s3_secret_access_key": "s",
        "s3_region_name": "us-east-1",
    }


@pytest.fixture
def s3_path() -> str:
    return f"s3://jobs/{uuid.uuid4().hex}/out"


@pytest.fixture(params=["local", "elsewhere", "s3"])
def staging(request: pytest.FixtureRequest, tmp_path: Path) -> Staging:
    """The staging of an empty folder on each file system."""
    match request.param:
        case "local":
            return staging_for(f"{tmp_path}/out/", {})
        case "elsewhere":
            made = staging_for(f"elsewhere://{tmp_path}/out", {})
            assert isinstance(made, FileSystemStaging)
            return made
        case _:
            return staging_for(request.getfixturevalue("s3_path"), request.getfixturevalue("s3_options"))


@pytest.fixture
def names(staging: Staging) -> Callable[[], list[str]]:
    """Returns the files that readers see, by their names below the path."""

    def seen() -> list[str]:
        if staging.path.startswith("s3://"):
            listed = staging._s3.list_objects_v2(Bucket="jobs", Prefix=staging._prefix)  # type: ignore[attr-defined]
            found = [each["Key"].removeprefix(staging._prefix) for each in listed.get("Contents", ())]  # type: ignore[attr-defined]
        else:
            root = Path(staging.path.removeprefix("elsewhere://"))
            found = [str(path.relative_to(root)) for path in root.rglob("*") if path.is_file()]
        return sorted(name for name in found if not name.startswith("."))

    return seen
