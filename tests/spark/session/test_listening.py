"""By default, the sockets of a job, a server and their Spark session are reachable only from this machine."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from arcbeam.spark.session import listening
from arcbeam.spark.session.listening import on_loopback
from tests.golden import check_message
from tests.spark.session import listeners

pytestmark = pytest.mark.contract("OPS-05")

KEYS = ("spark.driver.host", "spark.driver.bindAddress", "spark.connect.grpc.binding.address")
UNIX = ("spark.python.unix.domain.socket.enabled", "spark.python.unix.domain.socket.dir")


@pytest.mark.parametrize("master", ["local", "local[2]", "local[*,4]", "local-cluster[2,1,1024]"])
def test_local_session_listens_on_loopback_with_authentication(master: str, tmp_path: Path) -> None:
    made = on_loopback(master, {}, {"SPARK_CONF_DIR": str(tmp_path)})
    assert [made.settings[key] for key in KEYS] == ["127.0.0.1"] * 3
    assert made.settings["spark.authenticate"] == "true"
    assert made.environ == {"SPARK_LOCAL_IP": "127.0.0.1"}


def test_local_cluster_gets_a_secret_each_time(tmp_path: Path) -> None:
    environ = {"SPARK_CONF_DIR": str(tmp_path)}
    one, other = (on_loopback("local-cluster[1,1,1024]", {}, environ).settings for _ in range(2))
    assert len(one["spark.authenticate.secret"]) == 64
    assert one["spark.authenticate.secret"] != other["spark.authenticate.secret"]
    assert "spark.authenticate.secret" not in on_loopback("local[2]", {}, environ).settings


@pytest.mark.parametrize("master", ["spark://host:7077", "yarn", "k8s://https://host", "localhost"])
def test_cluster_settings_are_unchanged(master: str) -> None:
    made = on_loopback(master, {}, {})
    assert made.settings == made.environ == {}


@pytest.mark.parametrize("key", [*KEYS, "spark.authenticate", *UNIX])
def test_setting_of_the_user_wins(key: str, tmp_path: Path) -> None:
    environ = {"SPARK_CONF_DIR": str(tmp_path)}
    assert key not in on_loopback("local", {key: "0.0.0.0"}, environ).settings
    submitted = {**environ, "PYSPARK_SUBMIT_ARGS": f"--conf {key}=0.0.0.0 pyspark-shell"}
    assert key not in on_loopback("local", {}, submitted).settings
    (tmp_path / "spark-defaults.conf").write_text(f"# {key}x\n {key}  0.0.0.0\n")
    assert key not in on_loopback("local", {}, environ).settings


@pytest.mark.parametrize("name", ["SPARK_LOCAL_IP", "SPARK_LOCAL_HOSTNAME"])
def test_address_in_the_environment_wins(name: str, tmp_path: Path) -> None:
    made = on_loopback("local", {}, {"SPARK_CONF_DIR": str(tmp_path), name: "192.0.2.1"})
    assert not made.settings.keys() & {*KEYS}
    assert made.environ == {}


def test_workers_are_reached_by_sockets_in_private_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    environ = {"SPARK_CONF_DIR": str(tmp_path)}
    for length, used in ((60, True), (61, False)):
        temporary = f"/tmp/{tmp_path.name[:5]}".ljust(length - len(f"/arcbeam-{os.getuid()}/sockets/12345678"), "x")
        monkeypatch.setattr(tempfile, "tempdir", temporary)
        Path(temporary).mkdir()
        try:
            found = on_loopback("local[2]", {}, environ).settings
            assert found.get("spark.python.unix.domain.socket.enabled") == ("true" if used else None), length
            if used:
                folder = Path(found["spark.python.unix.domain.socket.dir"])
                assert folder.is_relative_to(temporary)
                assert len(str(folder)) == 60
                assert folder.parent.stat().st_mode & 0o777 == 0o700
                assert Path(on_loopback("local[2]", {}, environ).settings[UNIX[1]]) != folder, "one for each session"
                assert folder.is_dir(), "the process of its session lives"
        finally:
            shutil.rmtree(temporary)


@pytest.mark.parametrize(
    ("address", "port", "outer"),
    [("127.8.0.1", 1, False), ("::1", 1, False), ("::ffff:127.0.0.1", 1, False), ("0.0.0.0", 1, True), ("::", 1, True)],
)
def test_addresses_reachable_from_outside(address: str, port: int, outer: bool) -> None:
    assert bool(listeners.outside({(address, port): "java"})) is outer


PIPELINES = '''
"""Runs pipelines, one of which lists the sockets that listen while it runs."""
import json
import os
import sys

import apache_beam as beam
from apache_beam.testing.test_stream import TestStream
from apache_beam.transforms.window import FixedWindows

from tests.spark.session import listeners

root, file = int(sys.argv[1]) or os.getpid(), sys.argv[2]

def look(mode):
    with open(file, "a") as out:
        found = [[*key, command] for key, command in listeners.listening(root).items()]
        out.write(json.dumps([mode, found]) + "\\n")

def run(mode, source, *options):
    with beam.Pipeline(argv=[*sys.argv[3:], *options]) as p:
        keyed = p | source | beam.WindowInto(FixedWindows(1)) | beam.WithKeys(0)
        keyed | beam.GroupByKey() | beam.Map(lambda _: look(mode))

run("batch", beam.Create([1, 2]))
run("streaming", TestStream().add_elements([1]).advance_watermark_to_infinity(), "--streaming")
'''

LOCAL = ["--runner=arcbeam.ArcbeamRunner", "--metrics_address=0", "--spark_conf=spark.ui.enabled=true"]
"""Options that open as many sockets as possible."""


def run(tmp_path: Path, *options: str, root: int = 0) -> dict[str, dict[tuple[str, int], str]]:
    """Return the sockets that were open while pipelines ran, by mode."""
    script, file = tmp_path / "pipelines.py", tmp_path / "found"
    script.write_text(PIPELINES)
    command = [sys.executable, str(script), str(root), str(file), *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr[-3000:]
    (tmp_path / "stderr").write_text(done.stderr)
    return found_in(tmp_path)


def found_in(folder: Path) -> dict[str, dict[tuple[str, int], str]]:
    lines = [json.loads(line) for line in (folder / "found").read_text().splitlines()]
    return {mode: {(host, port): command for host, port, command in found} for mode, found in lines}


def check(found: dict[str, dict[tuple[str, int], str]]) -> None:
    assert set(found) == {"batch", "streaming"}
    for mode, each in found.items():
        assert any("java" in command for command in each.values()), f"{mode}: the sockets of Spark are missing"
        assert listeners.outside(each) == [], mode


@pytest.fixture(scope="module")
def local(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a run on its own local session, with its files `found` and `stderr`."""
    folder = tmp_path_factory.mktemp("local")
    run(folder, *LOCAL, "--spark_master=local[2]")
    return folder


