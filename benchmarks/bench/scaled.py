"""One setting of `scaling.py`, in a separate process: `python -m bench.scaled MASTER ELEMENTS KEYS SHARDS RUNS`.

Maps, and groups by a number of keys and sums, after a small run of both; every result is checked. Prints one line of
JSON: {"map": [seconds, …], "group": [seconds, …]}.
"""

from __future__ import annotations

import functools
import json
import logging
import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import apache_beam as beam
import numpy as np
from apache_beam.options.pipeline_options import PipelineOptions

from arcbeam import ArcbeamRunner
from bench.works import pipelines, work
from bench.works.work import Answer

WARM_UP = 20_000  # elements
_CHUNK = 1_000_000
_PRIME = 10_007
CONF = (
    "spark.driver.memory=4g",
    "spark.driver.host=127.0.0.1",
    "spark.driver.bindAddress=127.0.0.1",
)


def keyed_by(keys: int) -> Callable[[int], tuple[int, int]]:
    """Return a function that gives a number one of this many keys; for 100 k, like `work.keyed`."""

    def keyed(x: int) -> tuple[int, int]:
        return (x * 2654435761 & 0xFFFFFFFF) % keys, x

    return keyed


def group(p: beam.Pipeline, elements: int, keys: int, folder: str) -> None:
    _ = (
        pipelines.numbers(p, elements)
        | beam.Map(keyed_by(keys))
        | beam.GroupByKey()
        | beam.MapTuple(pipelines.sum_group)
        | beam.ParDo(pipelines.Tally(folder, work.digest_pair))
    )


@functools.cache
def group_answer(elements: int, keys: int) -> Answer:
    """Return the right answer of `group`; sums are exact, because they stay below 2**53."""
    sums, counts = np.zeros(keys), np.zeros(keys, dtype=np.int64)
    for start in range(0, elements, _CHUNK):
        values = np.arange(start, min(start + _CHUNK, elements), dtype=np.uint64)
        found = ((values * np.uint64(2654435761) & np.uint64(0xFFFFFFFF)) % np.uint64(keys)).astype(np.int64)
        sums += np.bincount(found, values.astype(np.float64), minlength=keys)
        counts += np.bincount(found, minlength=keys)
    present = np.flatnonzero(counts)
    return Answer(len(present), int(((present * 31 + sums[present].astype(np.int64)) % _PRIME).sum()))


def timed(name: str, elements: int, keys: int, options: PipelineOptions) -> float:
    """Return the seconds from building the pipeline to its result; raise if that is wrong."""
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        start = time.perf_counter()
        pipeline = beam.Pipeline(runner=ArcbeamRunner(), options=options)
        if name == "map":
            pipelines.PIPELINES["map"](pipeline, elements, folder)
        else:
            group(pipeline, elements, keys, folder)
        pipeline.run().wait_until_finish()
        seconds = time.perf_counter() - start
        parts = [tuple(map(int, file.read_text().split())) for file in Path(folder).iterdir()]
    answer = Answer(sum(count for count, _ in parts), sum(total for _, total in parts))
    right = work.WORKS["map"].answer(elements) if name == "map" else group_answer(elements, keys)
    if answer != right:
        raise ValueError(f"{name} of {elements}: {answer} instead of {right}")
    return seconds


def main() -> None:
    master, (elements, keys, shards, runs) = sys.argv[1], map(int, sys.argv[2:])
    logging.disable(logging.WARNING)
    with tempfile.TemporaryDirectory(prefix="bench-temp-") as temp:
        flags = [f"--spark_master={master}", f"--shards={shards}", f"--arcbeam_temp={temp}"]
        options = PipelineOptions(flags + [f"--spark_conf={setting}" for setting in CONF])
        seconds: dict[str, list[float]] = {}
        for name in ("map", "group"):
            timed(name, WARM_UP, keys, options)
            seconds[name] = [timed(name, elements, keys, options) for _ in range(runs)]
    print(json.dumps(seconds), flush=True)
    os._exit(0)  # Spark's own exit takes seconds, and a wrong answer has already been reported.


if __name__ == "__main__":
    main()
