"""The daemon that Python workers are forked from."""

from __future__ import annotations

import importlib
import socket
import subprocess
import sys
import zipimport
from types import SimpleNamespace
from typing import Any

import pytest
from pyspark import daemon as sparks

from arcbeam.spark.session import daemon


def test_what_is_imported_before_forking_exists() -> None:
    for name in daemon._NEEDED:
        assert importlib.import_module(name).__name__ == name


def test_the_sdk_is_imported_before_workers_are_forked(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []
    monkeypatch.setattr(sparks, "manager", lambda: seen.append("manager"))
    monkeypatch.setattr(sparks, "worker", sparks.worker)
    settled = SimpleNamespace(freeze_imported_objects=lambda: seen.append("settled"))
    monkeypatch.setattr(importlib, "import_module", lambda name: seen.append(name) or settled)
    daemon.main()
    assert seen == [*daemon._NEEDED, "arcbeam.spark.tasks.task", "arcbeam.spark.tasks.openstages", "settled", "manager"]
    assert not any(isinstance(f, zipimport.zipimporter) for f in sys.path_importer_cache.values())
    assert sparks.worker is daemon.run_worker


@pytest.mark.parametrize("error", [BrokenPipeError, ConnectionResetError, EOFError])
def test_a_worker_that_spark_hangs_up_on_ends_quietly(monkeypatch: pytest.MonkeyPatch, error: type[Exception]) -> None:
    def worker(sock: Any, authenticated: bool) -> int:
        raise error

    monkeypatch.setattr(daemon, "_run_worker", worker)
    with socket.socket() as sock:
        assert daemon.run_worker(sock, True) == 1


def test_what_modules_hold_is_looked_at_no_more() -> None:
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
