"""Exactly-once part files, written by `WriteParts`."""

from arcbeam.io.parts.formats import Bytes, Csv, Format, JsonLines, RecordError, Text
from arcbeam.io.parts.packs import Roll
from arcbeam.io.parts.tables import Avro, Parquet
from arcbeam.io.parts.transform import WriteParts
from arcbeam.io.parts.work import StagedPart

__all__ = [
    "Avro",
    "Bytes",
    "Csv",
    "Format",
    "JsonLines",
    "Parquet",
    "RecordError",
    "Roll",
    "StagedPart",
    "Text",
    "WriteParts",
]
