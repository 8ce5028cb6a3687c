"""The daemon that Python workers are forked from."""

from __future__ import annotations

import importlib
import socket
from typing import Any

import pytest
from pyspark import daemon as sparks

from arcbeam.spark import daemon


def test_what_is_imported_before_forking_exists() -> None:
    for name in daemon._NEEDED:
        importlib.import_module(name)


def test_the_sdk_is_imported_before_workers_are_forked(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []
    monkeypatch.setattr(sparks, "manager", lambda: seen.append("manager"))
    monkeypatch.setattr(sparks, "worker", sparks.worker)
    monkeypatch.setattr(importlib, "import_module", seen.append)
    daemon.main()
    assert seen == ["arcbeam.spark.task", "arcbeam.harness.processor", "manager"]
    assert sparks.worker is daemon.run_worker


@pytest.mark.parametrize("error", [BrokenPipeError, ConnectionResetError, EOFError])
def test_a_worker_that_spark_hangs_up_on_ends_quietly(monkeypatch: pytest.MonkeyPatch, error: type[Exception]) -> None:
    def worker(sock: Any, authenticated: bool) -> int:
        raise error

    monkeypatch.setattr(daemon, "_run_worker", worker)
    with socket.socket() as sock:
        assert daemon.run_worker(sock, True) == 1
