"""Rows into a database, exactly once, also across kill -9: a user-defined sink that takes part in commits.

    arcbeam run examples/exactly_once_sql.py [--folder path] [--output path.db | postgresql://…] [--checkpoint_dir …]

Lines of new files in a folder become rows of a table `words`. `Stage` writes the rows of a bundle to a table that
readers do not use, and outputs the name of the lot. `Confirm` is called after that output is committed, and moves the
lot in one transaction of the database. If the lot was moved before, nothing is left to move. What uncommitted attempts
have staged is removed later.

The database is one that Python's `sqlite3` opens, or PostgreSQL (`pip install psycopg2-binary`).
"""

from __future__ import annotations

import argparse
import contextlib
import sqlite3
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import apache_beam as beam
from apache_beam.io import fileio
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.transforms.window import GlobalWindows
from apache_beam.utils.timestamp import MAX_TIMESTAMP, Timestamp

from arcbeam.io import Publish, Publisher, attempt

TABLES = (
    "CREATE TABLE IF NOT EXISTS words (file TEXT, line INTEGER, text TEXT)",
    "CREATE TABLE IF NOT EXISTS staged (job TEXT, micro_batch INTEGER, lot TEXT, file TEXT, line INTEGER, text TEXT)",
)
Row = tuple[str, int, str]


class Database:
    """A database, with its own placeholder for parameters."""

    def __init__(self, url: str) -> None:
        self._parameter = "?"
        if url.startswith("postgresql:"):
            import psycopg2

            self._parameter = "%s"
            self._connection: Any = psycopg2.connect(url)
        else:
            # A writer waits this long while another one writes.
            # A bundle, publish and teardown may run in different threads, one at a time.
            self._connection = sqlite3.connect(url, timeout=60, isolation_level="IMMEDIATE", check_same_thread=False)

    @contextlib.contextmanager
    def transaction(self) -> Iterator[Any]:
        """Do everything in the block or nothing; yield a function that executes a statement with `?`."""
        cursor = self._connection.cursor()

        def execute(sql: str, *values: Any) -> list[Any]:
            cursor.execute(sql.replace("?", self._parameter), values)
            return [] if cursor.description is None else cursor.fetchall()

        try:
            yield execute
            self._connection.commit()
        except BaseException:
            self._connection.rollback()
            raise

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()


class Stage(beam.DoFn):  # type: ignore[misc]  # Beam is untyped
    """Writes the rows of a bundle to a table that readers do not use, and outputs the name of the lot."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._lots = 0

    def setup(self) -> None:
        """Open one connection for all bundles."""
        self._database = Database(self._url)

    def start_bundle(self) -> None:
        """Begin a lot."""
        self._rows: list[Row] = []

    def process(self, row: Row) -> None:
        """Add a row to the lot."""
        self._rows.append(row)

    def finish_bundle(self) -> Iterator[Any]:
        """Write the lot to the database and commit it there: another process may publish it."""
        if not self._rows:
            return
        by = attempt()
        self._lots += 1
        lot = f"{by.job}.{by.token}.{self._lots}"
        with self._database.transaction() as execute:
            for row in self._rows:
                execute("INSERT INTO staged VALUES (?, ?, ?, ?, ?, ?)", by.job, by.micro_batch, lot, *row)
        yield GlobalWindows.windowed_value(lot)

    def teardown(self) -> None:
        """Close the connection."""
        self._database.close()


class Confirm(Publisher):
    """Moves lots to the table for readers."""

    def __init__(self, url: str) -> None:
        self._url = url

    def setup(self) -> None:
        """Open one connection for all calls."""
        self._database = Database(self._url)

    def publish(self, lots: Sequence[str]) -> None:
        """See `Publisher`: a lot that was moved is not in the table any more."""
        for lot in lots:
            with self._database.transaction() as execute:
                # What is deleted is moved: a concurrent call for the same lot deletes nothing.
                for row in execute("DELETE FROM staged WHERE lot = ? RETURNING file, line, text", lot):
                    execute("INSERT INTO words VALUES (?, ?, ?)", *row)

    def sweep(self, job: str, micro_batch: int) -> None:
        """See `Publisher`."""
        with self._database.transaction() as execute:
            execute("DELETE FROM staged WHERE job = ? AND micro_batch <= ?", job, micro_batch)

    def teardown(self) -> None:
        """Close the connection."""
        self._database.close()


def rows(file: fileio.ReadableFile) -> Iterator[Row]:
    """Yield the lines of a file, with their origin."""
    name = file.metadata.path.rpartition("/")[2]
    for number, line in enumerate(file.read_utf8().splitlines()):
        yield name, number, line


def main(arguments: list[str] | None = None) -> int:
    """Watch a folder until the job is stopped. Return the exit status."""
    parser = argparse.ArgumentParser(description="Write lines of files to a table of a database, each exactly once.")
    parser.add_argument("--folder", type=Path, default=Path(__file__).parent, help="folder to watch")
    parser.add_argument("--output", default="build/exactly_once.db", help="SQLite file, or postgresql://…")
    parser.add_argument("--every", type=float, default=1.0, help="seconds between two checks for files")
    parser.add_argument("--seconds", type=float, default=5.0, help="how long to watch; 0: until stopped")
    known, beam_arguments = parser.parse_known_args(arguments)
    url = known.output
    if not url.startswith("postgresql:"):
        Path(url).parent.mkdir(parents=True, exist_ok=True)
        url = str(Path(url).resolve())
    database = Database(url)
    with database.transaction() as execute:
        for table in TABLES:
            execute(table)
    start = Timestamp.now()
    stop = start + known.seconds if known.seconds else MAX_TIMESTAMP
    with beam.Pipeline(options=PipelineOptions(beam_arguments)) as pipeline:
        (
            pipeline
            | "Watch"
            >> fileio.MatchContinuously(
                f"{known.folder.resolve()}/*.*", known.every, start_timestamp=start, stop_timestamp=stop
            )
            | "Open" >> fileio.ReadMatches()
            | "Rows" >> beam.FlatMap(rows)
            | "Stage" >> beam.ParDo(Stage(url))
            | "Confirm" >> Publish(Confirm(url))
        )
    with database.transaction() as execute:
        ((lines, files),) = execute("SELECT COUNT(*), COUNT(DISTINCT file) FROM words")
    print(f"{lines:,} lines of {files} files in {known.output}")
    database.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
