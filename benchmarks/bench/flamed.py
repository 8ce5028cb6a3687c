"""A work in this process, without Spark, for `flames.py`: `python -m bench.flamed WORK ELEMENTS SWITCH …`.

The worker's Python code alone: what Spark does between stages is done with lists by the tests' drive. Switches are
optimizations to be off. After a small run it says "ready" and waits for a line; then comes the run to look at.
"""

from __future__ import annotations

import logging
import sys
import tempfile
from typing import Any

from bench.works import registry
from tests.harness.drive import Driven

WARM_UP = 20_000  # elements


def run(name: str, elements: int, off: dict[str, Any]) -> None:
    """One run of a work; its answer is not looked at."""
    with tempfile.TemporaryDirectory(prefix="bench-") as folder, Driven(shards=2, **off) as pipeline:
        registry.jobs("arcbeam")[name](pipeline, elements, folder)


def main() -> None:
    name, elements, *switches = sys.argv[1:]
    logging.disable(logging.WARNING)
    off = dict.fromkeys(switches, False)
    run(name, WARM_UP, off)
    print("ready", flush=True)
    sys.stdin.readline()
    run(name, int(elements), off)


if __name__ == "__main__":
    main()
