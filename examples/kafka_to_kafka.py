"""Kafka to Kafka, exactly once: numbers the records of each key.

    arcbeam run examples/kafka_to_kafka.py --streaming --servers kafka:9092 --input flights --output numbered \
        --staging s3://bucket/staging --checkpoint_dir s3://bucket/job

Records must have keys. A password is given as credentials: see the page "Kafka".
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import Any

import apache_beam as beam
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.transforms.userstate import CombiningValueStateSpec

from arcbeam.io.kafka import ReadFromKafka, WriteToKafka

Pair = tuple[bytes, bytes]


class Number(beam.DoFn):
    """(key, value) -> (key, the number of records that the key has had, a tab, and the value)."""

    SEEN = CombiningValueStateSpec("seen", sum)

    def process(self, pair: Pair, seen: Any = beam.DoFn.StateParam(SEEN)) -> Iterator[Pair]:
        seen.add(1)
        yield pair[0], b"%d\t%s" % (seen.read(), pair[1])


def build(pipeline: beam.Pipeline, servers: str, source: str, target: str, staging: str) -> None:
    """Read a topic, and write another one."""
    config = {"bootstrap.servers": servers}
    (
        pipeline
        | ReadFromKafka({**config, "group.id": target}, [source])
        | beam.Map(lambda pair: (pair[0], pair[1])).with_output_types(Pair)
        | beam.ParDo(Number())
        | WriteToKafka(config, target, staging=staging, shards=2)
    )


def main(arguments: list[str] | None = None) -> None:
    """Run the pipeline."""
    parser = argparse.ArgumentParser(description="Number the records of each key.")
    parser.add_argument("--servers", required=True, help="brokers")
    parser.add_argument("--input", required=True, help="topic to read")
    parser.add_argument("--output", required=True, help="topic to write")
    parser.add_argument("--staging", required=True, help="folder or URL for records until they are published")
    known, beam_arguments = parser.parse_known_args(arguments)
    with beam.Pipeline(options=PipelineOptions(beam_arguments)) as pipeline:
        build(pipeline, known.servers, known.input, known.output, known.staging)


if __name__ == "__main__":
    main()
