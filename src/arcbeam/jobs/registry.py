"""The durable registry of jobs: an SQLite file that outlives the server.

Owns the schema and every read and write of it. All that streams show comes from it, for running and old jobs. Knows
pipelines, options and metrics only as bytes. `execution` defines the states, `lifecycle` their transitions.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import sqlite3
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from arcbeam.errors import ArcbeamError, JobNotFoundError, SetupError
from arcbeam.jobs.execution import TERMINAL, JobState, Level
from arcbeam.model import texts
from arcbeam.sizes import threshold
from arcbeam.store.blobs.private import check_ours, make_folder, make_private, new_file

_LOG = logging.getLogger("arcbeam.jobs")

VERSION = 1
"""Version of the schema; stored in the file's `user_version`."""

_SCHEMA = """
CREATE TABLE job (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    id TEXT NOT NULL UNIQUE,
    name TEXT NOT NULL,
    pipeline BLOB NOT NULL,
    options BLOB NOT NULL,
    files TEXT,                 -- JSON; NULL until the job's files are staged
    state TEXT NOT NULL,
    changed INTEGER NOT NULL    -- µs since 1970, as every time here
);
CREATE TABLE event (
    seq INTEGER PRIMARY KEY AUTOINCREMENT,
    job TEXT NOT NULL REFERENCES job (id) ON DELETE CASCADE,
    state TEXT,                 -- a change of state, or …
    level INTEGER,              -- … a message
    text TEXT,
    at INTEGER NOT NULL
);
CREATE INDEX event_of_job ON event (job, seq);
CREATE TABLE metric (
    job TEXT NOT NULL REFERENCES job (id) ON DELETE CASCADE,
    committed INTEGER NOT NULL,
    info BLOB NOT NULL
);
CREATE INDEX metric_of_job ON metric (job, committed);
CREATE TABLE progress (
    job TEXT PRIMARY KEY REFERENCES job (id) ON DELETE CASCADE,
    record TEXT NOT NULL        -- JSON: the last progress of a bounded job
)
"""

_PAGE = threshold(1000, 2)

MESSAGES_PER_JOB = 10_000
"""After this number only warnings and errors of a job are kept, and twice as many of them."""


@dataclass(frozen=True, slots=True)
class JobRecord:
    """A job.

    Attributes:
        id: unique.
        name: for people.
        state: the current one.
        changed: since when, µs since 1970.
        options: the submitted pipeline options, in their stored form.
        files: the staged files as JSON; None if staging has not ended.
    """

    id: str
    name: str
    state: JobState
    changed: int
    options: bytes
    files: str | None


@dataclass(frozen=True, slots=True)
class StateChanged:
    """A job changed its state, at some µs since 1970; `seq` orders all events of all jobs."""

    seq: int
    state: JobState
    at: int


@dataclass(frozen=True, slots=True)
class MessageLogged:
    """A job logged a message; see `StateChanged`."""

    seq: int
    level: Level
    text: str
    at: int


JobEvent = StateChanged | MessageLogged


@dataclass(frozen=True, slots=True)
class Metrics:
    """Serialized MonitoringInfos."""

    attempted: tuple[bytes, ...]
    committed: tuple[bytes, ...]


