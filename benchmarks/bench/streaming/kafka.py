"""Jobs that read and write Kafka, and their rates and latencies. Must not know what runs when."""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import apache_beam as beam
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.runners.runner import PipelineState
from apache_beam.transforms.window import FixedWindows
from confluent_kafka import Consumer, Producer, TopicPartition

from arcbeam import ArcbeamRunner
from arcbeam.io.kafka import ReadFromKafka, WriteToKafka
from arcbeam.io.kafka.clients import Clients
from arcbeam.io.kafka.connection import ClientConnection
from arcbeam.io.kafka.partitions import Partition
from arcbeam.store.blobs.folder import FolderBlobs
from arcbeam.store.log.historyfile import history_in
from arcbeam.streaming.status.history import history_record
from bench.figures import Figure
from bench.peers import CORES
from bench.processor import Clock

if TYPE_CHECKING:
    from tools.kafka.broker import Broker

BYTES = 100
PARTITIONS = 4
KEYS = 100
LIVE_RATE = 1_000
WIDE, BUSY, WIDE_RATE = 1_000, 10, 100
"""Partitions of a topic, how many of them get records, and how many records a second these get."""
ONCE = 200
"""Partitions of a topic that is read once."""
LEAST_READ, LEAST_WRITTEN = 150.0, 100.0
"""Thousands of records a second."""
MOST_SECONDS, MOST_SECONDS_P99, MOST_WIDE_SECONDS, MOST_NEW_SECONDS = 0.2, 0.5, 2.0, 0.1
_PATIENCE = 300.0


