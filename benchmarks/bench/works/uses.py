"""More ways to write it: state and timers, aggregates of rows, files. The functions, and the right answers.

Beside `ways`; knows neither Beam nor Spark. Files to read are made once per size. Written files are checked as bytes,
or by their metadata, so that checking takes almost no time.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

import fastavro
import numpy as np
import pyarrow
import pyarrow.parquet

from bench.works import work
from bench.works.work import Answer, M, Work, key_of

_PRIME = 10_007
_FOLDER = Path(__file__).resolve().parents[3] / "build" / "bench"

SCHEMA = pyarrow.schema([("k", pyarrow.int64()), ("v", pyarrow.int64()), ("s", pyarrow.string())])
AVRO: dict[str, Any] = {
    "type": "record",
    "name": "Record",
    "fields": [{"name": "k", "type": "long"}, {"name": "v", "type": "long"}, {"name": "s", "type": "string"}],
}


class Sale(NamedTuple):
    k: int
    v: int


def line_of(x: int) -> str:
    return f"line {x}"


def number_of(line: str) -> int:
    return int(line[5:])


def record_of(x: int) -> dict[str, Any]:
    return {"k": key_of(x), "v": x, "s": line_of(x)}


def digest_record(record: dict[str, Any]) -> int:
    return (record["k"] * 31 + record["v"]) % _PRIME


def digest_sale(sale: Any) -> int:
    """Return the digest of a result for a key's rows: its fields are the key and the aggregates."""
    key, *aggregates = sale
    return (key * 31 + sum(aggregates)) % _PRIME


# ----------------------------------------------------------------------------------------------- files that are read


def files(kind: str, elements: int) -> Path:
    """Return a folder of text, Parquet or Avro files with that many elements. Made once per size."""
    folder = _FOLDER / f"{kind}-{elements}"
    done = folder.with_suffix(".done")
    if not done.exists():
        folder.mkdir(parents=True, exist_ok=True)
        for part, (first, last) in enumerate(work.seeds(elements)):
            _make(kind, folder / f"part-{part}", range(first, last))
        done.touch()
    return folder


def _make(kind: str, path: Path, numbers: Iterable[int]) -> None:
    if kind == "text":
        path.write_text("".join(f"{line_of(x)}\n" for x in numbers))
    elif kind == "parquet":
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(list(map(record_of, numbers)), SCHEMA), path)
    else:
        with path.open("wb") as file:
            fastavro.writer(file, AVRO, map(record_of, numbers), codec="deflate")


# -------------------------------------------------------------------------------------------- files that are written


def look_at(kind: str, folder: Path) -> Answer:
    """Return what was written to a folder: the number of elements, and a sum over them or over their bytes."""
    found = [path for path in sorted(folder.iterdir()) if path.is_file() and not path.name.startswith((".", "_"))]
    parts = [{"text": _look_at_text, "parquet": _look_at_parquet, "avro": _look_at_avro}[kind](path) for path in found]
    return Answer(sum(count for count, _ in parts), sum(total for _, total in parts))


def _look_at_text(path: Path) -> Answer:
    data = np.frombuffer(path.read_bytes(), dtype=np.uint8)
    return Answer(int((data == 10).sum()), int(data.sum()))


def _look_at_parquet(path: Path) -> Answer:
    table = pyarrow.parquet.read_table(path, columns=["k", "v"])
    keys, values = (column.to_numpy() for column in table.columns)
    return Answer(len(keys), int(((keys * 31 + values) % _PRIME).sum()))


def _look_at_avro(path: Path) -> Answer:
    count = total = 0
    with path.open("rb") as file:
        for block in fastavro.block_reader(file):
            count += block.num_records
            total += int(np.frombuffer(block.bytes_.getvalue(), dtype=np.uint8).sum())
    return Answer(count, total)


# ------------------------------------------------------------------------------------------------------------ answers


@functools.cache
def _written(kind: str, elements: int) -> Answer:
    return look_at(kind, files(kind, elements))


@functools.cache
def _records(elements: int) -> Answer:
    keys, values = work._keys(elements, work.KEYS)
    return Answer(elements, int(((keys * 31 + values) % _PRIME).sum()))


@functools.cache
def _aggregated(elements: int) -> Answer:
    keys, values = work._keys(elements, work.KEYS)
    present = np.unique(keys)
    sums = work._per_key(keys, values, work.KEYS)[present]
    return Answer(len(present), int(((present * 31 + sums) % _PRIME).sum()))


@functools.cache
def _aggregated_twice(elements: int) -> Answer:
    keys, values = work._keys(elements, work.KEYS)
    present = np.unique(keys)
    most = np.zeros(work.KEYS, dtype=np.int64)
    np.maximum.at(most, keys, values)
    sums = work._per_key(keys, values, work.KEYS)[present] + most[present]
    return Answer(len(present), int(((present * 31 + sums) % _PRIME).sum()))


def _way(name: str, what: str, elements: int, local: int, answer: Callable[[int], Answer]) -> Work:
    return Work(name, what, elements, local, answer, way=True)


def _file(kind: str, how: str) -> Callable[[int], Answer]:
    if how == "write":
        return lambda elements: _written(kind, elements)
    return work._reshuffle if kind == "text" else _records


WORKS = {
    work.name: work
    for work in (
        _way("state-sum", "stateful DoFn, a counter in combining state", M, 20_000, work._state),
        _way("timers", "stateful DoFn, a timer set and fired for each element", M, 20_000, _records),
        _way("aggregate-row", "GroupBy of `beam.Row`, a sum", M, 100_000, _aggregated),
        _way("aggregate-rows", "GroupBy of `beam.Row`, a sum and a maximum", M, 100_000, _aggregated_twice),
        _way("aggregate-named", "GroupBy of a named tuple, a sum", M, 100_000, _aggregated),
        *(
            _way(f"{how}-{kind}", f"{how}: {kind}", M, 100_000, _file(kind, how))
            for kind in ("text", "parquet", "avro")
            for how in ("write", "read")
        ),
        _way("write-parts", "write: text, as part files", M, 100_000, _file("text", "write")),
    )
}
