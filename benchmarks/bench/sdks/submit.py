"""Submits a pipeline twice, a small one first: `python -m bench.sdks.submit NAME ELEMENTS WARM_UP ENDPOINT [OPTION…]`.

User code runs in threads of this process (LOOPBACK). A process for each run gives each the same start. Prints one line
of JSON: {"seconds", "processor", "count", "total"}: of the second one; processor time of this process's other threads,
which run the bundles. Those that gRPC has besides take less than a hundredth of it.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from pathlib import Path

import apache_beam as beam
from apache_beam.options.pipeline_options import PipelineOptions

from bench.sdks.pipelines import PIPELINES


def main() -> None:
    name, elements, warm_up, endpoint, *more = sys.argv[1:]
    options = [
        "--runner=PortableRunner",
        f"--job_endpoint={endpoint}",
        "--environment_type=LOOPBACK",
        # It runs `pip freeze` for each pipeline.
        "--experiments=disable_logging_submission_environment",
        *more,
    ]
    for size in (int(warm_up), int(elements)):
        with tempfile.TemporaryDirectory(prefix="bench-") as folder:
            start, spent = time.perf_counter(), _by_others()
            pipeline = beam.Pipeline(options=PipelineOptions(options))
            PIPELINES[name].build(pipeline, size, folder)
            pipeline.run().wait_until_finish()
            seconds, spent = time.perf_counter() - start, _by_others() - spent
            parts = [tuple(map(int, file.read_text().split())) for file in Path(folder).iterdir()]
    count, total = (sum(column) for column in zip(*parts, strict=True))
    print(json.dumps({"seconds": seconds, "processor": spent, "count": count, "total": total}))


def _by_others() -> float:
    """Return the processor time of all threads but this one, in seconds."""
    return time.process_time() - time.thread_time()


if __name__ == "__main__":
    main()
