"""The streaming demo: its parts, and its pipeline on a few lines, as a stream and in batch."""

from __future__ import annotations

import os
import random
import time
from pathlib import Path
from typing import Any

import apache_beam as beam
import pytest
from apache_beam.options.pipeline_options import PipelineOptions

from arcbeam import ArcbeamRunner
from examples.flights import replay, streaming, timeline
from examples.flights.replay import Feed, Replay
from examples.flights.stream import build
from tests.examples.test_flights import FLIGHTS, WEATHER, line, weather_line

_LINES = [
    line(1, 6, 0, 0),
    line(1, 8, 0, 600),  # arrives after all others of its day
    line(1, 9, 0, None, "JFK"),
    line(1, 23, 0, 3),
    line(2, 6, 0, 0),
    line(2, 7, 0, 2400),  # arrives on the 3rd, too late for the 2nd
    line(3, 6, 0, 0),
    line(4, 9, 0, 5),
]
_WEATHER = [weather_line(f"2013-01-{day:02}T{hour:02}:00:00Z") for day in range(1, 6) for hour in range(0, 24, 6)]


@pytest.fixture
def data(tmp_path: Path) -> streaming.Ordered:
    for name, header, lines in (("flights", FLIGHTS, _LINES), ("weather", WEATHER, _WEATHER)):
        (tmp_path / f"{name}.csv").write_text("\n".join([header, *lines]) + "\n")
    return streaming.in_order(tmp_path / "flights.csv", tmp_path / "weather.csv", tmp_path)


def test_flights_are_in_order_of_departure(data: streaming.Ordered) -> None:
    left = [text.partition("\t")[2] for text in data.flights.read_text().splitlines()]
    assert [_LINES.index(each) for each in left] == [0, 2, 1, 3, 4, 6, 5, 7]
    assert data.lateness == [0, 0, 60, 0, 0, 0, 23 * 60, 0]


def test_lines_arrive_at_their_times(data: streaming.Ordered) -> None:
    feed = Feed(str(data.flights), time.time() - 10, data.first, 24 * 360, ordered=False)
    tracker = Replay().create_tracker(Replay().initial_restriction(feed))

    class Deferring:
        deferred = False

        def current_restriction(self) -> Any:
            return tracker.current_restriction()

        def try_claim(self, place: int) -> bool:
            return bool(tracker.try_claim(place))

        def defer_remainder(self, _: Any) -> None:
            Deferring.deferred = True

    arrived = list(Replay().process(feed, Deferring(), beam.io.watermark_estimators.ManualWatermarkEstimator(None)))
    # Ten seconds are a day.
    assert arrived == [_LINES[0], _LINES[2], _LINES[1], _LINES[3], _LINES[4]]
    assert Deferring.deferred


