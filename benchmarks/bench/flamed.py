"""A work in this process, without Spark, for `flames.py`: `python -m bench.flamed WORK ELEMENTS SWITCH …`.

Runs only the worker's Python code: the tests' drive does with lists what Spark does between stages. Switches are
optimizations to turn off. After a small run it prints "ready" and waits for a line; then the run to sample begins.
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
    """Run a work once; its answer is not checked."""
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