def test_local_job_opens_no_outside_socket(local: Path) -> None:
    found = found_in(local)
    check(found)
    # RPC, block manager, UI, gateway; and the driver process's metrics. Others have Unix domain sockets.
    for mode, each in found.items():
        java = [command for command in each.values() if "java" in command]
        assert len(java) >= 4, mode
        assert len(each) - len(java) >= 1, mode


@pytest.mark.contract("OPS-03")
def test_start_of_a_stream_is_logged_without_terminal(local: Path) -> None:
    reported = [line for line in (local / "stderr").read_text().splitlines() if line.startswith("arcbeam: ")]
    seconds, job, at = re.compile(r"\d+\.\d s"), re.compile(r"pipelines(?=:)"), re.compile(r"http://\S+")
    check_message("start-of-a-stream", "\n".join(reported), seconds=seconds, job=job, at=at)


@pytest.mark.long
@pytest.mark.parametrize("where", ["--spark_master=local-cluster[2,1,1024]", "--spark_remote=local[2]"])
def test_other_local_sessions_open_no_outside_socket(tmp_path: Path, where: str) -> None:
    check(run(tmp_path, *LOCAL, where))


@pytest.mark.long
def test_server_and_jobs_open_no_outside_socket(tmp_path: Path) -> None:
    with serving(tmp_path) as (endpoint, pid):
        options = ["--runner=PortableRunner", f"--job_endpoint={endpoint}"]
        check(run(tmp_path, *options, root=pid))


@pytest.mark.long
def test_user_can_open_sockets_to_outside(tmp_path: Path) -> None:
    found = run(tmp_path, *LOCAL, "--spark_master=local[2]", "--spark_conf=spark.driver.bindAddress=0.0.0.0")
    assert len(listeners.outside(found["batch"])) == 2


@contextmanager
def serving(tmp_path: Path) -> Iterator[tuple[str, int]]:
    """Run a job server in its own process; yield its address and its process id."""
    command = [str(Path(sys.executable).with_name("arcbeam")), "serve", "--port=0", f"--folder={tmp_path / 'server'}"]
    command += ["--", "--spark_master=local[2]"]
    with open(tmp_path / "log", "w") as log:
        server: Any = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True, env=dict(os.environ))
    try:
        reported = server.stdout.readline()
        address = re.search(r"[\w.]+:\d+", reported)
        assert address, (reported, (tmp_path / "log").read_text()[-3000:])
        yield address[0], server.pid
    finally:
        server.terminate()
        server.wait(120)


def test_sockets_of_dead_processes_are_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    program = (
        "from arcbeam.spark.session import listening\n"
        "listening._FOLDER_BYTES_MAX = 1_000\n"
        "print(listening._socket_folder())"
    )
    monkeypatch.setattr(listening, "_FOLDER_BYTES_MAX", 1_000)
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "TMPDIR": str(tmp_path)},
        capture_output=True,
        text=True,
        check=True,
    )
    left = Path(done.stdout.strip())
    assert left.is_dir()
    folder = listening._socket_folder()
    assert folder is not None
    assert [*folder.parent.iterdir()] == [folder]