class Bench:
    """Measures with a broker.

    Args:
        broker: the broker.
        folder: for jobs.
        clock: of the rates. Processor time, also the broker's, counts as if all cores did nothing else.
    """

    def __init__(self, broker: Broker, folder: Path, clock: Clock) -> None:
        self._seconds: Clock = clock if clock is time.perf_counter else lambda: clock() / CORES
        self._broker, self._folder, self._jobs = broker, folder, 0
        self._config = {"bootstrap.servers": broker.address}

    def read(self, count: int) -> Figure:
        """Return how fast records are read into a windowed count, until their offsets are committed."""
        source = self._topic()
        self._fill(source, count)

        def build(pipeline: Any) -> None:
            _ = (
                pipeline
                | ReadFromKafka({**self._config, "group.id": source}, [source])
                | beam.Map(lambda pair: (pair[0], 1)).with_output_types(tuple[bytes, int])
                | beam.WindowInto(FixedWindows(10))
                | beam.combiners.Count.PerKey()
            )

        return self._rate("reading into a windowed count", build, source, count, LEAST_READ)

    def written(self, count: int) -> Figure:
        """Return how fast records are written exactly once, with what reading them costs."""
        source, target = self._topic(), self._topic()
        self._fill(source, count)
        at = self._counting(target)

        def build(pipeline: Any) -> None:
            self._copy(pipeline, source, target)

        return self._rate("reading, and writing exactly once", build, "", count, LEAST_WRITTEN, at)

    def latency(self, seconds: float) -> list[Figure]:
        """Return the time from produce to committed output, at `LIVE_RATE` records a second, and its parts."""
        waited, last, parts = self._latencies(seconds, PARTITIONS, PARTITIONS, LIVE_RATE)
        cuts = statistics.quantiles(waited, n=100)
        return [
            Figure(f"produce to committed output, {LIVE_RATE:,} records/s, p50", cuts[49], "s", MOST_SECONDS),
            Figure("the same, p99", cuts[98], "s", MOST_SECONDS_P99),
            Figure("of which the transaction, p50", statistics.median(last), "s"),
            *(Figure(f"a micro-batch of it: {what}, mean", value, "s") for what, value in parts.items()),
        ]

    def wide(self, seconds: float) -> list[Figure]:
        """Return the same for a topic most of whose partitions are idle."""
        waited, *_ = self._latencies(seconds, WIDE, BUSY, WIDE_RATE)
        cuts = statistics.quantiles(waited, n=100)
        what = f"the same, {WIDE:,} partitions of which {WIDE - BUSY} are idle, {WIDE_RATE} records/s"
        return [Figure(f"{what}, p50", cuts[49], "s", MOST_WIDE_SECONDS), Figure("the same, p99", cuts[98], "s")]

    def new_readers(self) -> list[Figure]:
        """Return how long a process takes to read the first record of a partition that it has not read before."""
        source = self._topic(ONCE)
        self._fill(source, ONCE, ONCE)
        clients = Clients(ClientConnection(self._config), committed=True, group="", commits=False)
        cluster, readers = clients.cluster(), clients.readers()
        id, count = cluster.topics([source])[source]
        took: list[float] = []
        for number in range(count):
            began = time.perf_counter()
            reader = readers.reader(Partition(source, id, number))
            if not reader.fetch(0, 1, 10.0).records:
                raise RuntimeError(f"nothing came of {source}[{number}]")
            took.append(time.perf_counter() - began)
            reader.rest()
            readers.begin()
        readers.close()
        cluster.close()
        return [
            Figure(
                "first record of a partition not read before, p50", statistics.median(took[1:]), "s", MOST_NEW_SECONDS
            ),
            Figure("the same, of the first partition of a process", took[0], "s"),
        ]

    def once(self) -> Figure:
        """Return how long a job takes that reads a topic of many partitions once, a record of each."""
        source = self._topic(ONCE)
        self._fill(source, ONCE, ONCE)
        began = time.perf_counter()
        options = PipelineOptions([f"--shards={CORES}"])
        with beam.Pipeline(runner=ArcbeamRunner(), options=options) as pipeline:
            _ = pipeline | ReadFromKafka(self._config, [source], stop="latest") | beam.combiners.Count.Globally()
        return Figure(f"a topic of {ONCE} partitions, read once", time.perf_counter() - began, "s")

    def _latencies(
        self, seconds: float, partitions: int, busy: int, rate: int
    ) -> tuple[list[float], list[float], dict[str, float]]:
        """Run a copy of a topic for twice as long; the first half does not count.

        Returns:
            The seconds from produce to committed output; those of their transactions; and the mean seconds of a
            micro-batch by part.
        """
        source, target = self._topic(partitions), self._topic()
        result = self._run(lambda pipeline: self._copy(pipeline, source, target))
        reader = self._reader(target)
        producer = Producer({**self._config, "linger.ms": 5})
        waited: list[float] = []
        last: list[float] = []
        sent, began, warm = 0, time.time(), seconds
        while (now := time.time()) - began < warm + seconds:
            while sent < (now - began) * rate:
                number = sent % busy * (partitions // busy)
                producer.produce(source, (b"%f" % time.time()).ljust(BYTES), b"%d" % (sent % KEYS), number)
                sent += 1
            producer.poll(0)
            for message in reader.consume(10_000, 0.005):
                at = float(message.value())
                if at > began + warm:
                    waited.append(time.time() - at)
                    # The record's own time is when its transaction has produced it.
                    last.append(time.time() - message.timestamp()[1] / 1e3)
        self._end(result)
        return waited, last, self._parts()

    def _parts(self) -> dict[str, float]:
        """Return the mean seconds of a micro-batch of the last job, by part."""
        record = history_record(history_in(FolderBlobs(self._folder / f"job-{self._jobs}", sync=False)))
        points = [point["job"] for point in record["rings"][0]["points"]]
        count = sum(point.get("micro_batches") or 0 for point in points)
        times = [point["time"] for point in record["rings"][0]["points"]]
        # Records come at any time, so they wait for half of the time between two micro-batches.
        wait = (max(times) - min(times)) / 1e6 / max(1, count) / 2
        named = {"seconds": "all but the commit", "plan": "planning", "user": "user code", "spark": "Spark"}
        named["commit"] = "the commit"
        return {"waiting until it begins": wait} | {
            what: sum(point.get(name) or 0 for point in points) / max(1, count)
            for name, what in named.items()
            if any(name in point for point in points)
        }

    def _copy(self, pipeline: Any, source: str, target: str) -> None:
        _ = (
            pipeline
            | ReadFromKafka({**self._config, "group.id": source}, [source])
            | WriteToKafka(self._config, target, staging=str(self._folder / "staging"), shards=CORES)
        )

    def _topic(self, partitions: int = PARTITIONS) -> str:
        self._jobs += 1
        return self._broker.topic(f"topic-{self._jobs}", partitions)

    def _fill(self, topic: str, count: int, partitions: int = PARTITIONS) -> None:
        producer = Producer({**self._config, "linger.ms": 20, "queue.buffering.max.messages": 1_000_000})
        for n in range(count):
            while True:
                try:
                    producer.produce(topic, b"%0100d" % n, b"%d" % (n % KEYS), n % partitions)
                    break
                except BufferError:
                    producer.poll(0.1)
        producer.flush(120)

    def _reader(self, topic: str) -> Any:
        reader = Consumer({**self._config, "group.id": "bench", "isolation.level": "read_committed"})
        reader.assign([TopicPartition(topic, number, 0) for number in range(PARTITIONS)])
        return reader

    def _counting(self, topic: str) -> Callable[[], int]:
        """Return a function that returns how many records readers of a topic could read by now, approximately."""
        reader = self._reader(topic)

        def at() -> int:
            places = [TopicPartition(topic, number) for number in range(PARTITIONS)]
            return sum(reader.get_watermark_offsets(place, 10)[1] for place in places)

        return at

    def _group(self, topic: str) -> Callable[[], int]:
        """Return a function that returns how many records of a topic its group has committed."""
        client = Consumer({**self._config, "group.id": topic})
        places = [TopicPartition(topic, number) for number in range(PARTITIONS)]
        return lambda: sum(max(0, place.offset) for place in client.committed(places, 10))

    def _rate(
        self,
        what: str,
        build: Callable[[Any], None],
        group: str,
        count: int,
        target: float,
        at: Callable[[], int] | None = None,
    ) -> Figure:
        at = at or self._group(group)
        result = self._run(build)
        over = time.monotonic() + _PATIENCE
        first, since = 0, 0.0
        while (done := at()) < count:
            now = self._seconds()
            if done and not first:
                first, since = done, now
            if time.monotonic() > over or result.state != PipelineState.RUNNING:
                result.cancel()
                result.wait_until_finish()
                raise RuntimeError(f"{what}: {done:,} of {count:,} records; the job is {result.state}")
            time.sleep(0.05)
        rate = (count - first) / max(1e-9, self._seconds() - since) / 1e3
        self._end(result)
        print(f"{what}: {count:,}, the first {first:,} not counted: {rate:.0f} k/s", file=sys.stderr, flush=True)
        return Figure(what, rate, "k/s", target)

    def _run(self, build: Callable[[Any], None]) -> Any:
        self._jobs += 1
        options = ["--streaming", f"--shards={CORES}", f"--checkpoint_dir={self._folder / f'job-{self._jobs}'}"]
        pipeline = beam.Pipeline(runner=ArcbeamRunner(), options=PipelineOptions(options))
        build(pipeline)
        return pipeline.run()

    def _end(self, result: Any) -> None:
        result.cancel()
        result.wait_until_finish()
