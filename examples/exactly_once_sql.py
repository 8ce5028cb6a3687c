"""Rows into a database, each exactly once, whatever is killed: a sink of one's own that takes part in commits.

    arcbeam run examples/exactly_once_sql.py [--folder path] [--output path.db | postgresql://…] [--checkpoint_dir …]

Lines of the files that come into a folder become rows of a table `words`. `Stage` writes the rows of a bundle into a
table that nobody reads, and puts out the name of the lot. `Confirm` is called when that is committed, and moves the lot
in one transaction of the database: if it has been moved already, there is nothing left to move. What was staged by
attempts that were not committed is swept away.

A database that Python's `sqlite3` opens, or one of PostgreSQL (`pip install psycopg2-binary`).
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
    """A database, with its own words for parameters."""

    def __init__(self, url: str) -> None:
        self._parameter = "?"
        if url.startswith("postgresql:"):
            import psycopg2

            self._parameter = "%s"
            self._connection: Any = psycopg2.connect(url)
        else:
            # Who comes while another writes waits for so long.
            # A bundle, publish and teardown may come in threads of their own, one at a time.
            self._connection = sqlite3.connect(url, timeout=60, isolation_level="IMMEDIATE", check_same_thread=False)

    @contextlib.contextmanager
    def transaction(self) -> Iterator[Any]:
        """All that is done in the block, or nothing; gives what executes statements written with `?`: rows, if any."""
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
        """It is not used again."""
        self._connection.close()


class Stage(beam.DoFn):  # type: ignore[misc]  # Beam is untyped
    """Writes the rows of a bundle where nobody reads them, and puts out the name of the lot."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._lots = 0

    def setup(self) -> None:
        """One connection for all bundles."""
        self._database = Database(self._url)

    def start_bundle(self) -> None:
        """A lot begins."""
        self._rows: list[Row] = []

    def process(self, row: Row) -> None:
        """It goes with the others."""
        self._rows.append(row)

    def finish_bundle(self) -> Iterator[Any]:
        """The lot is in the database, and committed there: another process may be asked to confirm it."""
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
        """The connection is not used again."""
        self._database.close()


class Confirm(Publisher):
    """Moves lots to where they are read."""

    def __init__(self, url: str) -> None:
        self._url = url

    def setup(self) -> None:
        """One connection for all calls."""
        self._database = Database(self._url)

    def publish(self, lots: Sequence[str]) -> None:
        """See `Publisher`: a lot that was moved is not there any more."""
        for lot in lots:
            with self._database.transaction() as execute:
                # What is deleted is moved: who else is at the same lot deletes nothing.
                for row in execute("DELETE FROM staged WHERE lot = ? RETURNING file, line, text", lot):
                    execute("INSERT INTO words VALUES (?, ?, ?)", *row)

    def sweep(self, job: str, micro_batch: int) -> None:
        """See `Publisher`."""
        with self._database.transaction() as execute:
            execute("DELETE FROM staged WHERE job = ? AND micro_batch <= ?", job, micro_batch)

    def teardown(self) -> None:
        """The connection is not used again."""
        self._database.close()


def rows(file: fileio.ReadableFile) -> Iterator[Row]:
    """The lines of a file, with where they are from."""
    name = file.metadata.path.rpartition("/")[2]
    for number, line in enumerate(file.read_utf8().splitlines()):
        yield name, number, line


def main(arguments: list[str] | None = None) -> int:
    """Watches a folder until it is stopped. Returns the exit status."""
    parser = argparse.ArgumentParser(description="Lines of files into a table of a database, each exactly once.")
    parser.add_argument("--folder", type=Path, default=Path(__file__).parent, help="what is watched")
    parser.add_argument("--output", default="build/exactly_once.db", help="a file of SQLite, or postgresql://…")
    parser.add_argument("--every", type=float, default=1.0, help="seconds between two looks")
    parser.add_argument("--seconds", type=float, default=5.0, help="how long to watch; 0: until it is stopped")
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