class Registry:
    """Opens or creates the registry; one process may have it open.

    A commit survives the death of the process. SQLite's WAL with `synchronous=NORMAL` may lose the newest commits in a
    power failure, but the file stays consistent.

    Args:
        path: the SQLite file. Its folder is created, readable only for its owner (pipelines and options may contain
            secrets).

    Raises:
        SetupError: another server has it open, or it is not a registry of this version.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._version = 0  # grows with every write; `wait` compares it
        try:
            make_folder(path.parent)
            check_ours(path.parent)
            with contextlib.suppress(FileExistsError):
                os.close(new_file(path))
            check_ours(path)
            make_private(path)
            self._db = sqlite3.connect(path, timeout=0, isolation_level=None, check_same_thread=False)
        except (OSError, sqlite3.Error) as e:
            raise SetupError(f"cannot open the job registry {path}: {e}", "choose another folder") from e
        try:
            self._open()
        except sqlite3.Error as e:
            self._db.close()
            if "locked" in str(e):
                raise SetupError(
                    f"the job registry {path} is in use by another server",
                    "stop that one, or give this one another folder with --folder",
                ) from e
            raise SetupError(f"{path} is not a job registry: {e}", "choose another folder") from e
        except BaseException:
            self._db.close()
            raise

    def _open(self) -> None:
        # SUBTLE: the exclusive mode must come before WAL. The first write takes the lock. It prevents that a second
        # server declares this server's running jobs dead.
        self._db.execute("PRAGMA locking_mode=EXCLUSIVE")
        self._db.execute("PRAGMA journal_mode=WAL")
        self._db.execute("PRAGMA synchronous=NORMAL")
        self._db.execute("PRAGMA foreign_keys=ON")
        with self._transaction():
            (found,) = self._db.execute("PRAGMA user_version").fetchone()
            if found not in (0, VERSION):
                raise SetupError(
                    f"the job registry {self._path} has version {found}, not {VERSION}", "choose another folder"
                )
            if not found:
                for statement in _SCHEMA.split(";\n"):
                    self._db.execute(statement)
            self._db.execute(f"PRAGMA user_version={VERSION}")

    def close(self) -> None:
        """Close the file. Afterwards only `close` may be called."""
        with self._lock:
            self._db.close()
            self.wake()

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        with self._lock:
            self._db.execute("BEGIN IMMEDIATE")
            try:
                yield
            except BaseException:
                self._db.execute("ROLLBACK")
                raise
            self._db.execute("COMMIT")
            self.wake()

    def add(self, id: str, name: str, pipeline: bytes, options: bytes, files: str | None, at: int) -> None:
        """Add a job in state STOPPED."""
        with self._transaction():
            self._db.execute(
                "INSERT INTO job (id, name, pipeline, options, files, state, changed) VALUES (?, ?, ?, ?, ?, ?, ?)",
                (id, name, pipeline, options, files, JobState.STOPPED, at),
            )
            self._db.execute("INSERT INTO event (job, state, at) VALUES (?, ?, ?)", (id, JobState.STOPPED, at))

    def job(self, id: str) -> JobRecord:
        """Return one job.

        Raises:
            JobNotFoundError: there is no such job.
        """
        for record in self._records("WHERE id = ?", (id,)):
            return record
        raise JobNotFoundError(f"there is no job '{id}'", "list the jobs: arcbeam jobs")

    def jobs(self) -> list[JobRecord]:
        """Return all jobs, oldest first."""
        return self._records("ORDER BY number", ())

    def _records(self, which: str, arguments: tuple[str, ...]) -> list[JobRecord]:
        with self._lock:
            rows = self._db.execute(f"SELECT id, name, state, changed, options, files FROM job {which}", arguments)
            return [JobRecord(r[0], r[1], JobState(r[2]), r[3], r[4], r[5]) for r in rows.fetchall()]

    def pipeline(self, id: str) -> bytes:
        """Return the pipeline of a job, as it was added.

        Raises:
            JobNotFoundError: there is no such job.
        """
        self.job(id)
        with self._lock:
            found: bytes = self._db.execute("SELECT pipeline FROM job WHERE id = ?", (id,)).fetchone()[0]
            return found

    def errors(self, of: str = "") -> dict[str, str]:
        """Return the last error of each job that failed or was cancelled, by id.

        Args:
            of: the id of one job; "": all jobs.
        """
        with self._lock:
            rows = self._db.execute(
                "SELECT id, (SELECT text FROM event WHERE event.job = job.id AND level = ? ORDER BY seq DESC LIMIT 1) "
                f"FROM job WHERE state IN ('{JobState.FAILED}', '{JobState.CANCELLED}') AND (? = '' OR id = ?)",
                (int(Level.ERROR), of, of),
            ).fetchall()
        return {id: text for id, text in rows if text}

    def started(self, id: str) -> int:
        """Return since when a job ran first, in microseconds since 1970; 0 if it never did."""
        with self._lock:
            (at,) = self._db.execute(
                "SELECT MIN(at) FROM event WHERE job = ? AND state = ?", (id, str(JobState.RUNNING))
            ).fetchone()
        return int(at or 0)

    def messages(self, id: str, limit: int) -> list[MessageLogged]:
        """Return the last messages of a job, oldest first."""
        with self._lock:
            rows = self._db.execute(
                "SELECT seq, level, text, at FROM event WHERE job = ? AND level IS NOT NULL ORDER BY seq DESC LIMIT ?",
                (id, limit),
            ).fetchall()
        return [MessageLogged(seq, Level(level), text, at) for seq, level, text, at in reversed(rows)]

    def set_progress(self, id: str, record: str) -> None:
        """Replace the last progress of a bounded job."""
        with self._transaction():
            self._db.execute("INSERT OR REPLACE INTO progress (job, record) VALUES (?, ?)", (id, record))

    def progress(self, id: str) -> str:
        """Return the last progress of a bounded job; "" if there is none."""
        with self._lock:
            found = self._db.execute("SELECT record FROM progress WHERE job = ?", (id,)).fetchone()
        return "" if found is None else str(found[0])

    def set_files(self, id: str, files: str) -> None:
        """Record the staged files."""
        with self._transaction():
            self._db.execute("UPDATE job SET files = ? WHERE id = ?", (files, id))

    def transition(self, id: str, to: JobState, allowed: Iterable[JobState], at: int) -> bool:
        """Give a job a new state if its present one is among `allowed`.

        Returns:
            Whether the state was changed.

        Raises:
            JobNotFoundError: there is no such job.
        """
        with self._transaction():
            if self.job(id).state not in set(allowed):
                return False
            self._db.execute("UPDATE job SET state = ?, changed = ? WHERE id = ?", (to, at, id))
            self._db.execute("INSERT INTO event (job, state, at) VALUES (?, ?, ?)", (id, to, at))
            return True

    def log(self, id: str, level: Level, text: str, at: int) -> bool:
        """Add a message to a job that has not ended.

        Returns:
            Whether the message was added: after the end it is dropped.
        """
        with self._transaction():
            if self.job(id).state.terminal:
                return False
            self._db.execute(
                "INSERT INTO event (job, level, text, at) VALUES (?, ?, ?, ?)",
                (id, int(level), texts.fit(text, sys.maxsize), at),
            )
            return True

    def events(self, id: str, after: int, states_only: bool = False) -> list[JobEvent]:
        """Return the next events of a job, in order; in several calls if there are many.

        Args:
            id: of the job.
            after: `seq` of the last event seen; 0: from the beginning.
            states_only: omit messages.
        """
        only = "AND state IS NOT NULL " if states_only else ""
        with self._lock:
            rows = self._db.execute(
                f"SELECT seq, state, level, text, at FROM event WHERE job = ? AND seq > ? {only}ORDER BY seq LIMIT ?",
                (id, after, _PAGE),
            ).fetchall()
        return [
            StateChanged(seq, JobState(state), at) if state is not None else MessageLogged(seq, Level(level), text, at)
            for seq, state, level, text, at in rows
        ]

    def set_metrics(self, id: str, attempted: Sequence[bytes], committed: Sequence[bytes]) -> None:
        """Replace the metrics of a job."""
        rows = [(id, 0, info) for info in attempted] + [(id, 1, info) for info in committed]
        with self._transaction():
            self._db.execute("DELETE FROM metric WHERE job = ?", (id,))
            self._db.executemany("INSERT INTO metric (job, committed, info) VALUES (?, ?, ?)", rows)

    def metrics(self, id: str) -> Metrics:
        """Return the metrics of a job; empty if it has reported none.

        Raises:
            JobNotFoundError: there is no such job.
        """
        self.job(id)
        with self._lock:
            rows = self._db.execute("SELECT committed, info FROM metric WHERE job = ? ORDER BY rowid", (id,)).fetchall()
        return Metrics(tuple(r[1] for r in rows if not r[0]), tuple(r[1] for r in rows if r[0]))

    def forget(self, keep: int, prepared_before: int) -> list[str]:
        """Delete the oldest jobs beyond a number, if they ended, or were prepared before a time and never started.

        A suspended job is neither: it has state to resume.

        Returns:
            The deleted ids.
        """
        ended = ", ".join(f"'{state}'" for state in sorted(TERMINAL))
        with self._transaction():
            rows = self._db.execute(
                "SELECT id FROM job WHERE number NOT IN (SELECT number FROM job ORDER BY number DESC LIMIT ?) "
                f"AND (state IN ({ended}) OR (state = '{JobState.STOPPED}' AND changed < ? AND NOT EXISTS "
                f"(SELECT 1 FROM event WHERE event.job = job.id AND event.state = '{JobState.STARTING}')))",
                (keep, prepared_before),
            ).fetchall()
            self._db.executemany("DELETE FROM job WHERE id = ?", rows)
        return [row[0] for row in rows]

    def version(self) -> int:
        """Return a number that grows with every write."""
        with self._lock:
            return self._version

    def wait(self, version: int, seconds: float) -> None:
        """Return when the registry's version differs from `version`, or after some seconds."""
        with self._changed:
            self._changed.wait_for(lambda: self._version != version, seconds)

    def wake(self) -> None:
        """Make every `wait` return."""
        with self._changed:
            self._version += 1
            self._changed.notify_all()


