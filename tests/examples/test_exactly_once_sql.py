"""Rows into a database, each once, also if the job is cancelled and resumed; leftover staged rows are removed."""

from __future__ import annotations

import contextlib
import os
import shutil
import sqlite3
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from examples.exactly_once_sql import Confirm, Database, main

FILES = {"a.txt": "to be\nor not to be", "b.txt": "that is\nthe question\n"}
ROWS = [("a.txt", 0, "to be"), ("a.txt", 1, "or not to be"), ("b.txt", 0, "that is"), ("b.txt", 1, "the question")]


def _run(tmp_path: Path, url: str, *options: str) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    for name, text in FILES.items():
        (folder / name).write_text(text)
    common = ["--runner=arcbeam.ArcbeamRunner", f"--folder={folder}", f"--output={url}", "--seconds=2"]
    assert main([*common, *options]) == 0


@pytest.mark.contract("END-01", "END-06")
@pytest.mark.usefixtures("spark")
def test_each_line_is_one_row(tmp_path: Path) -> None:
    url = str(tmp_path / "words.db")
    _run(tmp_path, url, f"--checkpoint_dir={tmp_path / 'state'}")
    with contextlib.closing(sqlite3.connect(url)) as database:
        assert sorted(database.execute("SELECT * FROM words")) == ROWS
        assert list(database.execute("SELECT * FROM staged")) == []


def test_lot_is_moved_once(tmp_path: Path) -> None:
    url = str(tmp_path / "words.db")
    database = Database(url)
    with database.transaction() as execute:
        execute("CREATE TABLE words (file TEXT, line INTEGER, text TEXT)")
        execute("CREATE TABLE staged (job TEXT, micro_batch INTEGER, lot TEXT, file TEXT, line INTEGER, text TEXT)")
        for micro_batch in (1, 2, 3):
            execute(
                "INSERT INTO staged VALUES ('job', ?, ?, 'a', ?, 'text')",
                micro_batch,
                f"lot {micro_batch}",
                micro_batch,
            )
    confirm = Confirm(url)
    confirm.setup()
    confirm.publish(["lot 2"])
    confirm.publish(["lot 2"])
    confirm.sweep("job", 2)
    confirm.sweep("another", 3)
    confirm.teardown()
    with database.transaction() as execute:
        assert execute("SELECT line FROM words") == [(2,)]
        assert execute("SELECT lot FROM staged") == [("lot 3",)]
    database.close()


@pytest.fixture
def postgresql(tmp_path: Path) -> Iterator[str]:
    """Start a separate server; yield its URL."""
    initdb = shutil.which("initdb") or next(
        (str(path) for path in Path("/usr/lib/postgresql").glob("*/bin/initdb")), None
    )
    if initdb is None:
        pytest.skip("PostgreSQL is not installed")
    pytest.importorskip("psycopg2")
    as_who = ["setpriv", "--reuid=postgres", "--regid=postgres", "--clear-groups"] if os.geteuid() == 0 else []
    data, control = tmp_path / "data", str(Path(initdb).resolve().with_name("pg_ctl"))
    for path in (tmp_path, *tmp_path.parents[:2]):
        path.chmod(0o755)
    data.mkdir()
    if as_who:
        shutil.chown(data, "postgres", "postgres")
    run = {"check": True, "capture_output": True, "cwd": data}
    subprocess.run([*as_who, initdb, "-D", str(data), "-U", "words", "-A", "trust"], **run)  # type: ignore[call-overload]
    options = f"-c listen_addresses= -k {data}"
    start = [*as_who, control, "-D", str(data), "-o", options, "-l", str(data / "log"), "-w", "start"]
    subprocess.run(start, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd=data)
    try:
        yield f"postgresql://words@/postgres?host={data}"
    finally:
        subprocess.run([*as_who, control, "-D", str(data), "-m", "immediate", "stop"], **run)  # type: ignore[call-overload]


@pytest.mark.long
@pytest.mark.contract("END-06")
@pytest.mark.usefixtures("spark")
def test_each_line_is_one_row_of_postgresql(tmp_path: Path, postgresql: str) -> None:
    _run(tmp_path, postgresql, f"--checkpoint_dir={tmp_path / 'state'}")
    database = Database(postgresql)
    with database.transaction() as execute:
        assert sorted(execute("SELECT file, line, text FROM words")) == ROWS
        assert execute("SELECT * FROM staged") == []
    database.close()
