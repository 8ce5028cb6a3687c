"""Part files on S3 and compatible stores: multipart uploads to the final key, completed when they are published.

Owns how the attempt of an upload is known. Before an upload is created, a small object below the staging folder (the
record) names its key. After that, the record also names the upload. So if a process is killed:

- before it creates the upload: the record names no upload. The sweep removes the record.
- between creating the upload and writing the second record: the record names the key. Uploads of that key that no
  record names are aborted, unless another attempt is about to record one for that key. Uploads are listed before the
  records are read. So an upload that is created meanwhile is not listed, or its record is read.
- later: the record names the upload.

Nothing is copied, and no reader sees a key before it is complete. The record is removed after the upload is completed.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

from typing_extensions import override

from arcbeam.io.parts.naming import STAGING
from arcbeam.io.parts.staging import Leftover, Staged, Staging, Writing, origin_of, staged_name
from arcbeam.model.attempts import Attempt
from arcbeam.sizes import remembered

_PIECE: Final = 8 << 20
"""Bytes of one part of an upload. S3 requires at least 5 MiB, and at most 10,000 parts."""
_PARTS_MAX: Final = 10_000
_AT_ONCE: Final = 16
"""Concurrent requests; each takes about a tenth of a second."""


class ObjectStaging(Staging):
    """Stages multipart uploads; see `Staging`.

    Args:
        path: "s3://bucket/prefix".
        options: those of `apache_beam.options.pipeline_options.S3Options`; boto3 reads others from the environment.

    Raises:
        ModuleNotFoundError: boto3 is not installed.
        ValueError: the path has no bucket.
    """

    names_first = True
    at_once = _AT_ONCE

    def __init__(self, path: str, options: Mapping[str, Any]) -> None:
        super().__init__(path)
        from apache_beam.io.aws.clients.s3 import boto3_client

        if boto3_client.boto3 is None:
            raise ModuleNotFoundError(f"{path}: S3 requires boto3; install it with: pip install 'apache-beam[aws]'")
        self._bucket, _, prefix = path.removeprefix("s3://").partition("/")
        if not self._bucket:
            raise ValueError(f"{path}: expected s3://BUCKET/PREFIX, the bucket is missing")
        self._prefix = prefix and prefix + "/"
        self._s3: Any = _client(tuple(sorted(options.items())))

    @override
    def begin(self, attempt: Attempt, name: str = "") -> Writing:
        if not name:
            raise ValueError("an upload needs its final name")
        return _Upload(self, attempt, name)

    @override
    def publish(self, files: Sequence[Staged]) -> None:
        with ThreadPoolExecutor(min(_AT_ONCE, len(files) or 1)) as pool:
            for _ in pool.map(self._complete, files):
                pass

    def _complete(self, file: Staged) -> None:
        key, record = self._key(file.name), self._key(file.staged)
        # The record is removed last. Without a record, the upload was completed before, or swept.
        if self._size(record) is None or not self._completed(file, key):
            upload, target = f"upload {file.upload['id']}", self.full(file.name)
            match self._size(key):
                case None:
                    self.missing(upload, target)
                case size if size != file.size:
                    self.missing(upload, f"{target} of {file.size} bytes, not {size}")
        self._s3.delete_object(Bucket=self._bucket, Key=record)

    def _completed(self, file: Staged, key: str) -> bool:
        """Complete an upload; False if it does not exist."""
        parts = [{"PartNumber": n, "ETag": tag} for n, tag in enumerate(file.upload["tags"], 1)]
        try:
            self._s3.complete_multipart_upload(
                Bucket=self._bucket, Key=key, UploadId=file.upload["id"], MultipartUpload={"Parts": parts}
            )
        except self._s3.exceptions.ClientError as error:
            if _code(error) != "NoSuchUpload":
                raise
            return False
        return True

    def _size(self, key: str) -> int | None:
        try:
            size: int = self._s3.head_object(Bucket=self._bucket, Key=key)["ContentLength"]
        except self._s3.exceptions.ClientError as error:
            if _code(error) not in ("404", "NoSuchKey", "NotFound"):
                raise
            return None
        return size

    @override
    def put(self, name: str, data: bytes, staged: str) -> None:
        self._s3.put_object(Bucket=self._bucket, Key=self._key(name), Body=data)

    @override
    def get(self, name: str) -> bytes | None:
        try:
            data: bytes = self._s3.get_object(Bucket=self._bucket, Key=self._key(name))["Body"].read()
        except self._s3.exceptions.NoSuchKey:
            return None
        return data

    @override
    def delete(self, names: Iterable[str]) -> None:
        for name in names:
            self._s3.delete_object(Bucket=self._bucket, Key=self._key(name))

    @override
    def leftovers(self, job: str = "") -> Iterator[Leftover]:
        now, folder = time.time(), self._key(f"{STAGING}/{job}/" if job else f"{STAGING}/")
        for page in self._s3.get_paginator("list_objects_v2").paginate(Bucket=self._bucket, Prefix=folder):
            for each in page.get("Contents", ()):
                staged = each["Key"].removeprefix(self._prefix)
                origin = origin_of(staged)
                if origin is not None:
                    age = max(0.0, now - each["LastModified"].timestamp())
                    yield Leftover(*origin, staged, None, age, "upload")

    @override
    def remove(self, leftovers: Iterable[Leftover]) -> None:
        removed = {each.staged for each in leftovers}
        records = self._records(removed)
        beginnings = {record["key"] for record in records.values() if record["upload"] is None}
        # SUBTLE: in this order. An attempt that created a listed upload has recorded the key before, so it is read now.
        listed = {key: list(self._uploads(key)) for key in sorted(beginnings)}
        if beginnings:
            records = self._records(removed)
            others = self._records({each.staged for each in self.leftovers()} - removed)
            noted = {record["upload"] for record in (*records.values(), *others.values())}
            beginning = {record["key"] for record in others.values() if record["upload"] is None}
        for staged, record in records.items():
            key, uploads = record["key"], [record["upload"]]
            if record["upload"] is None:
                if key in beginning:
                    # One of the uploads may be another attempt's, which will record it. The next sweep decides.
                    continue
                uploads = [upload for upload in listed[key] if upload not in noted]
            for upload in uploads:
                self._abort(key, upload)
            self._s3.delete_object(Bucket=self._bucket, Key=self._key(staged))

    def _records(self, names: Iterable[str]) -> dict[str, Any]:
        """Return the records that exist, by name."""
        return {staged: record for staged in sorted(names) if (record := self._record(staged)) is not None}

    def _record(self, staged: str) -> Any:
        body = self.get(staged)
        return None if body is None else json.loads(body)

    def _uploads(self, key: str) -> Iterator[str]:
        """Yield the uploads of a key that are not completed."""
        for page in self._s3.get_paginator("list_multipart_uploads").paginate(Bucket=self._bucket, Prefix=key):
            yield from (each["UploadId"] for each in page.get("Uploads", ()) if each["Key"] == key)

    def _abort(self, key: str, upload: str) -> None:
        try:
            self._s3.abort_multipart_upload(Bucket=self._bucket, Key=key, UploadId=upload)
        except self._s3.exceptions.ClientError as error:
            if _code(error) != "NoSuchUpload":
                raise

    def _key(self, name: str) -> str:
        return self._prefix + name


class _Upload(Writing):
    def __init__(self, place: ObjectStaging, attempt: Attempt, name: str) -> None:
        self._s3, self._bucket = place._s3, place._bucket
        self._staged, self._name = staged_name(attempt), name
        self._key, self._record = place._key(name), place._key(self._staged)
        self._waiting = bytearray()
        self._tags: list[str] = []
        self._piece = _PIECE
        self._note(None)
        self._id: str = self._s3.create_multipart_upload(Bucket=self._bucket, Key=self._key)["UploadId"]
        self._note(self._id)

    def _note(self, upload: str | None) -> None:
        body = json.dumps({"key": self._key, "upload": upload}).encode()
        self._s3.put_object(Bucket=self._bucket, Key=self._record, Body=body)

    def write(self, data: bytes) -> None:
        self._waiting += data
        self.size += len(data)
        while len(self._waiting) >= self._piece:
            self._send(bytes(self._waiting[: self._piece]))
            del self._waiting[: self._piece]
            if len(self._tags) % (_PARTS_MAX // 10) == 0:
                # A file of any size must fit into the number of parts that S3 allows.
                self._piece *= 2
        self.held = len(self._waiting)

    def _send(self, data: bytes) -> None:
        sent = self._s3.upload_part(
            Bucket=self._bucket, Key=self._key, UploadId=self._id, PartNumber=len(self._tags) + 1, Body=data
        )
        self._tags.append(sent["ETag"])

    def finish(self) -> Staged:
        if self._waiting or not self._tags:
            self._send(bytes(self._waiting))
        self._waiting.clear()
        return Staged(self._staged, self.size, self._name, {"id": self._id, "tags": self._tags})

    def abandon(self) -> None:
        with contextlib.suppress(Exception):
            self._s3.abort_multipart_upload(Bucket=self._bucket, Key=self._key, UploadId=self._id)
            self._s3.delete_object(Bucket=self._bucket, Key=self._record)


@remembered(8)
def _client(options: tuple[tuple[str, Any], ...]) -> Any:
    """Return a boto3 client, shared by threads; creating one takes a second."""
    from apache_beam.io.aws.clients.s3 import boto3_client

    return boto3_client.Client(dict(options)).client


def _code(error: Any) -> str:
    code: str = error.response["Error"]["Code"]
    return code
