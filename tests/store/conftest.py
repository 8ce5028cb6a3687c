"""Durable blobs of every backend."""

from __future__ import annotations

import logging
import threading
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from obstore.store import MemoryStore, S3Store
from pyarrow import fs

from arcbeam.store.blobs.durable import DurableBlobs
from arcbeam.store.blobs.folder import FolderBlobs
from arcbeam.store.blobs.hadoop import HadoopBlobs
from arcbeam.store.blobs.objects import ObjectBlobs
from tests.store.backends import RenamesOnce, s3_store


@pytest.fixture(scope="session")
def s3_endpoint() -> Iterator[str]:
    """An S3 server in this process, with one bucket."""
    from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
    from werkzeug.serving import make_server

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    app, one_at_a_time = DomainDispatcherApplication(create_backend_app), threading.Lock()

    def answer(environ: Any, start_response: Any) -> Any:
        # moto looks whether a key exists, and then puts it: S3 does both in one.
        with one_at_a_time:
            return app(environ, start_response)

    server = make_server("127.0.0.1", 0, answer, threaded=True)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    endpoint = f"http://127.0.0.1:{server.server_port}"
    urllib.request.urlopen(urllib.request.Request(f"{endpoint}/jobs", method="PUT")).close()
    yield endpoint
    server.shutdown()
    thread.join()


@pytest.fixture
def s3(s3_endpoint: str) -> Callable[[], S3Store]:
    """Makes empty stores of obstore's on S3, for state machines, which need several."""
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


@pytest.fixture(params=["memory", "s3"])
def memory(request: pytest.FixtureRequest) -> DurableBlobs:
    """An empty store in memory, for what does not depend on the backend; and, as nothing should, one on S3."""
    if request.param == "s3":
        return ObjectBlobs(s3_store(request.getfixturevalue("s3_endpoint")), "memory://")
    return ObjectBlobs(MemoryStore(), "memory://")
