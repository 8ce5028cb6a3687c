"""The page's server: its thread, and its port."""

from __future__ import annotations

import signal
import urllib.request
from collections.abc import Iterator

import pytest
from typing_extensions import override

from arcbeam.errors import SetupError
from arcbeam.page.app import app_of
from arcbeam.page.serving import PageServer
from arcbeam.page.sources import Listed, Source

pytestmark = pytest.mark.contract("PAGE-02")


class Nothing(Source):
    @override
    def jobs(self) -> Iterator[Listed]:
        yield from ()

    @override
    def job(self, id: str) -> Listed | None:
        return None


def test_serves_on_loopback_and_takes_no_signals() -> None:
    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    with PageServer(app_of(Nothing()), 0) as server:
        assert server.address.startswith("http://127.0.0.1:")
        with urllib.request.urlopen(server.address, timeout=10) as answer:
            assert answer.status == 200
        assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == before
        port = int(server.address.rstrip("/").rpartition(":")[2])
        with pytest.raises(SetupError):
            PageServer(app_of(Nothing()), port)
