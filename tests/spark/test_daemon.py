"""The daemon that forks Python workers."""

from __future__ import annotations

import gc
import socket
import subprocess
import sys
from typing import Any

import pytest

from arcbeam.spark import daemon


def test_sdk_is_imported_before_forking() -> None:
    program = (
        "import gc, sys, zipimport\n"
        "from pyspark import daemon as sparks\n"
        "from arcbeam.spark import daemon\n"
        "before, seen = set(sys.modules), []\n"
        "sparks.manager = lambda: seen.append(set(sys.modules))\n"
        "daemon.main()\n"
        "(there,) = seen\n"
        "needed = {'arcbeam.spark.tasks.task', 'arcbeam.harness.batch.batchstage', "
        "'arcbeam.spark.tasks.ending.teardown', 'apache_beam.runners.worker.bundle_processor'}\n"
        "assert needed | {'pyspark.worker'} <= there, needed - there\n"
        "assert not needed & before, 'an earlier import is not silenced'\n"
        "assert gc.get_freeze_count() and gc.isenabled()\n"
        "assert not any(isinstance(f, zipimport.zipimporter) for f in sys.path_importer_cache.values())\n"
        "assert sparks.worker is daemon.run_worker\n"
        "assert isinstance(sparks.gc, daemon.GarbageCollector)\n"
        "assert daemon.MODULE == daemon.__name__\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("error", [BrokenPipeError, ConnectionResetError, EOFError])
def test_disconnected_worker_ends_silently(monkeypatch: pytest.MonkeyPatch, error: type[Exception]) -> None:
    def worker(sock: Any, authenticated: bool) -> int:
        raise error

    monkeypatch.setattr(daemon, "_run_worker", worker)
    with socket.socket() as sock:
        assert daemon.run_worker(sock, True) == 1


@pytest.mark.parametrize(
    ("reuse", "code", "removed"), [("1", 0, False), ("1", 255, True), ("", 0, True)], ids=["used again", "ends", "once"]
)
def test_worker_keeps_its_folders_until_it_ends(
    monkeypatch: pytest.MonkeyPatch, reuse: str, code: int, removed: bool
) -> None:
    removals: list[None] = []
    monkeypatch.setenv("SPARK_REUSE_WORKER", reuse)
    monkeypatch.setattr(daemon, "_run_worker", lambda sock, authenticated: code)
    monkeypatch.setattr(daemon, "remove_all", lambda: removals.append(None))
    with socket.socket() as sock:
        assert daemon.run_worker(sock, True) == code
    assert bool(removals) is removed


def test_module_objects_are_not_garbage_collected() -> None:
    program = (
        "import gc, arcbeam.harness.batch.batchstage, arcbeam.spark.tasks.openstages as open_stages\n"
        "open_stages.freeze_imported_objects()\n"
        "frozen = gc.get_freeze_count()\n"
        "assert frozen > 100_000 > len(gc.get_objects())\n"
        "mine = [[] for _ in range(1000)]\n"
        "open_stages.freeze_imported_objects()\n"
        "assert gc.get_freeze_count() < frozen + 1000\n"
        "open_stages.look_at_imports()\n"
        "assert not gc.get_freeze_count()\n"
        "open_stages.freeze_imported_objects()\n"
        "assert gc.get_freeze_count() >= frozen\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, capture_output=True)


def test_garbage_is_collected_in_a_small_share_of_time() -> None:
    now, collected = 100.0, []

    def clock() -> float:
        return now

    def note(phase: str, about: dict[str, int]) -> None:
        nonlocal now
        now += 0.003  # at the beginning and at the end
        collected.append(now)

    of = daemon.GarbageCollector(clock)
    gc.freeze()  # The objects of this process, which take long to look at, are not what is counted here.
    gc.callbacks.append(note)
    try:
        for _ in range(1_000):
            of.collect()
            now += 0.01
    finally:
        gc.callbacks.remove(note)
        gc.unfreeze()
    assert collected[0] == 100.003
    assert 0.02 < len(collected) * 0.003 / (now - 100.0) < 0.04