class RecordedEvents:
    """The `JobEvents` of one job: writes all events to the registry.

    Args:
        registry: of all jobs.
        move: changes a job's state, if that is allowed.
        now: returns µs since 1970.
        id: of the job.
    """

    def __init__(
        self, registry: Registry, move: Callable[[str, JobState], bool], now: Callable[[], int], id: str
    ) -> None:
        self._registry, self._move, self._now, self._id = registry, move, now, id
        self._counts = {False: 0, True: 0}
        self._lock = threading.Lock()

    def running(self) -> None:
        """The job runs."""
        self._safely(lambda: self._move(self._id, JobState.RUNNING))

    def turned(self, state: JobState) -> None:
        """The job is in another state."""
        self._safely(lambda: self._move(self._id, state))

    def message(self, level: Level, text: str) -> None:
        """Something that people should know."""
        warns = level >= Level.WARNING
        with self._lock:
            # Separate counts: a micro-batch message a minute fills the limit in some weeks.
            self._counts[warns] += 1
            count = self._counts[warns]
        if count > MESSAGES_PER_JOB * (2 if warns else 1):
            if warns or count != MESSAGES_PER_JOB + 1:
                return
            level, text = Level.WARNING, f"more than {MESSAGES_PER_JOB} messages: only warnings and errors follow"
        self._safely(lambda: self._registry.log(self._id, level, text, self._now()))

    def metrics(self, attempted: Sequence[bytes], committed: Sequence[bytes]) -> None:
        """The metrics so far."""
        self._safely(lambda: self._registry.set_metrics(self._id, attempted, committed))

    def progress(self, record: Mapping[str, Any]) -> None:
        """The progress of a bounded job so far."""
        self._safely(lambda: self._registry.set_progress(self._id, json.dumps(record)))

    def _safely(self, write: Callable[[], Any]) -> None:
        try:
            write()
        except (ArcbeamError, sqlite3.Error):
            _LOG.exception("an event of %s could not be recorded", self._id)
