"""The ends of a job, each with a process killed at each point on the way: part files are neither lost nor duplicated.

Each cell of the matrix is a separate job; jobs share a session, one after the other, until it is killed. Each job is
asked to end, a process is killed at a point, and a supervisor restarts the driver if needed. At the end (after a
resumption, if the end was not permanent) every number is in one file, once. A reader reads the folder all the time.
`make test` tries a few cells; the table of all:

    python -m tests.chaos.test_ends [local | s3] [END [VICTIM [POINT]]]
"""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final, Protocol

import pytest

from arcbeam.model.commits import CommitMode
from arcbeam.model.timestamps import Timestamp
from arcbeam.store.blobs.folder import FolderBlobs
from arcbeam.store.log import requests
from arcbeam.store.log.chain import known, read_newest
from tests.chaos.ends import KEYS, TRAILER
from tests.chaos.hosts import Driver, Host
from tests.chaos.points import POINTS, VICTIMS, arm, is_hit
from tests.store.backends import s3_server
from tests.waiting import until

ENDS: Final = ("finite", "drain", "suspend", "error", "cancel")
_FOR_GOOD: Final = ("finite", "drain")
_ONLY_GRACEFUL: Final = ("prepared, not committed", "before shutdown", "after shutdown")
_MASTER = {"driver": "local[2,8]", "executor": "local-cluster[2,1,1024]", "worker": "local[2,8]"}
_SECONDS = 120.0
_NUMBERS = 800


def cells() -> Iterator[tuple[str, str, str]]:
    """Yield all cells: if an end is not permanent, the last points are those of the finite end that follows."""
    for end in ENDS:
        for victim in VICTIMS:
            for point in POINTS:
                if end in _FOR_GOOD or point not in _ONLY_GRACEFUL:
                    yield end, victim, point


class Out(Protocol):
    """The target of part files."""

    url: str
    options: list[str]

    def files(self) -> dict[str, str]:
        """Return what a reader finds: all files and their contents."""

    def left_over(self) -> list[str]:
        """Return staged files that are neither published nor removed, except for the mark of the names' owner."""


def _is_staged(name: str) -> bool:
    return "/." in name and "/.arcbeam/owner-" not in name


class LocalOut:
    """A folder."""

    def __init__(self, folder: Path) -> None:
        self._folder, self.url = folder, str(folder)
        self.options: list[str] = []

    def files(self) -> dict[str, str]:
        """See `Out`."""
        return {path.name: path.read_text() for path in self._folder.glob("[!.]*") if path.is_file()}

    def left_over(self) -> list[str]:
        """See `Out`."""
        return [str(path) for path in self._folder.rglob("*") if path.is_file() and _is_staged(str(path))]


class S3Out:
    """A location in an object store."""

    def __init__(self, endpoint: str, place: str) -> None:
        import boto3

        self.url, self._prefix = f"s3://jobs/{place}", f"{place}/"
        self.options = [
            f"--s3_endpoint_url={endpoint}",
            "--s3_access_key_id=any",
            "--s3_secret_access_key=any",
            "--s3_region_name=us-east-1",
        ]
        self._client: Any = boto3.client(
            "s3",
            endpoint_url=endpoint,
            aws_access_key_id="any",
            aws_secret_access_key="any",  # moto's
            region_name="us-east-1",
        )

    def _names(self) -> list[str]:
        pages = self._client.get_paginator("list_objects_v2").paginate(Bucket="jobs", Prefix=self._prefix)
        return [each["Key"] for page in pages for each in page.get("Contents", ())]

    def files(self) -> dict[str, str]:
        """See `Out`."""
        names = [name for name in self._names() if "/." not in name]
        return {
            name.rpartition("/")[2]: self._client.get_object(Bucket="jobs", Key=name)["Body"].read().decode()
            for name in names
        }

    def left_over(self) -> list[str]:
        """See `Out`."""
        uploads = self._client.list_multipart_uploads(Bucket="jobs", Prefix=self._prefix).get("Uploads", ())
        return [name for name in self._names() if _is_staged(name)] + [each["Key"] for each in uploads]


