"""No file, log, command line or page of a job contains the passwords of its brokers."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
from click.testing import CliRunner

from arcbeam.cli import main
from arcbeam.page.sources import FolderSource
from arcbeam.store.blobs.folder import FolderBlobs
from tests.io.kafka.conftest import PASSWORD
from tests.io.kafka.jobs import secured
from tests.io.kafka.test_librdkafka import put
from tests.io.kafka.test_producing import seen
from tests.jobs.test_sigterm import Driver
from tests.page.test_app import client
from tests.privacy import planted
from tools.kafka.broker import Broker

_PROGRAM = "import sys; from tests.io.kafka.jobs.secured import main; main(*sys.argv[1:])"


@pytest.mark.long
@pytest.mark.contract("KAFKA-05")
def test_no_file_log_or_page_has_the_password(broker: Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place, file = tmp_path / "place", tmp_path / "password"
    for name, variables in (("tmp", ("TMPDIR", "SPARK_LOCAL_DIRS")), ("home", ("HOME",))):
        (place / name).mkdir(parents=True)
        for each in variables:
            monkeypatch.setenv(each, str(place / name))
    monkeypatch.setenv(secured.VARIABLE, PASSWORD)
    file.write_text(PASSWORD)
    source, target = broker.topic("secured-in"), broker.topic("secured-out")
    put(broker, source, range(50))
    given = [broker.secured, source, target, str(place), str(file)]
    options = [f"--checkpoint_dir={place / 'job'}", "--shards=2", "--spark_master=local[2]"]
    with Driver(place, *given, *options, code=_PROGRAM) as driver:
        driver.until(lambda: len(seen(broker, target)) == 50)
        assert [line for line in planted.command_lines(driver.process.pid) if PASSWORD in line] == []
        assert planted.holding(place, PASSWORD) == []
        page = client(FolderSource([FolderBlobs(place / "job", sync=False)]))
        (link,) = {each.split('"')[0] for each in page.get("/").text.split('href="/job/')[1:]}
        texts = [page.get(path).text for path in ("/", f"/job/{link}")]
        assert "ReadFromKafka" in texts[1]
        texts += [
            CliRunner().invoke(main.main, ["status", str(place / "job"), *more]).output for more in ([], ["--json"])
        ]
        for how in ([], ["--json"], [f"--svg={place / 'plan.svg'}"]):
            explained = CliRunner().invoke(main.main, ["explain", *how, secured.__file__, *given, *options])
            assert explained.exit_code == 0, explained.output
            texts.append(explained.output)
        texts.append((place / "plan.svg").read_text(encoding="utf-8"))
        assert ["ReadFromKafka" in text for text in (*texts[-4:-2], texts[-1])] == [True] * 3
        driver.process.send_signal(signal.SIGTERM)
        driver.process.wait(300)
        texts.append(driver.output)
    assert [text for text in texts if not text or PASSWORD in text] == []
    assert planted.holding(place, PASSWORD) == []
    assert list((place / "job").rglob("*")), "no files to check"
