"""Other users of a host can read no file of a job, and no file or command line contains a secret."""

from __future__ import annotations

import re
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import grpc
import pytest
from apache_beam.portability.api import beam_job_api_pb2 as job_pb
from click.testing import CliRunner

from arcbeam.cli import main
from arcbeam.errors import InvalidPipelineError
from arcbeam.options import completed
from arcbeam.secrets import variable
from tests.golden import check_message
from tests.jobs.fakes import connected
from tests.jobs.test_serving_streams import windows
from tests.jobs.test_sigterm import _CLI, Driver
from tests.notes import noted
from tests.privacy import planted
from tests.privacy.planted import SECRET, VARIABLE
from tests.spark.streaming.fed import feed
from tests.store.backends import s3_server

pytestmark = pytest.mark.contract("OPS-06", "STORE-11")

_PROGRAM = "from tests.privacy.planted import main; main()"
_OURS = ("tmp/arcbeam-*", "state", "home/.arcbeam", "server")
"""Files that arcbeam creates. Part files are the user's; the rest of the temporary folder is Spark's."""


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder for all files that the processes of a test write."""
    for name, variables in (("tmp", ("TMPDIR", "SPARK_LOCAL_DIRS")), ("home", ("HOME",))):
        (tmp_path / name).mkdir()
        for each in variables:
            monkeypatch.setenv(each, str(tmp_path / name))
    (tmp_path / "tmp").chmod(0o1777)
    (tmp_path / "out").mkdir()
    monkeypatch.setenv(VARIABLE, SECRET)
    return tmp_path


@contextmanager
def running(place: Path, *arguments: str, until: Callable[[], bool]) -> Iterator[Driver]:
    """Run a program, wait for a condition, and check its command lines and files then and at the end."""
    with Driver(place, *arguments, code=_PROGRAM) as driver:
        driver.until(until)
        assert [line for line in planted.command_lines(driver.process.pid) if SECRET in line] == []
        assert len(planted.command_lines(driver.process.pid)) > 2, "the JVM and its workers are missing"
        look(place)
        yield driver
    look(place)


def look(place: Path) -> None:
    # Spark's own files have Spark's modes, in a folder that is private.
    assert [each for each in planted.readable(place, *_OURS) if not re.search(r"/arcbeam-\d+/spark/", each)] == []
    assert planted.holding(place) == []


@pytest.mark.long
def test_suspended_job_shows_no_secret_and_no_file(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    feed(place / "source", 15)
    streaming = (
        "streaming",
        str(place),
        "--streaming",
        f"--checkpoint_dir={place / 'state'}",
        "--spark_master=local[2]",
    )
    with running(place, *streaming, until=lambda: len(noted(place / "out")) == 1) as driver:
        assert list((place / "tmp").glob("arcbeam-*/jobs/*/plan")), "no files to check"
        driver.process.send_signal(signal.SIGTERM)
        assert driver.process.wait(300) == 143, driver.output
    assert list(place.glob("tmp/arcbeam-*/copies/*/*")), "no copies of files for the resumed job"
    monkeypatch.delenv(VARIABLE)
    refused = CliRunner().invoke(main.main, ["resume", str(place / "state")])
    assert refused.exit_code == 1
    check_message("resume-without-secrets", refused.stderr)
    feed(place / "source", 20, end=True)
    for name in ("s3_secret_access_key", "spark_conf:spark.planted.password", "spark_conf:spark.planted.url"):
        monkeypatch.setenv(variable(name), SECRET)
    with Driver(place, "resume", str(place / "state"), code=_CLI) as driver:
        assert driver.process.wait(300) == 0, driver.output
    look(place)
    assert sorted(noted(place / "out")) == [list(range(10)), list(range(10, 20))]
    left = [
        path for kind in ("jobs/*", "cache/*", "copies/*/*", "work/*") for path in place.glob(f"tmp/arcbeam-*/{kind}")
    ]
    assert [path.name for path in left if not path.name.startswith("scratch-")] == []


@pytest.mark.long
def test_batch_job_shows_no_secret_and_no_file(place: Path) -> None:
    with running(place, "bounded", str(place), until=lambda: bool(noted(place / "out"))) as driver:
        assert list((place / "tmp").glob("arcbeam-*/jobs/*/side")), "no files to check"
        (place / "gate").touch()
        assert driver.process.wait(300) == 0, driver.output
    left = [path for path in place.glob("tmp/arcbeam-*/*/*") if not path.name.startswith("scratch-")]
    # Java removes Spark's files when it ends, which is after the driver.
    assert [path.name for path in left if path.parent.name != "spark"] == []


@pytest.mark.long
def test_credentials_in_urls_are_in_no_file(place: Path) -> None:
    feed(place / "source", 15, end=True)
    with s3_server() as endpoint:
        url = (
            f"s3://id:SECRET@jobs/%s?region=us-east-1&endpoint_override={endpoint.removeprefix('http://')}&scheme=http"
        )
        places = (f"--checkpoint_dir={url % 'state'}", f"--arcbeam_temp={url % 'temp'}")
        with Driver(place, "streaming", str(place), "--streaming", *places, code=_PROGRAM) as driver:
            driver.until(lambda: len(noted(place / "out")) == 2)
            look(place)
            assert driver.process.wait(300) == 0, driver.output
        look(place)


@pytest.mark.long
def test_server_stores_no_secret(place: Path) -> None:
    feed(place / "source", 15, end=True)
    pipeline = windows(place / "source", place / "panes")
    serve = ("serve", "--port=0", f"--folder={place / 'server'}", "--", "--spark_master=local[2]")
    with Driver(place, *serve, code=_CLI) as driver:
        driver.until(lambda: "serving Beam's Job API on " in driver.output)
        endpoint = driver.output.partition("Job API on ")[2].split()[0]
        with connected(grpc.insecure_channel(endpoint)) as client:
            id = client.run(pipeline, streaming=True, shards=2, s3_secret_access_key=SECRET)
            driver.until(lambda: len(noted(place / "panes")) == 2)
            look(place)
            assert client.jobs.GetState(job_pb.GetJobStateRequest(job_id=id)).state
        driver.process.send_signal(signal.SIGTERM)
        driver.process.wait(300)
    look(place)


def test_resume_takes_secrets_from_options_or_environment() -> None:
    stored = {"shards": 3, "spark_conf": ["spark.a=1"], "arcbeam_temp": "s3://bucket/a"}
    names = ("s3_secret_access_key", "spark_conf:spark.x.password", "arcbeam_temp", "unknown_token")
    with pytest.raises(InvalidPipelineError) as raised:
        completed(stored, names, {}, {})
    check_message("secrets-missing", str(raised.value))
    environ = {
        "ARCBEAM_SECRET_S3_SECRET_ACCESS_KEY": "a",
        "ARCBEAM_SECRET_SPARK_CONF_SPARK_X_PASSWORD": "b",
        "ARCBEAM_SECRET_ARCBEAM_TEMP": "s3://K:S@bucket/a",
    }
    wanted = {
        "shards": 3,
        "s3_secret_access_key": "a",
        "spark_conf": ["spark.a=1", "spark.x.password=b"],
        "arcbeam_temp": "s3://K:S@bucket/a",
    }
    assert completed(stored, names, {}, environ) == wanted
    given = {
        "s3_secret_access_key": "a",
        "spark_conf": ["spark.x.password=b"],
        "arcbeam_temp": "s3://K:S@bucket/a",
    }
    assert completed(stored, names, given, {}) == wanted
    assert completed(stored, ("arcbeam_temp",), {}, {"AWS_ACCESS_KEY_ID": "K"}) == stored
    with pytest.raises(InvalidPipelineError):  # obstore reads no profile
        completed(stored, ("arcbeam_temp",), {}, {"AWS_PROFILE": "jobs"})