class Reader(threading.Thread):
    """Lists and reads all the time. A file that it has seen must not change."""

    def __init__(self, out: Out) -> None:
        super().__init__(daemon=True)
        self._out, self._stopped = out, threading.Event()
        self.seen: dict[str, str] = {}
        self.faults: list[str] = []

    def run(self) -> None:
        """See `threading.Thread`."""
        while not self._stopped.wait(0.05):
            try:
                self.look()
            except Exception as e:
                self.faults.append(f"the reader: {e!r}")

    def look(self) -> None:
        """Once."""
        found = self._out.files()
        if gone := self.seen.keys() - found.keys():
            self.faults.append(f"{', '.join(sorted(gone))} has disappeared")
        for name, text in found.items():
            if not text.endswith("\n"):
                self.faults.append(f"{name} is incomplete: it ends with {text[-20:]!r}")
            if self.seen.setdefault(name, text) != text:
                self.faults.append(f"{name} has changed")

    def close(self) -> None:
        """Read for the last time."""
        self._stopped.set()
        self.join()


class Trial:
    """A job, and what happens to it.

    Args:
        folder: for all local files.
        end: how it is to end.
        victim, point: the process to kill, and where.
        out: the target of its files.
        host: where its drivers run.
    """

    def __init__(self, folder: Path, end: str, victim: str, point: str, out: Out, host: Host) -> None:
        self._folder, self._end, self._victim, self._point, self._out = folder, end, victim, point, out
        self._state, self._host, self._tail = folder / "state", host, host.tail
        self._store = FolderBlobs(self._state)

    def run(self) -> bool:
        """Run the trial; return whether the point was reached. Raises AssertionError if a promise is broken."""
        reader = Reader(self._out)
        reader.start()
        driver = self._start()
        try:
            self._wait(driver, lambda: len(reader.seen) >= 2, "its first output")
            arm(self._folder, self._point, self._victim)
            self._ask()
            self._until_it_ends(driver)
            hit = is_hit(self._folder)
            (self._folder / "point").unlink(missing_ok=True)
            if self._end not in _FOR_GOOD:
                self._resume()
        except BaseException:
            self._host.kill()
            raise
        finally:
            reader.close()
        reader.look()
        assert not reader.faults, reader.faults
        self._check(reader.seen)
        return hit

    def _ask(self) -> None:
        """Request its end."""
        if self._end == "finite":
            (self._folder / "until").write_text(str(_NUMBERS))
        elif self._end == "error":
            (self._folder / "poison").write_text("")
        else:
            now = Timestamp(time.time_ns() // 1000)
            what, name = requests.RequestKind(self._end), "" if self._end == "cancel" else "last"
            requests.ask(self._store, what, name, now)

    def _until_it_ends(self, driver: Driver) -> None:
        """Restart it if its driver is killed, as a supervisor does."""
        while True:
            try:
                driver.wait(_SECONDS)
            except subprocess.TimeoutExpired:
                raise AssertionError(f"the job does not end:\n{self._tail()}") from None
            if driver.returncode != -signal.SIGKILL:
                return
            if self._end == "cancel" or (self._end == "suspend" and self._mode() is CommitMode.SUSPENDED):
                # Cancelled by the kill, or suspended before it.
                return
            driver = self._start()

    def _resume(self) -> None:
        """Resume it, and wait for its end."""
        if self._end == "suspend":
            assert self._mode() is CommitMode.SUSPENDED, self._tail()
        (self._folder / "poison").unlink(missing_ok=True)
        (self._folder / "until").write_text(str(_NUMBERS))
        driver = self._start()
        driver.wait(_SECONDS)
        assert driver.returncode == 0, self._tail()

    def _check(self, files: Mapping[str, str]) -> None:
        mode = self._mode()
        assert mode is (CommitMode.DRAINED if self._end == "drain" else CommitMode.DONE), f"{mode}\n{self._tail()}"
        lines = [line for text in files.values() for line in text.splitlines()]
        trailers = [line for line in lines if line.startswith(TRAILER)]
        pairs = sorted(tuple(map(int, line.split())) for line in lines if not line.startswith(TRAILER))
        numbers = [number for number, _ in pairs]
        assert numbers == list(range(len(numbers))), (
            f"lost or duplicated: {len(numbers)}, {len(set(numbers))} different"
        )
        assert [ordinal for _, ordinal in pairs] == [number // KEYS + 1 for number in numbers]
        if self._end != "drain":
            assert len(numbers) == _NUMBERS
        assert trailers, "prepare_to_shutdown was not called"
        assert len(trailers) == len(set(trailers))
        assert (self._folder / "shutdown").exists(), "shutdown was not called"
        assert self._out.left_over() == []

    def _mode(self) -> CommitMode:
        newest = read_newest(self._store)
        assert newest is not None
        return known(newest).mode

    def _wait(self, driver: Driver, so: Any, what: str) -> None:
        until(so, lambda: f"{what}\n{self._tail()}", seconds=_SECONDS, process=driver)

    def _start(self) -> Driver:
        return self._host.start(
            self._folder,
            self._out.url,
            [
                f"--checkpoint_dir={self._state}",
                "--shards=3",
                "--spark_conf=spark.executor.memory=512m",
                *self._out.options,
            ],
        )


class Hosts(contextlib.ExitStack):
    """Hosts by the master that victims need; all end with the block.

    Args:
        folder: the hosts' folder.
    """

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self._folder, self._of = folder, dict[str, Host]()

    def of(self, victim: str) -> Host:
        """Return the host for jobs in which such a process is killed."""
        master = _MASTER[victim]
        if master not in self._of:
            host = self._of[master] = Host(self._folder / f"host-{len(self._of)}", master)
            self.callback(host.kill)
        return self._of[master]


def trial(folder: Path, hosts: Hosts, end: str, victim: str, point: str, s3: str = "") -> bool:
    """Run one cell; see `Trial.run`."""
    out = S3Out(s3, f"{end}-{victim}-{point}".replace(" ", "-").replace(",", "")) if s3 else LocalOut(folder / "out")
    return Trial(folder, end, victim, point, out, hosts.of(victim)).run()


@pytest.fixture(scope="module")
def hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hosts]:
    with Hosts(tmp_path_factory.mktemp("hosts")) as found:
        yield found


@pytest.fixture(scope="module", params=["local", "s3"])
def s3(request: pytest.FixtureRequest) -> Iterator[str]:
    with s3_server() if request.param == "s3" else contextlib.nullcontext("") as found:
        yield found


@pytest.mark.contract("END-01", "END-05", "END-06")
def test_part_files_are_neither_lost_nor_duplicated(hosts: Hosts, tmp_path: Path) -> None:
    assert trial(tmp_path, hosts, "finite", "driver", "prepared, not committed")


@pytest.mark.long
@pytest.mark.contract("END-01", "END-02", "END-03", "END-04", "END-05", "END-06")
@pytest.mark.parametrize(("end", "victim", "point"), list(cells()))
def test_all_ends_all_kills(s3: str, hosts: Hosts, end: str, victim: str, point: str, tmp_path: Path) -> None:
    hit = trial(tmp_path, hosts, end, victim, point, s3)
    # A job that fails or is cancelled may end before it reaches a point.
    assert hit or end in ("error", "cancel")


def main(where: str, *which: str) -> int:
    """Try cells, and print the result of each; return how many went wrong."""
    wrong = 0
    with (
        tempfile.TemporaryDirectory() as hosting,
        Hosts(Path(hosting)) as hosts,
        s3_server() if where == "s3" else contextlib.nullcontext("") as s3,
    ):
        for cell in cells():
            if any(wanted not in ("-", had) for wanted, had in zip(which, cell, strict=False)):
                continue
            began = time.monotonic()
            with tempfile.TemporaryDirectory() as folder:
                try:
                    reported = "well" if trial(Path(folder), hosts, *cell, s3) else "well, and not reached"
                except AssertionError as e:
                    reported, wrong = f"WRONG {e}", wrong + 1
            sys.stdout.write(f"{where}: {', '.join(cell)}: {reported} ({time.monotonic() - began:.0f} s)\n")
            sys.stdout.flush()
    return wrong


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:] or ("local",)))
