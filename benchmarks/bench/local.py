"""Beam's local runner, in a separate process: `python -m bench.local WORK ELEMENTS WARM_UP FOLDER CLOCK`.

A separate process gives every run the same start, and separates its memory from the benchmark's. Prints one line of
JSON: {"seconds", "count", "total"}. The clock is "wall" or "processor".
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

from apache_beam.runners.portability.fn_api_runner import FnApiRunner

from bench.works import pipelines, registry


def main() -> None:
    name, elements, warm_up, folder = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), Path(sys.argv[4])
    clock = time.process_time if sys.argv[5] == "processor" else time.perf_counter
    build = registry.jobs("local")[name]
    for part, size in (("warm", warm_up), ("timed", elements)):
        (folder / part).mkdir()
        start = clock()
        answer = pipelines.run(build, size, FnApiRunner(), str(folder / part))
        seconds = clock() - start
    print(json.dumps({"seconds": seconds, "count": answer.count, "total": answer.total}))


if __name__ == "__main__":
    main()
