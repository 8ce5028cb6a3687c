"""Durable blobs of every backend."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from obstore.store import MemoryStore, S3Store
from pyarrow import fs

from arcbeam.store.blobs.durable import DurableBlobs
from arcbeam.store.blobs.folder import FolderBlobs
from arcbeam.store.blobs.hadoop import HadoopBlobs
from arcbeam.store.blobs.objects import ObjectBlobs
from tests.store.backends import RenamesOnce, s3_server, s3_store


@pytest.fixture(scope="session")
def s3_endpoint() -> Iterator[str]:
    """An S3 server in this process, with one bucket."""
    with s3_server() as endpoint:
        yield endpoint


@pytest.fixture
def s3(s3_endpoint: str) -> Callable[[], S3Store]:
    """Return a function that creates empty stores on S3, for state machines, which need several."""
    return lambda: s3_store(s3_endpoint)


@pytest.fixture(params=["folder", "memory", "hadoop", "s3"])
def blobs(request: pytest.FixtureRequest, tmp_path: Path) -> DurableBlobs:
    """An empty store of every kind."""
    match request.param:
        case "folder":
            return FolderBlobs(tmp_path / "job", sync=False)
        case "memory":
            return ObjectBlobs(MemoryStore(), "memory://")
        case "hadoop":
            root = tmp_path / "hdfs"
            return HadoopBlobs(fs.PyFileSystem(RenamesOnce()), str(root), f"hdfs://test{root}")
        case _:
            return ObjectBlobs(s3_store(request.getfixturevalue("s3_endpoint")), "s3://jobs")


@pytest.fixture(params=["memory", pytest.param("s3", marks=pytest.mark.long)])
def memory(request: pytest.FixtureRequest) -> DurableBlobs:
    """An empty store in memory, for tests that do not depend on the backend; in `make test-all`, one on S3, too."""
    if request.param == "s3":
        return ObjectBlobs(s3_store(request.getfixturevalue("s3_endpoint")), "memory://")
    return ObjectBlobs(MemoryStore(), "memory://")