def test_stream_and_late_flights_equal_the_batch_answer(
    data: streaming.Ordered, tmp_path: Path, spark: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    files = {"flights": data.flights, "weather": data.weather}
    for kind in ("batch", "stream"):
        p = beam.Pipeline(runner=ArcbeamRunner(), options=PipelineOptions(["--shards=2"]))
        if kind == "batch":
            lines = [
                p
                | f"Read {name}" >> beam.io.ReadFromText(str(file))
                | name >> beam.Map(lambda text: text.partition("\t")[2])
                for name, file in files.items()
            ]
        else:
            now = time.time() + 5
            lines = [
                p
                | f"Feed {name}" >> beam.Create([Feed(str(file), now, data.first, 12 * 3600, name == "weather")])
                | name >> beam.ParDo(Replay())
                for name, file in files.items()
            ]
        build(*lines, str(tmp_path / kind), 3600, weeks=kind == "stream")
        p.run().wait_until_finish()
    assert streaming.compare(tmp_path)
    printed = capsys.readouterr().out
    # Whether the last flight of a day is late depends on the micro-batches; that none is lost does not.
    late = list(streaming.rows_of(tmp_path / "stream" / "late"))
    assert {(row[0], row[1]) for row in late} <= {("EWR", "2013-01-01 08:00"), ("EWR", "2013-01-02 07:00")}
    assert f"{8 - len(late)} of these hours equal the batch answer; {len(late)} flights were late" in printed
    assert "together equal the batch answer." in printed
    assert len({week for week, *_ in streaming.rows_of(tmp_path / "stream" / "weeks")}) > 4


def test_last_lines_arrive_at_their_own_pace(tmp_path: Path) -> None:
    feed = Feed(str(tmp_path / "feed"), time.time() - 1000, 0.0, 60.0, ordered=False, live=50_000.0, pace=2.0)
    assert feed.now(100.0) == 50_000.0, "a late reader must read everything that is not live"
    assert 50_000.0 <= feed.now(50_000.0) < 50_010.0
    mark = tmp_path / "feed.live"
    os.utime(mark, (mark.stat().st_atime, mark.stat().st_mtime - 100))
    assert 50_200.0 <= feed.now(50_300.0) < 50_210.0


def test_picture_is_drawn(tmp_path: Path) -> None:
    stage = {"stage": "Replay flights/Process", "outputs": [{"watermark": 2_000_000_000_000}], "total": {"late": 3}}
    ahead = {"stage": "Replay weather/Process", "outputs": [{"watermark": 3_000_000_000_000}], "total": {"late": 3}}
    held = [("side input", "Join weather"), ("timer", "Hours/GroupByKey"), ("timer", "Hours/GroupByKey")]
    causes = [{"kind": kind, "stage": name, "time": 1_000_000_000_000} for kind, name in held]
    record = {
        "micro_batch": 1,
        "watermark": 1_500_000_000_000,
        "rate": None,
        "backlog": 5.0,
        "stages": [stage, ahead],
        "causes": causes,
    }
    look = timeline.Look.of(record, 0.5)
    assert look == (0.5, 1, 2_000_000.0, 1_500_000.0, 0.0, 5.0, 6, tuple((*each, 1_000_000.0) for each in held))
    looks = [look._replace(at=at, micro_batch=at, watermark=look.watermark + at) for at in range(1, 9)]
    looks[4] = looks[4]._replace(held=(timeline.Held("whatever", "a new stage with a name that is rather long", 0),))
    timeline.draw(tmp_path / "it.png", looks, 4, 5, [0, 5, 90.5, 1300], 60)
    assert (tmp_path / "it.png").stat().st_size > 10_000


@pytest.mark.long
@pytest.mark.contract("STORE-04", "END-02", "WM-06")
def test_demo_survives_kill_and_equals_the_batch_answer(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    chance = random.Random(13)
    days = [(month, day) for month in range(1, 13) for day in range(1, 29)]
    flights = [
        line(day, hour, 0, chance.choice([None, 0, 0, 3, 45, 200]), chance.choice(["EWR", "JFK"]), month=month)
        for month, day in days
        for hour in range(6, 18)
    ]
    hours = [f"2013-{month:02}-{day:02}T{hour:02}:00:00Z" for month, day in days for hour in range(0, 24, 6)]
    for name, header, lines in (
        ("flights", FLIGHTS, flights),
        ("weather", WEATHER, [weather_line(hour) for hour in hours]),
    ):
        (tmp_path / f"{name}.csv").write_text("\n".join([header, *lines]) + "\n")
    data = streaming.in_order(tmp_path / "flights.csv", tmp_path / "weather.csv", tmp_path)
    demo = streaming.Demo(tmp_path, data, 60, 20, ["--spark_master=local[2,4]", "--shards=2"])
    demo.batch()
    demo.stream()
    assert streaming.compare(tmp_path)
    assert f"{len(flights):,} flights in" in capsys.readouterr().out
    assert 0 < demo.killed < demo.resumed
    before = max(look.micro_batch for look in demo.looks if look.at < demo.killed)
    assert max(look.micro_batch for look in demo.looks) > before
    assert any(held.kind == "observer" for look in demo.looks for held in look.held)
    timeline.draw(tmp_path / timeline.PICTURE, demo.looks, demo.killed, demo.resumed, data.lateness, 60)
    assert (tmp_path / timeline.PICTURE).stat().st_size > 10_000


def test_lines_are_written_by_their_times(tmp_path: Path) -> None:
    replay.written_in_order([(5, "b"), (3, "a"), (5, "a")], tmp_path / "file")
    assert (tmp_path / "file").read_text() == "3\ta\n5\tb\n5\ta\n"
