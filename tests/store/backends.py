"""The backends of the store's tests: a folder, memory, a stand-in for HDFS, and a real S3 server."""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import urllib.request
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from obstore.store import S3Store
from pyarrow import fs

from arcbeam.store.blobs.hadoop import HadoopBlobs
from arcbeam.store.blobs.objects import ObjectBlobs
from arcbeam.store.jobtemp.jobblobs import RemoteBlobs
from arcbeam.store.jobtemp.location import JobLocation


class Local(fs.FileSystemHandler):
    """The local file system, as a base of others."""

    def __init__(self) -> None:
        self.inner = fs.LocalFileSystem()

    def __eq__(self, other: object) -> bool:
        return self is other

    def __ne__(self, other: object) -> bool:
        return self is not other

    def get_type_name(self) -> str:
        return "local stand-in"

    def normalize_path(self, path: str) -> str:
        return path

    def get_file_info(self, paths: list[str]) -> list[fs.FileInfo]:
        return self.inner.get_file_info(paths)

    def get_file_info_selector(self, selector: fs.FileSelector) -> list[fs.FileInfo]:
        return self.inner.get_file_info(selector)

    def create_dir(self, path: str, recursive: bool) -> None:
        self.inner.create_dir(path, recursive=recursive)

    def delete_dir(self, path: str) -> None:
        self.inner.delete_dir(path)

    def delete_dir_contents(self, path: str, missing_dir_ok: bool = False) -> None:
        self.inner.delete_dir_contents(path, missing_dir_ok=missing_dir_ok)

    def delete_root_dir_contents(self) -> None:
        raise AssertionError

    def delete_file(self, path: str) -> None:
        self.inner.delete_file(path)

    def move(self, src: str, dest: str) -> None:
        self.inner.move(src, dest)

    def copy_file(self, src: str, dest: str) -> None:
        self.inner.copy_file(src, dest)

    def open_input_stream(self, path: str) -> Any:
        return self.inner.open_input_stream(path)

    def open_input_file(self, path: str) -> Any:
        return self.inner.open_input_file(path)

    def open_output_stream(self, path: str, metadata: object) -> Any:
        return self.inner.open_output_stream(path)

    def open_append_stream(self, path: str, metadata: object) -> Any:
        raise AssertionError


class RenamesOnce(Local):
    """A local folder with HDFS's rename: refused if the name exists. On request it fails after the rename."""

    def __init__(self) -> None:
        super().__init__()
        self.silent_moves = 0
        self._renaming = threading.Lock()

    def move(self, src: str, dest: str) -> None:
        # HDFS checks and renames in one operation.
        with self._renaming:
            if os.path.exists(dest):
                raise OSError(f"rename refused: {dest} exists")
            self.inner.move(src, dest)
        if self.silent_moves:
            self.silent_moves -= 1
            raise OSError("connection reset")


def s3_store(endpoint: str) -> S3Store:
    """Return a separate prefix in the bucket of a server."""
    return S3Store(
        "jobs",
        prefix=uuid.uuid4().hex,
        endpoint=endpoint,
        access_key_id="k",
        secret_access_key="s",
        region="us-east-1",
        client_options={"allow_http": True},
    )


def location_of(request: pytest.FixtureRequest, folder: Path) -> JobLocation:
    """Return a job's temporary location of the kind in a test's parameter."""
    match request.param:
        case "local":
            return JobLocation(str(folder / "job"))
        case "hadoop":
            root = str(folder / "remote" / "job")
            hadoop = HadoopBlobs(fs.PyFileSystem(RenamesOnce()), root, "hdfs://test/job")
            return JobLocation("test://remote/job", blobs=RemoteBlobs(hadoop, folder / "cache" / "job"))
        case _:
            objects = ObjectBlobs(s3_store(request.getfixturevalue("s3_endpoint")), "s3://jobs/job")
            return JobLocation("test://remote/job", blobs=RemoteBlobs(objects, folder / "cache" / "job"))


@contextlib.contextmanager
def s3_server() -> Iterator[str]:
    """Yield the address of an S3 server in this process, with the bucket "jobs"."""
    from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
    from werkzeug.serving import make_server

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    app, one_at_a_time = DomainDispatcherApplication(create_backend_app), threading.Lock()

    def answer(environ: Any, start_response: Any) -> Any:
        # moto checks whether a key exists, and then puts it; S3 does both in one operation.
        with one_at_a_time:
            return app(environ, start_response)

    server = make_server("127.0.0.1", 0, answer, threaded=True)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    endpoint = f"http://127.0.0.1:{server.server_port}"
    urllib.request.urlopen(urllib.request.Request(f"{endpoint}/jobs", method="PUT")).close()
    try:
        yield endpoint
    finally:
        server.shutdown()
        thread.join()
