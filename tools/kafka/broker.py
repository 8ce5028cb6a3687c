"""Kafka brokers for tests, demos and benchmarks: processes on this machine, without docker.

    with Broker(folder) as broker:
        print(broker.address)

A second one can join: `Broker(other_folder, joins=broker)`.

To try something by hand, with topics of four partitions, until Ctrl-C:

    python -m tools.kafka.broker FOLDER [TOPIC ...]

The jars (44 MB) come from Maven Central on first use. They are kept in the user's cache folder (`XDG_CACHE_HOME`), and
all copies of the source share them. `missing()` says what a machine lacks to run a broker.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Final

VERSION: Final = "4.3.1"
_POM: Final = f"""<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>arcbeam</groupId><artifactId>broker</artifactId><version>1</version>
  <dependencies><dependency>
    <groupId>org.apache.kafka</groupId><artifactId>kafka_2.13</artifactId><version>{VERSION}</version>
  </dependency></dependencies>
</project>
"""
_CLUSTER: Final = "arcbeam-tests-00000000"
_STARTS_SECONDS: Final = 90.0


def missing() -> str:
    """Return what this machine lacks to run a broker; "" if nothing."""
    lacks = [program for program in ("java", "mvn") if shutil.which(program) is None]
    if "java" in lacks:
        return "a Kafka broker requires Java 17"
    if lacks and not _lib().is_dir():
        return "a Kafka broker requires Maven (mvn), which downloads its jars"
    try:
        import confluent_kafka  # noqa: F401
    except ImportError:
        return "Kafka requires the package confluent-kafka (the extra `kafka`)"
    return ""


def _lib() -> Path:
    cache = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(cache).expanduser() / "arcbeam" / f"kafka-{VERSION}" / "lib"


def jars() -> Path:
    """Return the folder of the broker's jars; download them if it does not exist."""
    lib = _lib()
    lib.parent.mkdir(parents=True, exist_ok=True)
    with open(lib.parent / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not lib.is_dir():
            (lib.parent / "pom.xml").write_text(_POM, encoding="utf-8")
            new = lib.parent / "new"
            shutil.rmtree(new, ignore_errors=True)
            goal = ["dependency:copy-dependencies", "-DincludeScope=runtime", f"-DoutputDirectory={new}"]
            subprocess.run(["mvn", "-q", "-B", *goal], cwd=lib.parent, check=True)
            new.rename(lib)
    return lib


class Broker:
    """A broker in KRaft mode; a context manager. The first one of a cluster is also its controller.

    Args:
        folder: for its log and data; it must not have a broker's data yet.
        password: of the user "me", who may connect to `secured` with it.
        joins: the first broker of a cluster, which this one joins; it is started before this one, and ends after it.
        heap_mib: the memory of its Java heap. A topic of 1,000 partitions needs about 1,000.
        properties: further properties of the broker, which replace ours.

    Attributes:
        id: its number in the cluster: 1, or 2 if it joins.
        address: host and port, as `bootstrap.servers`.
        secured: the same for those who have a password (SASL_PLAINTEXT, PLAIN).
        controller: host and port of the cluster's controller.
    """

    def __init__(
        self, folder: Path, password: str = "", joins: Broker | None = None, heap_mib: int = 256, **properties: str
    ) -> None:
        self._folder, self._heap_mib = folder, heap_mib
        self.id = 1 if joins is None else 2
        ports = _free_ports(3)
        self.address, self.secured = f"127.0.0.1:{ports[0]}", f"127.0.0.1:{ports[2]}"
        self.controller = f"127.0.0.1:{ports[1]}" if joins is None else joins.controller
        listeners = f"PLAINTEXT://{self.address},SASL_PLAINTEXT://{self.secured}"
        login = "org.apache.kafka.common.security.plain.PlainLoginModule required"
        self._process: subprocess.Popen[bytes] | None = None
        once = dict.fromkeys(
            (
                "offsets.topic.replication.factor",
                "offsets.topic.num.partitions",
                "transaction.state.log.replication.factor",
                "transaction.state.log.min.isr",
                "transaction.state.log.num.partitions",
                "share.coordinator.state.topic.replication.factor",
                "share.coordinator.state.topic.min.isr",
            ),
            "1",
        )
        self._properties = {
            "process.roles": "broker,controller" if joins is None else "broker",
            "node.id": str(self.id),
            "controller.quorum.bootstrap.servers": self.controller,
            "listeners": listeners + (f",CONTROLLER://{self.controller}" if joins is None else ""),
            "advertised.listeners": listeners,
            "controller.listener.names": "CONTROLLER",
            "listener.security.protocol.map": (
                "PLAINTEXT:PLAINTEXT,SASL_PLAINTEXT:SASL_PLAINTEXT,CONTROLLER:PLAINTEXT"
            ),
            "sasl.enabled.mechanisms": "PLAIN",
            "listener.name.sasl_plaintext.plain.sasl.jaas.config": f'{login} user_me="{password}";',
            "log.dirs": str(folder / "data"),
            "auto.create.topics.enable": "false",
            "group.initial.rebalance.delay.ms": "0",
            # Else it removes what a test writes with the times of an old replay, at a moment of its own.
            "log.retention.ms": "-1",
            **once,
            **properties,
        }

    def __enter__(self) -> Broker:
        self._folder.mkdir(parents=True, exist_ok=True)
        text = "".join(f"{name}={value}\n" for name, value in self._properties.items())
        (self._folder / "server.properties").write_text(text, encoding="utf-8")
        how = "--standalone" if self.id == 1 else "--no-initial-controllers"
        self._java("kafka.tools.StorageTool", "format", how, "-t", _CLUSTER, "-c", "server.properties").wait()
        try:
            self.start()
        except BaseException:
            self.kill()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.kill()

    def start(self) -> None:
        """Start the process, and wait until it answers.

        Raises:
            RuntimeError: it has ended, or does not answer; the message has the end of its log.
        """
        self._process = self._java("kafka.Kafka", "server.properties")
        over = time.monotonic() + _STARTS_SECONDS
        while not self._answers():
            if self._process.poll() is not None or time.monotonic() > over:
                log = (self._folder / "broker.log").read_text(encoding="utf-8", errors="replace")
                ended = self._process.poll()
                raise RuntimeError(
                    f"the Kafka broker does not answer at {self.address} (exit code {ended}):\n{log[-3000:]}"
                )
            time.sleep(0.1)

    def kill(self) -> None:
        """Kill the process, as a host's failure would. Its data stay: `start` continues with them."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def pause(self, *, stop: bool = True) -> None:
        """Suspend the process, or let it continue."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP if stop else signal.SIGCONT)

    def admin(self) -> Any:
        """Return a client that administers it."""
        from confluent_kafka.admin import AdminClient

        return AdminClient({"bootstrap.servers": self.address, "log_level": 2})

    def topic(self, name: str, partitions: int = 1, brokers: Sequence[int] = (), **config: str) -> str:
        """Create a topic, and return its name.

        Args:
            name: its name.
            partitions: how many.
            brokers: ids of those that have each partition; the first one prefers to lead. (): one of the cluster's.
            config: of the topic, with "_" instead of ".".
        """
        from confluent_kafka.admin import NewTopic

        config = {key.replace("_", "."): value for key, value in config.items()}
        where = {"replica_assignment": [list(brokers)] * partitions} if brokers else {"replication_factor": 1}
        new = NewTopic(name, partitions, config=config, **where)
        admin = self.admin()  # its requests end with it
        for made in admin.create_topics([new], operation_timeout=30).values():
            made.result()
        return name

    def _java(self, *command: str) -> subprocess.Popen[bytes]:
        java = ["java", f"-Xmx{self._heap_mib}m", "-XX:TieredStopAtLevel=1", "-cp", f"{jars()}/*", *command]
        with open(self._folder / "broker.log", "ab") as log:
            return subprocess.Popen(java, cwd=self._folder, stdout=log, stderr=log, start_new_session=True)

    def _answers(self) -> bool:
        from confluent_kafka import KafkaException

        with contextlib.suppress(OSError, KafkaException):
            host, port = self.address.split(":")
            socket.create_connection((host, int(port)), timeout=1).close()
            return self.id in self.admin().list_topics(timeout=5).brokers
        return False


def _free_ports(count: int) -> list[int]:
    """Return ports that are free now.

    They are below those that Linux gives to outgoing connections: a broker that is started again needs the same ones.
    """
    found: list[int] = []
    for port in random.sample(range(20_000, 32_000), 200):
        with contextlib.suppress(OSError), socket.socket() as tried:
            tried.bind(("127.0.0.1", port))
            found.append(port)
        if len(found) == count:
            return found
    raise RuntimeError("no port is free")


def main(folder: str, *topics: str) -> None:
    """Run a broker until the process is interrupted.

    Args:
        folder: for its data; an empty or new one.
        topics: names of topics, which are created.
    """
    if lacks := missing():
        raise SystemExit(lacks)
    # Also if the process is killed politely: the broker has a session of its own.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with contextlib.suppress(KeyboardInterrupt), Broker(Path(folder).resolve()) as broker:
        for topic in topics:
            broker.topic(topic, 4)
        sys.stdout.write(f"bootstrap.servers={broker.address}\n")
        sys.stdout.flush()
        signal.pause()


if __name__ == "__main__":
    if len(sys.argv) < 2:
        raise SystemExit(f"{__doc__}")
    main(*sys.argv[1:])
