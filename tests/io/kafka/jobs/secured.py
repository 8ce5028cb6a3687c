"""A job that connects with passwords: reading takes its from the environment, writing from a function.

python -m tests.io.kafka.jobs.secured SERVERS SOURCE TARGET FOLDER FILE [options of Beam]
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from functools import partial
from pathlib import Path

import apache_beam as beam
from apache_beam.options.pipeline_options import PipelineOptions

from arcbeam import ArcbeamRunner
from arcbeam.io.kafka import ReadFromKafka, WriteToKafka

VARIABLE = "KAFKA_LOGIN"
"""Its name alone does not say that it is secret."""


def from_file(file: str) -> Mapping[str, str]:
    """Return the settings that are secret."""
    return {"sasl.password": Path(file).read_text(encoding="utf-8")}


def build(pipeline: beam.Pipeline, servers: str, source: str, target: str, folder: str, file: str) -> None:
    """Read a topic, and write another one."""
    config = {
        "bootstrap.servers": servers,
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "PLAIN",
        "sasl.username": "me",
    }
    _ = (
        pipeline
        | ReadFromKafka({**config, "group.id": "secured"}, [source], credentials={"sasl.password": VARIABLE})
        | WriteToKafka(config, target, staging=f"{folder}/staging", credentials=partial(from_file, file))
    )


def main(servers: str, source: str, target: str, folder: str, file: str, *options: str) -> None:
    """Run the job."""
    pipeline = beam.Pipeline(runner=ArcbeamRunner(), options=PipelineOptions(["--streaming", *options]))
    build(pipeline, servers, source, target, folder, file)
    pipeline.run().wait_until_finish()


if __name__ == "__main__":
    main(*sys.argv[1:])
