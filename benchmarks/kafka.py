"""Kafka, read and written: records a second, and the time from produce to committed output.

    python benchmarks/kafka.py
    python benchmarks/kafka.py --records 200000 --seconds 20 --only latency wide

A broker (`tools/kafka/broker.py`), the jobs (`--streaming`, `local[2]`) and the producer of the records share this
machine. Reading and writing are measured from the first commit to the last, without the start of the job. Latency is
measured after as many seconds without: until then, Java compiles itself. Prints a table, with the load of the machine.
With --record, writes it between its markers in benchmarks/records.md.
"""

from __future__ import annotations

import argparse
import datetime
import logging
import os
import sys
import tempfile
import time
from pathlib import Path

from bench.peers import CORES
from bench.processor import processor_seconds
from bench.report import as_markdown, as_text, replace_section

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from tools.kafka.broker import Broker, missing  # noqa: E402

PARTS = ("read", "write", "latency", "wide", "new", "once")
CLOCKS = {"wall": time.perf_counter, "processor": processor_seconds}
_WARM_UP = 50_000


def main(arguments: list[str] | None = None) -> int:
    """Measure. Return how many targets are missed."""
    parser = argparse.ArgumentParser(prog="benchmarks/kafka.py", description=__doc__)
    parser.add_argument("--records", type=int, default=3_000_000, help="records that are read, and half are written")
    parser.add_argument("--seconds", type=float, default=60.0, help="how long latency is watched")
    parser.add_argument("--clock", choices=CLOCKS, default="wall", help="of rates: wall, or processor time of all")
    parser.add_argument("--only", choices=PARTS, nargs="+", default=PARTS, help="what to measure (default: all)")
    parser.add_argument("--record", action="store_true", help="write benchmarks/records.md; only with all")
    options = parser.parse_args(arguments)
    if lacks := missing():
        print(f"Kafka is not measured: {lacks}")
        return 0
    from bench.streaming.kafka import BYTES, PARTITIONS, Bench

    from arcbeam.spark import daemon
    from arcbeam.spark.session.sessions import SessionOptions, open_session

    logging.disable(logging.WARNING)
    load = os.getloadavg()[0]
    with (
        tempfile.TemporaryDirectory(prefix="bench-") as folder,
        Broker(Path(folder) / "broker", heap_mib=1_500) as broker,
    ):
        bench = Bench(broker, Path(folder), CLOCKS[options.clock])
        # The session that a script without one gets, on as many cores as the other benchmarks.
        session = open_session(SessionOptions(f"local[{CORES},4]", ("spark.driver.memory=4g",), daemon=daemon.MODULE))
        try:
            bench.read(_WARM_UP)
            measured = {
                "read": lambda: [bench.read(options.records)],
                "write": lambda: [bench.written(options.records // 2)],
                "latency": lambda: bench.latency(options.seconds),
                "wide": lambda: bench.wide(options.seconds),
                "new": lambda: bench.new_readers(),
                "once": lambda: [bench.once()],
            }
            figures = [figure for part in PARTS if part in options.only for figure in measured[part]()]
        finally:
            session.stop()
    table = [["what", "measured", "should be", ""], *(figure.cells() for figure in figures)]
    conditions = (
        f"{datetime.datetime.now().astimezone().date().isoformat()}; `local[{CORES},4]`, the broker on this machine, "
        f"records of {BYTES} bytes, {PARTITIONS} partitions; load before: {load:.1f}; rates by {options.clock} clock."
    )
    print(as_text(table))
    print(conditions)
    if options.record and set(options.only) == set(PARTS):
        replace_section(ROOT / "benchmarks" / "records.md", f"{as_markdown(table)}\n\n{conditions}", "kafka")
    return sum(figure.met is False for figure in figures)


if __name__ == "__main__":
    sys.exit(main())
