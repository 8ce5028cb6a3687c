"""The page's server: its thread, and its port."""

from __future__ import annotations

import http.cookiejar
import re
import shutil
import signal
import ssl
import stat
import tempfile
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from typing_extensions import override

from arcbeam.cli.main import main
from arcbeam.errors import InvalidPipelineError, SetupError
from arcbeam.options import ArcbeamOptions
from arcbeam.page.access.owntoken import own_token
from arcbeam.page.serving import PageServer, PageSettings
from arcbeam.page.sources import Listed, Source
from arcbeam.store.blobs.folder import FolderBlobs
from tests.jobs.test_server import self_signed
from tests.jobs.test_sigterm import _CLI, Driver
from tests.page.test_app import job  # noqa: F401  # a fixture

pytestmark = pytest.mark.contract("PAGE-02")


class Nothing(Source):
    @override
    def jobs(self) -> Iterator[Listed]:
        yield from ()

    @override
    def job(self, id: str) -> Listed | None:
        return None


def browser(jar: http.cookiejar.CookieJar | None = None, *handlers: Any) -> urllib.request.OpenerDirector:
    return urllib.request.build_opener(urllib.request.HTTPCookieProcessor(jar), *handlers)


def code_of(address: str, opener: urllib.request.OpenerDirector | None = None) -> int:
    try:
        with (opener or browser()).open(address, timeout=10) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as refused:
        return refused.code


def test_page_without_a_token_is_for_its_user_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with PageServer(Nothing(), PageSettings()) as server:
        port = server.port
        assert [code_of(server.address), code_of(f"{server.address}metrics")] == [401, 401]
        assert code_of(server.login) == 200
        (file,) = tmp_path.rglob("*.token")
        assert server.login == f"{server.address}?token={file.read_text().strip()}"
        assert [stat.S_IMODE(path.stat().st_mode) for path in (file, file.parent, file.parents[1])] == [
            0o600,
            0o700,
            0o700,
        ]
    assert list(tmp_path.rglob("*.token")) == [], "the system chooses another port the next time"
    logins = []
    for _ in range(2):
        with PageServer(Nothing(), PageSettings(port)) as server:
            logins.append(server.login)
    assert logins[0] == logins[1], "browsers stay logged in"
    with PageServer(Nothing(), PageSettings(insecure=True)) as server:
        assert (server.login, code_of(server.address)) == (server.address, 200)
    file.unlink()
    file.symlink_to("/etc/hostname")
    assert own_token(port) not in logins[0]
    assert not file.is_symlink()


@pytest.mark.contract("PAGE-01")
def test_missing_folder_hides_no_other_job(job: FolderBlobs, tmp_path: Path) -> None:  # noqa: F811
    here, missing = str(job), str(tmp_path / "missing")
    with Driver(tmp_path, "page", "--port=0", missing, here, code=_CLI) as process:
        process.until(lambda: "the page is at " in process.output)
        assert f"there is no folder '{missing}'" in process.output
        address = process.output.partition("the page is at ")[2].split()[0]
        opener = browser()
        found = re.findall(r"/job/\w+", opener.open(address, timeout=10).read().decode())
        assert len(set(found)) == 2
        codes = [code_of(address.partition("?")[0].rstrip("/") + path, opener) for path in set(found)]
        assert sorted(codes) == [200, 503], "the job in the missing folder cannot be shown"
        shutil.copytree(here, missing)
        process.until(lambda: "cannot be read" not in opener.open(address, timeout=10).read().decode())


def test_serves_on_loopback_and_takes_no_signals() -> None:
    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    with PageServer(Nothing(), PageSettings()) as server:
        assert server.address.startswith("http://127.0.0.1:")
        with browser().open(server.login, timeout=10) as answer:
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
    opener = browser(jar, urllib.request.HTTPSHandler(context=trust))
    settings = PageSettings(host="0.0.0.0", token="secret", certificate=certificate, key=key)
    with PageServer(Nothing(), settings) as server:
        assert server.address.startswith("https://")
        address = f"https://localhost:{server.port}/"
        with pytest.raises(urllib.error.HTTPError, match="401"):
            opener.open(address, timeout=10)
        with opener.open(f"{address}?token=secret", timeout=10) as answer:
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
        (["/nowhere", "/nothing"], "there is no folder '/nowhere'"),
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
