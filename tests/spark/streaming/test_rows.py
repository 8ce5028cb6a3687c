"""Rows between the levels of a micro-batch reach the owners of their shards in order, or are passed on."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

from arcbeam.engine.protocol.markers import Marker
from arcbeam.model.rows import Row
from arcbeam.spark.streaming.rows import (
    ORDER,
    SCHEMA,
    ExchangeRow,
    LevelRows,
    Received,
    TaskOutput,
    packing,
    reports_in,
)
from arcbeam.spark.tasks.packing import Packer, unpacked
from arcbeam.spark.tasks.rowqueue import batches_of
from tests.streaming.test_physicalplan import at


def sent(rows: list[ExchangeRow], level: int = 0) -> TaskOutput:
    return TaskOutput(at(), level, rows.append)


def exchanged(rows: list[ExchangeRow], task: int) -> Iterator[pa.RecordBatch]:
    """Return what Spark sends to a task."""
    own = [row for row in rows if row.task == task]
    random.Random(task).shuffle(own)
    own.sort(key=lambda row: tuple(getattr(row, name) for name in ORDER))
    return batches_of(own, SCHEMA)


def marker(task: int = 0, level: int = 0) -> Marker:
    return Marker(1, 0, level, task, b"token", b"", {})


def test_row_goes_to_shard_owner_once_per_reader() -> None:
    rows: list[ExchangeRow] = []
    to = sent(rows)
    to.put(Row(0, 1, 7, b"one"))
    to.put(Row(2, 3, 8, b"both"))
    assert rows == [ExchangeRow(0, 1, 1, 7, b"one"), ExchangeRow(1, 3, 3, 8, b"both"), ExchangeRow(1, 3, 4, 8, b"both")]
    assert to.bytes == len(b"one") + 2 * len(b"both")


@pytest.mark.contract("ENG-01")
def test_markers_precede_rows_in_order() -> None:
    rows: list[ExchangeRow] = []
    to = sent(rows)
    for bucket in (5, 3):
        for shard in range(4):
            to.put(Row(0, shard, bucket, b"s1"))
            to.put(Row(2, shard, bucket, b"later"))
            to.put(Row(1, shard, bucket, b"s2"))
    to.report(b"report")
    to.mark(marker())
    on: list[ExchangeRow] = []
    arrived: list[Any] = []
    level = LevelRows(
        Received(exchanged(rows, 0), at(), 1, sent(on, 1), first=False),
        sent(on, 1),
        lambda stage, of: arrived.extend((stage, row.shard, row.bucket, row.blob) for row in of) or (),
        lambda: arrived.append("ended"),
    )
    assert level.markers() == [marker()]
    for shard in (0, 1):
        for stage in ("the s1", "the s2"):
            list(level.elements(stage, shard))
        for row in level.passing(shard):
            level.pass_on(row)
    assert arrived == [
        (f"the {name}", shard, bucket, name.encode()) for shard in (0, 1) for name in ("s1", "s2") for bucket in (3, 5)
    ]
    level.mark(marker(level=1))
    assert arrived[-1] == "ended"
    passed = [row for row in on if row.shard >= 0]
    assert [(row.task, row.shard, row.stage, row.bucket) for row in passed] == [
        (0, shard, stage, bucket) for shard in (0, 1) for stage in (3, 4) for bucket in (3, 5)
    ]
    assert [row.task for row in on if row.blob not in (b"later", b"report")] == [0, 1]
    assert list(reports_in((row.stage, row.blob) for row in on)) == [b"report"]


def test_last_level_outputs_only_reports() -> None:
    on: list[ExchangeRow] = []
    last = sent(on, 2)
    last.mark(marker())
    last.report(b"report")
    assert list(reports_in((row.stage, row.blob) for row in on)) == [b"report"]
    assert len(on) == 1


def test_row_in_wrong_order_is_an_error() -> None:
    rows: list[ExchangeRow] = []
    sent(rows).put(Row(0, 0, 0, b"it"))
    received = Received(exchanged(rows, 0), at(), 1, sent([], 1), first=False)
    assert list(received.of_stage("the s1", 1)) == []
    with pytest.raises(AssertionError, match=r"shard 0 .*shard 1"):
        list(received.passing(1))


def test_packed_blob_stays_packed_until_read() -> None:
    blob = b"over and over. " * 1000
    rows: list[ExchangeRow] = []
    to = sent(rows)
    to.put(Row(2, 1, 7, blob))
    to.put(Row(0, 1, 7, blob))
    to.report(blob)
    travelling = list(packing(rows, Packer()))
    assert [bool(row.unpacked) for row in travelling] == [row.stage >= 0 for row in rows]
    on: list[ExchangeRow] = []
    received = Received(exchanged(travelling, 0), at(), 1, sent(on, 1), first=False)
    assert received.markers() == []
    assert [row.blob for row in received.of_stage("the s1", 1)] == [blob]
    level = LevelRows(received, sent(on, 1), lambda *_: (), lambda: None)
    for row in received.passing(1):
        level.pass_on(row)
    packed = [row for row in on if row.stage >= 0]
    assert packed
    assert list(packing(packed, Packer())) == packed
    assert {unpacked(row.blob, row.unpacked) for row in packed} == {blob}
