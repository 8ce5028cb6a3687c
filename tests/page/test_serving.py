"""The page's server: its thread, and its port."""

from __future__ import annotations

import http.cookiejar
import signal
import ssl
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner
from typing_extensions import override

from arcbeam.cli.main import main
from arcbeam.errors import InvalidPipelineError, SetupError
from arcbeam.options import ArcbeamOptions
from arcbeam.page.serving import PageServer, PageSettings
from arcbeam.page.sources import Listed, Source
from tests.jobs.test_server import self_signed

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
    with PageServer(Nothing(), PageSettings()) as server:
        assert server.address.startswith("http://127.0.0.1:")
        with urllib.request.urlopen(server.address, timeout=10) as answer:
            assert answer.status == 200
        assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == before
        port = int(server.address.rstrip("/").rpartition(":")[2])
        with pytest.raises(SetupError):
            PageServer(Nothing(), PageSettings(port))


def test_other_machines_need_token_and_tls(tmp_path: Path) -> None:
    certificate, key = self_signed(tmp_path)
    for settings in (
        PageSettings(host="0.0.0.0"),
        PageSettings(host="0.0.0.0", token="t"),
        PageSettings(host="0.0.0.0", certificate=certificate, key=key),
    ):
        with pytest.raises(SetupError, match="missing"):
            PageServer(Nothing(), settings)
    with pytest.raises(SetupError, match="certificate"):
        PageServer(Nothing(), PageSettings(certificate=key, key=key))
    with pytest.raises(SetupError, match="both"):
        PageServer(Nothing(), PageSettings(certificate=certificate))


def test_tls_protects_page_and_cookie(tmp_path: Path) -> None:
    certificate, key = self_signed(tmp_path)
    trust = ssl.create_default_context(cafile=str(certificate))
    jar = http.cookiejar.CookieJar()
    browser = urllib.request.build_opener(
        urllib.request.HTTPSHandler(context=trust), urllib.request.HTTPCookieProcessor(jar)
    )
    settings = PageSettings(host="0.0.0.0", token="secret", certificate=certificate, key=key)
    with PageServer(Nothing(), settings) as server:
        assert server.address.startswith("https://")
        address = f"https://localhost:{server.port}/"
        with pytest.raises(urllib.error.HTTPError, match="401"):
            browser.open(address, timeout=10)
        with browser.open(f"{address}?token=secret", timeout=10) as answer:
            assert answer.status == 200
        (cookie,) = jar
        assert cookie.secure
        assert cookie.has_nonstandard_attr("HttpOnly")


@pytest.mark.parametrize(
    ("arguments", "refused"),
    [
        ([], "give the folder of a job, or the --endpoint"),
        (["--endpoint=localhost:1", "--host=0.0.0.0"], "missing: a token and TLS"),
        (["/nowhere"], "there is no folder"),
    ],
)
def test_command_refuses_what_it_cannot_show(arguments: list[str], refused: str) -> None:
    result = CliRunner().invoke(main, ["page", "--port=0", *arguments])
    assert result.exit_code != 0
    assert refused in result.output


def test_page_address_is_of_this_machine() -> None:
    assert ArcbeamOptions(["--page_address=8081"]).page_port == 8081
    assert ArcbeamOptions([]).page_port is None
    for wrong in ("0.0.0.0:8081", "page", "localhost:70000"):
        with pytest.raises(InvalidPipelineError, match=f"--page_address={wrong}"):
            ArcbeamOptions([f"--page_address={wrong}"]).check()
