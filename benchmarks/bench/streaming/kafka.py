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
from bench.figures import Figure
from bench.peers import CORES
from bench.processor import Clock

if TYPE_CHECKING:
    from tools.kafka.broker import Broker

BYTES = 100
PARTITIONS = 4
KEYS = 100
LIVE_RATE = 1_000
LEAST_READ, LEAST_WRITTEN = 150.0, 100.0
"""Thousands of records a second."""
MOST_SECONDS = 1.0
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
        """Return the time from produce to committed output, at `LIVE_RATE` records a second."""
        source, target = self._topic(), self._topic()
        result = self._run(lambda pipeline: self._copy(pipeline, source, target))
        reader = self._reader(target)
        producer = Producer({**self._config, "linger.ms": 5})
        waited: list[float] = []
        sent, began, warm = 0, time.time(), seconds / 2
        while (now := time.time()) - began < warm + seconds:
            while sent < (now - began) * LIVE_RATE:
                producer.produce(source, (b"%f" % time.time()).ljust(BYTES), b"%d" % (sent % KEYS))
                sent += 1
            producer.poll(0)
            for message in reader.consume(10_000, 0.005):
                at = float(message.value())
                if at > began + warm:
                    waited.append(time.time() - at)
        self._end(result)
        cuts = statistics.quantiles(waited, n=100)
        return [
            Figure(f"produce to committed output, {LIVE_RATE:,} records/s, p50", cuts[49], "s", MOST_SECONDS),
            Figure("the same, p99", cuts[98], "s"),
        ]

    def _copy(self, pipeline: Any, source: str, target: str) -> None:
        _ = (
            pipeline
            | ReadFromKafka({**self._config, "group.id": source}, [source])
            | WriteToKafka(self._config, target, staging=str(self._folder / "staging"), shards=CORES)
        )

    def _topic(self) -> str:
        self._jobs += 1
        return self._broker.topic(f"topic-{self._jobs}", PARTITIONS)

    def _fill(self, topic: str, count: int) -> None:
        producer = Producer({**self._config, "linger.ms": 20, "queue.buffering.max.messages": 1_000_000})
        for n in range(count):
            while True:
                try:
                    producer.produce(topic, b"%0100d" % n, b"%d" % (n % KEYS), n % PARTITIONS)
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
