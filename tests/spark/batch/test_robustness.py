"""Workers that die, jobs that are cancelled, and many jobs one after another."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import apache_beam as beam
import pytest
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.testing.util import assert_that, equal_to

from arcbeam import ArcbeamRunner
from arcbeam.errors import WorkerLostError
from tests.golden import check_message
from tests.spark.batch.distributed import DISTRIBUTED
from tests.waiting import until


def _pipeline(*arguments: str) -> beam.Pipeline:
    return beam.Pipeline(runner=ArcbeamRunner(), options=PipelineOptions([DISTRIBUTED, *arguments]))


def _dies(element: int, attempts: str) -> int:
    with open(attempts, "a") as f:
        f.write("x")
    os.kill(os.getpid(), signal.SIGKILL)
    return element


@pytest.mark.contract("BAT-04")
@pytest.mark.usefixtures("spark")
def test_worker_that_always_dies_fails_the_job(tmp_path: Path) -> None:
    attempts = tmp_path / "attempts"
    with pytest.raises(WorkerLostError, match=r"Map\(_dies\)") as caught, _pipeline() as p:
        _ = p | beam.Create([1]) | beam.Map(_dies, str(attempts))
    assert attempts.read_text() == "xxxx"
    assert "executor" in str(caught.value)
    assert "Map(_dies)" in str(caught.value)
    assert "spark.executor.memoryOverhead" in caught.value.remedy
    assert len(str(caught.value)) < 2000


def _dies_once(element: int, marker: str) -> tuple[int, int]:
    if element == 777 and not os.path.exists(marker):
        Path(marker).write_text("")
        os.kill(os.getpid(), signal.SIGKILL)
    return element % 10, element


@pytest.mark.contract("BAT-04")
@pytest.mark.usefixtures("spark")
def test_worker_that_dies_once_is_replaced(tmp_path: Path) -> None:
    marker = tmp_path / "died"
    with _pipeline() as p:
        keyed = p | beam.Create(range(1000)) | beam.Map(_dies_once, str(marker))
        sums = keyed | beam.GroupByKey() | beam.MapTuple(lambda k, v: (k, sum(v)))
        assert_that(sums, equal_to([(k, sum(range(k, 1000, 10))) for k in range(10)]))
    assert marker.exists()


class Numbers(beam.DoFn):
    """Yields many keyed numbers from one; records its process."""

    def __init__(self, folder: str, each: int) -> None:
        self._folder, self._each = folder, each

    def process(self, element: int) -> Iterator[tuple[int, int]]:
        Path(self._folder, f"making-{os.getpid()}-{element}").write_text("")
        for i in range(self._each):
            yield i % 1000, element


class Reader(beam.DoFn):
    """Sums a group; records its process."""

    def __init__(self, folder: str) -> None:
        self._folder = folder

    def process(self, element: Any) -> Iterator[tuple[int, int]]:
        Path(self._folder, f"reading-{os.getpid()}").touch()
        key, values = element
        yield key, sum(values)


@pytest.mark.contract("BAT-04")
@pytest.mark.usefixtures("spark")
@pytest.mark.parametrize("side", ["making", "reading"])
def test_kill_9_of_a_worker_in_a_shuffle(tmp_path: Path, side: str) -> None:
    def kill() -> None:
        found = until(lambda: list(tmp_path.glob(f"{side}-*")))
        os.kill(int(found[0].name.split("-")[1]), signal.SIGKILL)
        (tmp_path / "killed").touch()

    killer = threading.Thread(target=kill)
    each, parts = 100_000, 8
    with _pipeline("--shards=4", "--group_memory_mb=1") as p:
        pairs = p | beam.Create(range(parts)) | beam.Reshuffle() | beam.ParDo(Numbers(str(tmp_path), each))
        sums = pairs | beam.GroupByKey() | beam.ParDo(Reader(str(tmp_path)))
        assert_that(sums, equal_to([(k, each // 1000 * sum(range(parts))) for k in range(1000)]))
        killer.start()
    killer.join()
    assert (tmp_path / "killed").exists()


def _sleeps(element: int, marker: str) -> None:
    Path(marker).write_text("")
    time.sleep(300)


@pytest.mark.contract("API-06")
@pytest.mark.usefixtures("spark")
def test_cancel_ends_a_long_job_in_seconds(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    p = _pipeline()
    _ = p | beam.Create([1]) | beam.Map(_sleeps, str(tmp_path / "started"))
    result = p.run()
    until((tmp_path / "started").exists)
    assert result.wait_until_finish(50) == "RUNNING"
    started = time.monotonic()
    assert result.cancel() == "CANCELLED"
    assert time.monotonic() - started < 20
    assert result.wait_until_finish() == "CANCELLED"
    (reported,) = [record.getMessage() for record in caplog.records if "cancelled;" in record.getMessage()]
    check_message("cancelled-batch", reported, job=result.plan.name)
    with _pipeline() as p:  # the session must still work
        assert_that(p | beam.Create([1]), equal_to([1]))


INTERRUPTED = """
import os, sys, time
from pathlib import Path
import apache_beam as beam

