"""The works as hand-written Structured Streaming in Python, with the same element functions.

All elements are one micro-batch, and one more element after them moves the watermark: `availableNow` would leave the
last windows open. State is kept by `applyInPandasWithState`, or by `transformWithState` if there is a timer for each
element. `NATIVE` has what Spark itself does without Python after reading.
"""

from __future__ import annotations

import os
import pickle
import tempfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pandas as pd
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming import StatefulProcessor
from pyspark.sql.streaming.state import GroupState, GroupStateTimeout

from bench.streaming import works
from bench.streaming.works import GAP, WINDOW
from bench.works import work
from bench.works.work import SEEDS, Answer

_AT_ONCE = 10_000
_LAST = -1
"""The key of the element that only moves the watermark."""
_END = 4_000_000_000.0
_DIGEST = "digest long"
_NO_STATE = "nothing boolean"
_ROW = "key long, end long, value binary, time timestamp"


def _source(spark: SparkSession, elements: int, folder: Path, key: Any, second: Any, value: Any) -> DataFrame:
    """Keys, values and times, made by the Python functions of the work."""
    seeds = [f"{first} {last}" for first, last in work.seeds(elements)]
    for number, line in enumerate([*seeds, "end"]):
        file = folder / f"{number:02}.txt"
        file.write_text(line)
        # The last one is a separate batch: files are read in the order of their times.
        moment = 1_000_000_000 + number
        os.utime(file, (moment, moment))

    def rows(frames: Iterable[pd.DataFrame]) -> Iterator[pd.DataFrame]:
        for frame in frames:
            for line in frame["value"]:
                if line == "end":
                    yield _frame([_LAST], [b""], [_END])
                    continue
                numbers = work.numbers(tuple(map(int, line.split())))
                for start in range(0, len(numbers), _AT_ONCE):
                    some = numbers[start : start + _AT_ONCE]
                    yield _frame(list(map(key, some)), list(map(value, some)), list(map(second, some)))

    lines = spark.readStream.option("maxFilesPerTrigger", SEEDS).text(str(folder))
    return lines.mapInPandas(rows, _ROW).withWatermark("time", "0 seconds")


def _frame(keys: list[int], values: list[bytes], seconds: list[float]) -> pd.DataFrame:
    ends = [works.window_end(second) for second in seconds]
    times = pd.to_datetime([round(second * 1e6) for second in seconds], unit="us")
    return pd.DataFrame({"key": keys, "end": ends, "value": values, "time": times})


def _nothing(x: int) -> bytes:
    return b""


def _seconds(times: Iterable[Any]) -> list[float]:
    return [time.timestamp() for time in times]


# ------------------------------------------------------------------------------------------------------------- works


def _windowed(
    source: DataFrame, keeps: str, add: Callable[[Any, pd.DataFrame], Any], tell: Callable[[Any], int]
) -> Any:
    """Return a pane for each key and window, with the result of `add` over its elements."""

    def pane(key: Any, frames: Iterator[pd.DataFrame], state: GroupState) -> Iterator[pd.DataFrame]:
        user_key, end = map(int, key)
        if state.hasTimedOut:
            (kept,) = state.get
            state.remove()
            yield pd.DataFrame({"digest": [works.digest(user_key, end, tell(kept))]})
            return
        (kept,) = state.get if state.exists else (None,)
        for frame in frames:
            kept = add(kept, frame)
        if user_key != _LAST:
            state.update((kept,))
            state.setTimeoutTimestamp(int(end) * 1000)

    return source.groupBy("key", "end").applyInPandasWithState(
        pane, _DIGEST, keeps, "append", GroupStateTimeout.EventTimeTimeout
    )


def _count(source: DataFrame) -> DataFrame:
    return _windowed(source, "count long", lambda kept, frame: (kept or 0) + len(frame), int)


def _group(source: DataFrame) -> DataFrame:
    return _windowed(
        source,
        # A state cannot hold arrays.
        "pickled binary",
        lambda kept, frame: pickle.dumps([*(pickle.loads(kept) if kept else []), *map(bytes, frame["value"])]),
        lambda kept: works.sum_of_big(pickle.loads(kept)),
    )


def _state(source: DataFrame) -> DataFrame:
    def ordinals(key: Any, frames: Iterator[pd.DataFrame], state: GroupState) -> Iterator[pd.DataFrame]:
        (seen,) = state.get if state.exists else (0,)
        digests = []
        for frame in frames:
            for _ in frame["value"]:
                seen += 1
                digests.append(works.digest(key[0], 0, seen))
        state.update((seen,))
        if key[0] != _LAST:
            yield pd.DataFrame({"digest": digests})

    return source.groupBy("key").applyInPandasWithState(
        ordinals, _DIGEST, "seen long", "append", GroupStateTimeout.NoTimeout
    )


