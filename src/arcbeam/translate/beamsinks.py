"""Faults of Beam's own file sinks on unbounded inputs, which users should know before a pipeline runs.

Owns which sinks are affected and the texts of the warnings. A sink is recognized by its Python type in the pipeline's
proto. The faults are in the SDK, so they are the same on every runner; `docs/howto/exactly-once-sinks.md` lists them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from apache_beam.portability.api import beam_runner_api_pb2 as runner_pb

from arcbeam.translate import describe
from arcbeam.translate.parsing.parsedpipeline import ParsedPipeline

_TYPE = "python_type"
_ROWS = "/ParDo(_RowDictionariesToArrowTable)"
_REWINDOWED = "/Write/WriteImpl/ApplyFixedWindows"
_MIXING = {
    "apache_beam.io.parquetio.WriteToParquet": "Parquet(SCHEMA)",
    "apache_beam.io.parquetio.WriteToParquetBatched": "Parquet(SCHEMA)",
    "apache_beam.io.avroio.WriteToAvro": "Avro(SCHEMA)",
}
"""Sinks with one file handle for all windows of a bundle, and the format of arcbeam that writes the same files."""
_ONE_FIRING = {
    "apache_beam.io.textio.WriteToText": "Text()",
    "apache_beam.io.tfrecordio.WriteToTFRecord": "a format of your own",
    "apache_beam.io.fileio.WriteToFiles": "Text()",
}
"""Sinks that give the files of all firings of a window the same names."""


def warnings_of(pipeline: ParsedPipeline) -> Iterator[str]:
    """Yield one text for each sink that may write wrong files."""
    components = pipeline.components
    transforms = components.transforms
    names = {str(transform.unique_name) for transform in transforms.values()}
    for transform in sorted(transforms.values(), key=lambda transform: str(transform.unique_name)):
        kind = transform.annotations[_TYPE].decode() if _TYPE in transform.annotations else ""
        if kind not in _MIXING and kind not in _ONE_FIRING:
            continue
        name = str(transform.unique_name)
        read, endless = transform.inputs.values(), runner_pb.IsBounded.UNBOUNDED
        unbounded = [pcoll for pcoll in read if components.pcollections[pcoll].is_bounded == endless]
        if not unbounded:
            continue
        short = kind.rpartition(".")[2]
        strategies = map(pipeline.strategy, unbounded)
        if kind in _MIXING:
            # Dictionaries become tables before they are grouped by window, one bundle at a time.
            what = (
                "puts all rows of a bundle into the window of its last row"
                if any(each.startswith(f"{name}/") and each.endswith(_ROWS) for each in names)
                else "leaves files empty or cut off when several windows end together"
            )
            yield (
                f"{name} may lose data: Beam's {short} {what}, on every runner; "
                f"use arcbeam.io.WriteParts(path, {_MIXING[kind]})"
            )
        elif f"{name}{_REWINDOWED}" not in names and any(map(_fires_again, strategies)):
            yield (
                f"{name} may lose data: its windows fire more than once, and Beam's {short} gives the files of each "
                f"firing the same names, on every runner; use arcbeam.io.WriteParts(path, {_ONE_FIRING[kind]}), or a "
                f"trigger that fires once (AfterWatermark(), no allowed lateness)"
            )


def _fires_again(strategy: Any) -> bool:
    """Return whether a window may have more than one pane."""
    if describe.may_fire_early(strategy.trigger, streaming=True):
        return True
    trigger = strategy.trigger
    ends_on_time = trigger.WhichOneof("trigger") == "after_end_of_window" and not trigger.after_end_of_window.HasField(
        "late_firings"
    )
    return strategy.allowed_lateness > 0 and not ends_on_time
