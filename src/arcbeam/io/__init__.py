"""Transforms that Spark users know and Beam lacks, built from Beam's transforms."""

from arcbeam.io.deduplication import DeduplicateWithinWatermark
from arcbeam.io.joins import JoinWithin
from arcbeam.io.late import GroupedAndLate, LateElement, WithLate
from arcbeam.io.outputmodes import OutputMode
from arcbeam.io.parts import (
    Avro,
    Bytes,
    Csv,
    Format,
    JsonLines,
    Parquet,
    RecordError,
    Roll,
    StagedPart,
    Text,
    WriteParts,
)
from arcbeam.io.publishing import Publish, Publisher, attempt
from arcbeam.io.watermarks import WithWatermark, WithWatermarkPolicy

__all__ = [
    "Avro",
    "Bytes",
    "Csv",
    "DeduplicateWithinWatermark",
    "Format",
    "GroupedAndLate",
    "JoinWithin",
    "JsonLines",
    "LateElement",
    "OutputMode",
    "Parquet",
    "Publish",
    "Publisher",
    "RecordError",
    "Roll",
    "StagedPart",
    "Text",
    "WithLate",
    "WithWatermark",
    "WithWatermarkPolicy",
    "WriteParts",
    "attempt",
]