class Slow(beam.DoFn):
    def process(self, element):
        Path(sys_argv, "started").write_text("")
        time.sleep(300)

sys_argv = sys.argv[1]
with beam.Pipeline(argv=["--runner=arcbeam.ArcbeamRunner", "--spark_master=local[1,4]",
                         f"--arcbeam_temp={sys_argv}/temp"]) as p:
    p | beam.Create([1]) | beam.ParDo(Slow())
"""


@pytest.mark.long
@pytest.mark.contract("API-06", "END-04")
def test_ctrl_c_cancels_and_exits_non_zero(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(INTERRUPTED)
    # In its own process group, as in a terminal: Ctrl-C reaches the whole group.
    process = subprocess.Popen(
        [sys.executable, str(script), str(tmp_path)], stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        until((tmp_path / "started").exists)
        os.killpg(process.pid, signal.SIGINT)
        _, errors = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode not in (0, None)
    assert "KeyboardInterrupt" in errors
    assert not list(tmp_path.glob("temp/*")), "the job's temporary folder must be removed"


@pytest.mark.usefixtures("spark")
def test_next_driver_removes_killed_drivers_temporary_files(tmp_path: Path) -> None:
    killed = (
        "import os, signal, sys\n"
        "from arcbeam.store.jobtemp.claim import Claim\n"
        "from arcbeam.store.jobtemp.location import JobLocation\n"
        "location = JobLocation.under(sys.argv[1], 'killed')\n"
        "claim = Claim(location)\n"
        "location.put_bytes('side/1/x', b'x')\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    assert subprocess.run([sys.executable, "-c", killed, str(tmp_path)], check=False).returncode == -signal.SIGKILL
    assert (tmp_path / "killed" / "side" / "1" / "x").exists()
    with _pipeline(f"--arcbeam_temp={tmp_path}", "--keep_job_temp") as p:
        _ = p | beam.Create([1]) | beam.Map(lambda x, side: x, beam.pvalue.AsList(p | "Side" >> beam.Create([2])))
    (kept,) = tmp_path.iterdir()
    assert kept.name != "killed"
    with _pipeline(f"--arcbeam_temp={tmp_path}") as p:
        _ = p | beam.Create([1])
    assert list(tmp_path.iterdir()) == [kept]


def _figures(workers: dict[int, int]) -> dict[str, float]:
    """Return the figures that must not grow."""
    gc.collect()
    return {
        "threads": threading.active_count(),
        "files": len(os.listdir("/proc/self/fd")),
        "temp": sum(1 for _ in Path(tempfile.gettempdir()).rglob("*")),
        "driver_mb": _resident_mb(os.getpid()),
        "workers": len(workers),
        "worker_mb": max(workers.values(), default=0) / 1024,
    }


def _resident_mb(pid: int) -> float:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20


def _worker_memory(element: int) -> tuple[int, int, int]:
    return element, os.getpid(), int(_resident_mb(os.getpid()) * 1024)


def _note(element: tuple[int, int, int], folder: str) -> None:
    Path(folder, str(element[1])).write_text(str(element[2]))


def _many(count: int, folder: Path) -> list[dict[str, float]]:
    """Run `count` small pipelines; return the figures after each."""
    figures = []
    for _ in range(count):
        for old in folder.iterdir():
            old.unlink()
        with _pipeline() as p:
            grouped = p | beam.Create([(k, 1) for k in range(10)]) | beam.GroupByKey()
            _ = grouped | beam.MapTuple(lambda k, v: k) | beam.Map(_worker_memory) | beam.Map(_note, str(folder))
        figures.append(_figures({int(p.name): int(p.read_text()) for p in folder.iterdir()}))
    return figures


def _level(figures: list[dict[str, float]], warm: int) -> None:
    """Check that nothing grows between the first `warm` pipelines and the last."""
    first, last = figures[warm - 1], figures[-1]
    sys.stdout.write(f"after {warm}: {first}\nafter {len(figures)}: {last}\n")
    for name, allowed in {"threads": 3, "files": 8, "temp": 1, "driver_mb": 30, "worker_mb": 25}.items():
        assert last[name] - first[name] <= allowed, f"{name} grows: {first[name]} -> {last[name]}"


@pytest.fixture
def notes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder for the workers' notes; the driver's temporary files are in another folder."""
    (tmp_path / "notes").mkdir()
    (tmp_path / "temp").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temp"))
    return tmp_path / "notes"


@pytest.mark.long
@pytest.mark.usefixtures("spark")
def test_15_pipelines_in_one_process_do_not_leak(notes: Path) -> None:
    _level(_many(15, notes), warm=5)


@pytest.mark.long
@pytest.mark.usefixtures("spark")
def test_100_pipelines_in_one_process_do_not_leak(notes: Path) -> None:
    _level(_many(100, notes), warm=20)
