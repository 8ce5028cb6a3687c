"""New jobs on Spark that no broker answers, or none lets in: status, page and error say which broker, and why."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import apache_beam as beam
import pytest
from apache_beam.options.pipeline_options import PipelineOptions
from click.testing import CliRunner

from arcbeam import ArcbeamRunner
from arcbeam.cli import main
from arcbeam.errors import ArcbeamError
from arcbeam.io.kafka import ReadFromKafka
from arcbeam.page.sources import FolderSource
from arcbeam.store.blobs.folder import FolderBlobs
from tests.io.kafka.jobs.secured import from_file
from tests.page.test_app import client
from tests.waiting import until
from tools.kafka.broker import Broker

pytestmark = [pytest.mark.usefixtures("spark"), pytest.mark.long, pytest.mark.contract("KAFKA-01")]
REFUSED = "127.0.0.1:9"
WRONG = "wr0ng-k4fk4-p4ssw0rd"


def stream(folder: Path, config: dict[str, Any], **credentials: Any) -> Any:
    options = PipelineOptions(["--streaming", "--shards=2", f"--checkpoint_dir={folder / 'job'}"])
    pipeline = beam.Pipeline(runner=ArcbeamRunner(), options=options)
    _ = pipeline | ReadFromKafka(config, ["clicks"], **credentials) | beam.Map(len)
    return pipeline.run()


def test_wrong_port_is_in_status_and_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    result = stream(tmp_path, {"bootstrap.servers": REFUSED})
    wanted = f"{REFUSED}: Connect to ipv4#{REFUSED} failed: Connection refused"

    def status() -> str:
        return CliRunner().invoke(main.main, ["status", str(tmp_path / "job")]).output

    until(lambda: wanted in status(), status)
    page = client(FolderSource([FolderBlobs(tmp_path / "job", sync=False)]))
    (link,) = {each.split('"')[0] for each in page.get("/").text.split('href="/job/')[1:]}
    assert wanted in page.get(f"/job/{link}").text
    result.cancel()


def test_refused_password_names_broker_and_user(
    broker: Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    (tmp_path / "password").write_text(WRONG)
    config = {
        "bootstrap.servers": broker.secured,
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "PLAIN",
        "sasl.username": "me",
    }
    result = stream(tmp_path, config, credentials=partial(from_file, str(tmp_path / "password")))
    with pytest.raises(
        ArcbeamError, match=rf"no broker of {broker.secured} .*SASL authentication error.*\(user 'me'\)"
    ) as e:
        result.wait_until_finish()
    status = CliRunner().invoke(main.main, ["status", str(tmp_path / "job")]).output
    assert "SASL authentication error" in status
    assert WRONG not in f"{e.value}{status}{capfd.readouterr()}"
