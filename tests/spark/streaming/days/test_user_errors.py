"""Errors of user code in a streaming job on Spark: what they name, and that a corrected job resumes."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import apache_beam as beam
import pytest
from apache_beam.transforms import userstate, window

from arcbeam.errors import UserCodeError
from arcbeam.io import Publish, Roll, WriteParts
from tests.notes import note, noted
from tests.spark.publishing import Renames, Stage, left_over, published
from tests.spark.streaming.days.jobs import head_of, pipeline, ticks

pytestmark = pytest.mark.usefixtures("spark")


class StateMetrics(beam.DoFn):
    """Counts the elements of a key, and raises for one of them."""

    SEEN = userstate.CombiningValueStateSpec("seen", sum)

    def __init__(self, poison: int | None) -> None:
        self._poison = poison

    def process(self, element: Any, seen: Any = beam.DoFn.StateParam(SEEN)) -> Iterator[Any]:
        if element[1] == self._poison:
            raise ValueError("not this one")
        seen.add(1)
        yield element[1], seen.read()


@pytest.mark.contract("BAT-04", "STORE-01", "STORE-04")
def test_corrected_job_resumes_before_failed_micro_batch(
    tmp_path: Path,
) -> None:
    out, state = tmp_path / "out", f"--checkpoint_dir={tmp_path / 'state'}"
    out.mkdir()

    def run(poison: int | None) -> Any:
        p = pipeline(state)
        kept = ticks(p, 30) | beam.Map(lambda n: ("key", n)) | "Keep" >> beam.ParDo(StateMetrics(poison))
        # The output of a failed micro-batch does not pass an exchange.
        counted = kept | beam.WindowInto(window.FixedWindows(5)) | beam.Map(lambda pair: (0, pair)) | beam.GroupByKey()
        _ = counted | beam.Map(lambda pair, folder: note(sorted(pair[1]), folder), str(out))
        return p.run()

    for _ in range(2):
        with pytest.raises(UserCodeError, match="not this one") as caught:
            run(17).wait_until_finish()
        assert caught.value.step == "Keep"
        assert re.search(r"\n  in micro-batch [0-9]+, key 'key', element \('key', 17\)\n", str(caught.value))
    assert sorted(noted(out)) == [[(n, n + 1) for n in range(at, at + 5)] for at in (0, 5, 10)]
    assert run(None).wait_until_finish() == "DONE"
    assert sorted(noted(out)) == [[(n, n + 1) for n in range(at, at + 5)] for at in range(0, 30, 5)]


@pytest.mark.long
@pytest.mark.contract("STORE-01", "STORE-04", "END-04", "END-06")
def test_late_error_publishes_nothing_after_last_commit(
    tmp_path: Path,
) -> None:
    """Elements before the failing one have passed the micro-batch, and have staged files that must never be visible."""
    state, rows, parts = (tmp_path / name for name in ("state", "rows", "parts"))
    rows.mkdir()
    count, few, poison = 420, 3, 334

    def run(poison: int | None) -> Any:
        p = pipeline(f"--checkpoint_dir={state}")
        numbers = ticks(p, count, few=few, seconds=0.001)
        kept = numbers | beam.Map(lambda n: (n % 4, n)) | "Keep" >> beam.ParDo(StateMetrics(poison))
        staged = kept | "Rows" >> beam.MapTuple(lambda n, seen: f"{n} {seen}") | beam.ParDo(Stage(rows))
        _ = staged | Publish(Renames(rows))
        lines = kept | "Line" >> beam.MapTuple(lambda n, seen: f"{n} {seen}").with_output_types(str)
        _ = lines | WriteParts(str(parts), roll=Roll(elements=8))
        return p.run()

    def in_parts() -> list[str]:
        return sorted(line for file in parts.rglob("part*") for line in file.read_text().splitlines())

    def published_by_micro_batches() -> set[int]:
        return {int(file.name.split("_")[1]) for file in rows.iterdir() if file.is_file()}

    expected = {n: f"{n} {n // 4 + 1}" for n in range(count)}
    before: list[str] = []
    for _ in range(2):
        with pytest.raises(UserCodeError, match="not this one") as caught:
            run(poison).wait_until_finish()
        assert caught.value.step == "Keep"
        (micro_batch,) = (
            int(found)
            for found in re.findall(rf"\n  in micro-batch (\d+), key {poison % 4}, element ", str(caught.value))
        )
        assert micro_batch > 100
        assert head_of(state).micro_batch == micro_batch - 1, "the micro-batch must not be committed"
        assert max(published_by_micro_batches()) < micro_batch
        committed = {line for n, line in expected.items() if n < poison // few * few}
        assert set(published(rows)) <= committed
        assert len(published(rows)) == len(set(published(rows)))
        assert set(in_parts()) <= committed
        assert len(in_parts()) == len(set(in_parts()))
        assert set(before) <= set(published(rows))
        before = published(rows)
    assert len(committed) - len(before) <= few, (
        "only the files of the last commit may be unpublished when the job fails"
    )
    assert run(None).wait_until_finish() == "DONE"
    assert published(rows) == in_parts() == sorted(expected.values())
    assert left_over(rows) == []


@pytest.mark.contract("BAT-04", "STORE-04", "END-04")
def test_failing_element_is_named_with_key_and_restriction(tmp_path: Path) -> None:
    """The error is in the source's stage. The corrected job resumes from the last commit."""
    state, rows = tmp_path / "state", tmp_path / "rows"
    rows.mkdir()

    def run(poison: int | None) -> Any:
        def judge(pair: tuple[str, int]) -> str:
            if pair[1] == poison:
                raise ValueError("not this one")
            return f"{pair[0]}: {pair[1]}"

        p = pipeline(f"--checkpoint_dir={state}")
        keyed = ticks(p, 20) | beam.Map(lambda n: (f"user {n % 3}", n))
        _ = keyed | "Judge" >> beam.Map(judge) | beam.ParDo(Stage(rows)) | Publish(Renames(rows))
        return p.run()

    named = (
        r"\n  in micro-batch (\d+), restriction OffsetRange\(start=(\d+), stop=20\) of element "
        r"20, element \('user 1', 7\)\n"
    )
    for _ in range(2):
        with pytest.raises(UserCodeError, match="not this one") as caught:
            run(7).wait_until_finish()
        assert caught.value.step == "Judge"
        ((micro_batch, start),) = re.findall(named, str(caught.value))
        assert int(start) <= 7
        assert head_of(state).micro_batch == int(micro_batch) - 1
        assert {int(line.split()[-1]) for line in published(rows)} <= set(range(7))
    assert run(None).wait_until_finish() == "DONE"
    assert published(rows) == sorted(f"user {n % 3}: {n}" for n in range(20))
    assert left_over(rows) == []