def _sessions(source: DataFrame) -> DataFrame:
    def sessions(key: Any, frames: Iterator[pd.DataFrame], state: GroupState) -> Iterator[pd.DataFrame]:
        seconds = pickle.loads(state.get[0]) if state.exists else []
        if state.hasTimedOut:
            state.remove()
            digests, count = [], 0
            for second, after in zip(seconds, [*seconds[1:], None], strict=True):
                count += 1
                if after is None or after - second > GAP:
                    digests.append(works.digest(key[0], second + GAP, count))
                    count = 0
            yield pd.DataFrame({"digest": digests})
            return
        for frame in frames:
            seconds = sorted([*seconds, *_seconds(frame["time"])])
        if key[0] != _LAST:
            state.update((pickle.dumps(seconds),))
            # All elements of a key together: sessions that ended earlier are output with the last one.
            state.setTimeoutTimestamp(int((seconds[-1] + GAP) * 1000))

    return source.groupBy("key").applyInPandasWithState(
        sessions, _DIGEST, "pickled binary", "append", GroupStateTimeout.EventTimeTimeout
    )


class _Later(StatefulProcessor):
    """A timer for each element, at its time."""

    def init(self, handle: Any) -> None:
        self._handle = handle

    def handleInputRows(self, key: Any, rows: Iterator[pd.DataFrame], timerValues: Any) -> Iterator[pd.DataFrame]:
        if key[0] != _LAST:
            for frame in rows:
                for second in _seconds(frame["time"]):
                    self._handle.registerTimer(int(second * 1000 + 1e-6))
        yield pd.DataFrame({"digest": []})

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[pd.DataFrame]:
        second = expiredTimerInfo.getExpiryTimeInMs() / 1000
        yield pd.DataFrame({"digest": [works.digest(key[0], second, 0)]})

    def close(self) -> None:
        """Do nothing: nothing is open."""


def _timers(source: DataFrame) -> DataFrame:
    return source.groupBy("key").transformWithStateInPandas(_Later(), _DIGEST, "append", "EventTime")


def _native_count(source: DataFrame) -> DataFrame:
    counts = source.groupBy("key", F.window("time", f"{WINDOW} seconds")).count()
    end = F.unix_timestamp(F.col("window.end"))
    digest = (F.col("key") * 31 + end * 17 + F.col("count")) % 10_007
    # No filter: Spark would apply it to the input, and the watermark would not move.
    return counts.select(F.when(F.col("key") != _LAST, digest).alias("digest"))


def _native_join(source: DataFrame) -> DataFrame:
    right = source.select(F.col("key").alias("other"), F.col("time").alias("later"))
    pairs = source.join(right, F.expr("key = other and later >= time and later <= time + interval 2 seconds"), "inner")
    digest = (F.col("key") * 31 + F.floor(F.unix_timestamp("time")) * 17) % 10_007
    return pairs.select(F.when(F.col("key") != _LAST, digest).alias("digest"))


Job = Callable[[DataFrame], DataFrame]
_SCRAMBLED = work.key_of, works.second_of, _nothing
JOBS: dict[str, tuple[Job, Any]] = {
    "count": (_count, _SCRAMBLED),
    "count-create": (_count, _SCRAMBLED),
    "watermark": (_count, _SCRAMBLED),
    "state": (_state, _SCRAMBLED),
    "timers": (_timers, _SCRAMBLED),
    "group": (_group, (work.key_of, works.second_of, works.big_value)),
    "sessions": (_sessions, (works.session_key, works.session_second, _nothing)),
}
NATIVE: dict[str, tuple[Job, Any]] = {
    "count": (_native_count, _SCRAMBLED),
    "count-create": (_native_count, _SCRAMBLED),
    "watermark": (_native_count, _SCRAMBLED),
    "join": (_native_join, _SCRAMBLED),
}


def run(session: SparkSession, jobs: dict[str, tuple[Job, Any]], name: str, elements: int) -> Answer:
    """Run a work to its end."""
    job, functions = jobs[name]
    found = [0, 0]

    def note(frame: DataFrame, number: int) -> None:
        (row,) = frame.agg(F.count("digest"), F.sum("digest")).collect()
        found[0] += row[0]
        found[1] += row[1] or 0

    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        files, state = Path(folder, "files"), Path(folder, "state")
        files.mkdir()
        source = _source(session, elements, files, *functions)
        writer = job(source).writeStream.outputMode("append").option("checkpointLocation", str(state))
        query = writer.foreachBatch(note).trigger(availableNow=True).start()
        query.awaitTermination()
    return Answer(*found)


def prepare(session: SparkSession) -> None:
    """Set what these queries need of a session."""
    session.conf.set(
        "spark.sql.streaming.stateStore.providerClass",
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider",
    )
    session.conf.set("spark.sql.session.timeZone", "UTC")


__all__ = ["JOBS", "NATIVE", "prepare", "run"]
