"""Parts of bounded and streaming pipelines: names, contents, and what is published when."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import apache_beam as beam
import pyarrow as pa
import pytest
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.runners.portability.fn_api_runner import FnApiRunner
from apache_beam.transforms import window

from arcbeam.harness.operations.publishoperation import OpenPublisher
from arcbeam.io import Avro, Bytes, Csv, Format, JsonLines, Parquet, Roll, StagedPart, Text, WriteParts
from arcbeam.io.parts.objects import ObjectStaging
from arcbeam.io.parts.places import staging_for
from arcbeam.io.parts.work import PathTakenError
from arcbeam.translate import ParsedPipeline, translate
from arcbeam.translate.proto import pipeline_proto
from tests.golden import check_message
from tests.harness.drive import Collect, Driven
from tests.io.parts import jobs
from tests.io.parts.jobs import attempt, left, publish, published, successes
from tests.io.parts.test_rolling import LINES, MicroBatches, stream

pytestmark = pytest.mark.contract("END-06")
SECOND = 1_000_000


def timed(p: Any, count: int, size: int = 0, bounded: bool = True) -> Any:
    """Create lines "0", "1", …, each at its second."""
    lines = p | beam.Create(range(count), reshuffle=False)
    lines |= "Timed" >> beam.Map(lambda n: window.TimestampedValue(str(n), n)).with_output_types(str)
    if size:
        lines |= "Windows" >> beam.WindowInto(window.FixedWindows(size), allowed_lateness=10)
    lines.is_bounded = bounded
    return lines


def write(folder: Path, count: int, size: int = 0, **arguments: Any) -> Driven:
    with attempt(), Driven(shards=2) as p:
        timed(p, count, size) | WriteParts(str(folder), **arguments) | Collect()
    return p


@pytest.mark.parametrize("shards", [None, 1, 3])
@pytest.mark.parametrize("times", [1, 2])
def test_bounded_pipeline_publishes_at_end(tmp_path: Path, shards: int | None, times: int) -> None:
    p = write(tmp_path, 100, shards=shards)
    assert published(tmp_path) == {}
    publish(p, times)
    found = published(tmp_path)
    assert list(found) == [f"part-{shard:05d}-00000.txt" for shard in range(shards or 1)]
    assert sorted(line for lines in found.values() for line in lines) == sorted(map(str, range(100)))
    assert left(tmp_path) == []
    parts: list[StagedPart] = p.values()
    assert sorted(part.path for part in parts) == [f"{tmp_path}/{name}" for name in found]
    assert sum(part.records for part in parts) == 100
    assert {part.window for part in parts} == {"global"}
    assert sum(part.bytes for part in parts) == sum(path.stat().st_size for path in tmp_path.glob("part-*"))


@pytest.mark.parametrize("shards", [None, 1])
@pytest.mark.parametrize(
    ("roll", "counts"),
    [
        (Roll(elements=30), [30, 30, 30, 10]),
        (Roll(elements=50), [50, 50]),
        (Roll(bytes=20), [10, *[7] * 12, 6]),
        (Roll(bytes=10_000, elements=99, seconds=1, idle_seconds=1), [99, 1]),
    ],
)
def test_parts_are_split_between_records(tmp_path: Path, roll: Roll, counts: list[int], shards: int | None) -> None:
    publish(write(tmp_path, 100, roll=roll, shards=shards))
    found = published(tmp_path)
    assert list(found) == [f"part-00000-{part:05d}.txt" for part in range(len(counts))]
    assert [len(lines) for lines in found.values()] == counts
    assert [line for lines in found.values() for line in lines] == list(map(str, range(100)))


@pytest.mark.parametrize("shards", [None, 2])
def test_windows_and_destinations_have_separate_files(tmp_path: Path, shards: int | None) -> None:
    name = "{destination}/{start:%Y-%m-%d_%H%M%S}-{shard}-{part}{suffix}"
    by = {"destination": lambda line: f"last/{line[-1]}", "success": "_SUCCESS"}
    publish(write(tmp_path, 100, 40, shards=shards, name=name, format=JsonLines(), **by), times=2)
    found = published(tmp_path)
    for name, lines in found.items():
        start = {"00": 0, "40": 40, "20": 80}[name.split("-")[-3][-2:]]
        assert all(start <= int(line.strip('"')) < start + 40 for line in lines)
        assert {line.strip('"')[-1] for line in lines} == {name.split("/")[1]}
    assert sum(map(len, found.values())) == 100
    over = successes(tmp_path)
    assert len(over) == 30
    listed = {file["name"]: file["records"] for success in over.values() for file in success["files"]}
    assert listed == {name: len(lines) for name, lines in found.items()}


def test_success_file_appears_after_all_files(tmp_path: Path) -> None:
    p = write(tmp_path, 100, 40, success="_SUCCESS", roll=Roll(elements=7))
    for stage in p.plan.stages:
        for name in stage.publishers:
            for each in [each for report in p.reports for each in report.committables.get(name, ())][:1]:
                OpenPublisher(stage, name).publish([each], again=True)
    (success,) = successes(tmp_path).values()
    assert sorted(file["name"] for file in success["files"]) == list(published(tmp_path))


@pytest.mark.parametrize("shards", [None, 2])
@pytest.mark.parametrize("success", [None, "_SUCCESS"])
def test_publisher_completes_uploads_on_s3(
    s3_path: str, s3_options: dict[str, Any], shards: int | None, success: str | None
) -> None:
    options = PipelineOptions([f"--{name}={value}" for name, value in s3_options.items()])
    with attempt(0, (7,)), Driven(shards=2) as p:
        p._options = options
        arguments = {"shards": shards, "success": success, "roll": Roll(elements=30), "destination": lambda line: "d"}
        timed(p, 100) | WriteParts(s3_path, **arguments) | Collect()
    place = staging_for(s3_path, s3_options)
    assert isinstance(place, ObjectStaging)
    parts: list[StagedPart] = p.values()
    assert place._size(place._key("d/part-00007-00000.txt")) is None
    publish(p, times=2)
    written = {
        part.path.removeprefix(f"{s3_path}/"): place.get(part.path.removeprefix(f"{s3_path}/")) for part in parts
    }
    assert sorted(line for data in written.values() for line in (data or b"").split()) == sorted(
        str(n).encode() for n in range(100)
    )
    if shards is None:
        assert sorted(written) == [f"d/part-00007-{part:05d}.txt" for part in range(4)]
    assert (place.get("d/_SUCCESS") is not None) == (success is not None)
    assert list(place.leftovers()) == []


def test_merging_windows_are_written_after_merging(tmp_path: Path) -> None:
    with attempt(), Driven(shards=2) as p:
        lines = p | beam.Create([1, 2, 11, 12, 30], reshuffle=False)
        lines |= "Timed" >> beam.Map(lambda n: window.TimestampedValue(str(n), n)).with_output_types(str)
        lines | beam.WindowInto(window.Sessions(5)) | WriteParts(str(tmp_path))
        lines.is_bounded = False
        with pytest.raises(ValueError, match="merge"):
            lines | "unbounded" >> beam.WindowInto(window.Sessions(5)) | "refused" >> WriteParts(str(tmp_path))
    publish(p)
    session = "part-19700101T0000{}Z-19700101T0000{}Z-00000-00000.txt".format
    assert published(tmp_path) == {
        session("01", "07"): ["1", "2"],
        session("11", "17"): ["11", "12"],
        session("30", "35"): ["30"],
    }


def test_merged_windows_stay_unchanged(tmp_path: Path) -> None:
    with attempt(), Driven(shards=2) as p:
        lines = p | beam.Create([1, 2, 4, 11], reshuffle=False)
        lines |= "Timed" >> beam.Map(lambda n: window.TimestampedValue(("k", str(n)), n))
        groups = lines | beam.WindowInto(window.Sessions(5)) | beam.GroupByKey()
        texts = groups | beam.MapTuple(lambda _, values: " ".join(sorted(values))).with_output_types(str)
        texts | WriteParts(str(tmp_path), shards=1)
    publish(p)
    assert published(tmp_path) == {
        "part-19700101T000001Z-19700101T000009Z-00000-00000.txt": ["1 2 4"],
        "part-19700101T000011Z-19700101T000016Z-00000-00000.txt": ["11"],
    }


def test_success_file_is_refused_for_endless_window(tmp_path: Path) -> None:
    lines = timed(beam.Pipeline(), 10, bounded=False)
    with pytest.raises(ValueError, match="_DONE") as caught:
        lines | WriteParts(str(tmp_path), success="_DONE")
    check_message("parts-success-of-endless-window", str(caught.value), path=tmp_path)


def test_tasks_are_numbered_in_order(tmp_path: Path) -> None:
    from arcbeam.io.parts.direct import numbered
    from arcbeam.io.parts.formats import Text
    from arcbeam.io.parts.naming import GLOBAL, Template
    from arcbeam.io.parts.staging import Staged
    from arcbeam.io.parts.work import PartFile, Work

    work = Work(str(tmp_path), Text(), Template("{shard}-{part}", destinations=False, shards=None), Roll())
    files = [
        PartFile(Staged(f"{task}.{n}", 1), GLOBAL, "", (task,), n, 1, 0, f"{9 - task}")
        for task in (3, 7)
        for n in (0, 1)
    ]
    expected = {"3.0": "00000-00000", "3.1": "00000-00001", "7.0": "00001-00000", "7.1": "00001-00001"}
    for seed in range(5):
        plains = [file.plain() for file in random.Random(seed).sample(files, 4)]
        assert {file.staged.staged: file.staged.name for file in numbered(work, plains)} == expected


def test_failed_bundle_removes_staged_files(tmp_path: Path) -> None:
    with pytest.raises(Exception, match=r"Text cannot write the record 7"), attempt(), Driven() as p:
        p | beam.Create(["a", 7]) | WriteParts(str(tmp_path))
    assert published(tmp_path) == {}


# ------------------------------------------------------------------------------------------------- in a streaming job


@pytest.mark.parametrize("shards", [None, 2])
def test_staged_files_are_published_below_their_path(tmp_path: Path, shards: int | None) -> None:
    """A restored pipeline has another path under the same label, and publishes files below the old path."""
    arguments: dict[str, Any] = {"shards": shards, "success": "_SUCCESS", "label": "Parts"}
    before, after = [write(tmp_path / at, 100, **arguments) for at in ("before", "after")]
    (tmp_path / "after").rename(tmp_path / "unpublished")
    publish(SimpleNamespace(plan=after.plan, reports=before.reports))
    files = published(tmp_path / "before")
    assert sorted(line for lines in files.values() for line in lines) == sorted(map(str, range(100)))
    assert successes(tmp_path / "before")["_SUCCESS"]["records"] == 100
    assert left(tmp_path / "before") == []
    assert not (tmp_path / "after").exists()


def test_other_job_replaces_files_only_with_overwrite(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    played = [(6, None)]
    stream(tmp_path, MicroBatches(tmp_path, *played), LINES, 0)
    first = published(tmp_path)
    again = MicroBatches(tmp_path, *played)
    stream(tmp_path, again, LINES, 0)  # the same job, restored
    assert again.seen == [first]
    monkeypatch.setattr(jobs, "JOB", "job-2")
    with pytest.raises(Exception, match=r"\bjob-1\b.* \bjob-2\b.*--checkpoint_dir"):
        stream(tmp_path, MicroBatches(tmp_path, *played), LINES[:3], 0)
    assert published(tmp_path) == first
    for other in ({"name": "other-{shard}-{part}{suffix}"}, {"format": JsonLines()}):
        stream(tmp_path, MicroBatches(tmp_path, *played), LINES, 0, **other)
    stream(tmp_path, MicroBatches(tmp_path, (3, None)), LINES[:3], 0, overwrite=True)
    assert published(tmp_path)["part-00000-00000.txt"] == ["a", "b", "c"]
    monkeypatch.setattr(jobs, "JOB", "job-1")
    with pytest.raises(Exception, match=r"\bjob-2\b.* \bjob-1\b.*--checkpoint_dir"):
        stream(tmp_path, MicroBatches(tmp_path, *played), LINES, 0)


def test_concurrent_other_job_publishes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = []
    for number in (1, 2):
        with attempt(1, token=f"{number}"), Driven(shards=2) as p:
            timed(p, 10) | WriteParts(str(tmp_path), shards=1)
        made.append(p)
        monkeypatch.setattr(jobs, "JOB", "job-2")
    publish(made[0])
    first = published(tmp_path)
    with attempt(1), Driven(shards=2) as p:
        timed(p, 10) | WriteParts(str(tmp_path), shards=1, name="other-{shard}-{part}{suffix}")
    # Also if the job is restored with other names: committed files keep theirs.
    for plan in (made[1].plan, p.plan):
        with pytest.raises(PathTakenError) as caught:
            publish(SimpleNamespace(plan=plan, reports=made[1].reports))
        check_message("parts-path-taken-when-published", str(caught.value), path=tmp_path)
    assert published(tmp_path) == first
    publish(p)
    assert len(published(tmp_path)) == 2 * len(first)


@pytest.mark.parametrize("shards", [None, 1])
def test_bounded_input_in_micro_batches_checks_owner_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shards: int | None
) -> None:
    def written() -> None:
        with attempt(1), Driven(shards=2) as p:
            timed(p, 10) | WriteParts(str(tmp_path), shards=shards)
        publish(p)

    written()
    first = published(tmp_path)
    monkeypatch.setattr(jobs, "JOB", "job-2")
    with pytest.raises(Exception, match=r"\bjob-1\b.* \bjob-2\b.*--checkpoint_dir"):
        written()
    assert published(tmp_path) == first
    assert left(tmp_path) == []


# ------------------------------------------------------------------------------------------------- what users may say


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        ({"path": ""}, "folder or URL"),
        ({"format": "text"}, "format='text'"),
        ({"roll": 5}, "roll=5"),
        ({"destination": "a"}, "destination='a'"),
        ({"shards": 0}, "shards=0"),
        ({"success": "a/b"}, "success='a/b'"),
        ({"success": ".."}, r"success: '\.\.' .* leads out"),
        ({"name": "x"}, "name='x': .*{part}"),
    ],
)
def test_invalid_arguments_are_refused(arguments: dict[str, Any], why: str) -> None:
    with pytest.raises((ValueError, TypeError), match=why):
        WriteParts(**{"path": "/tmp/x", **arguments})


def shape_of(format: Format) -> str:
    p = beam.Pipeline()
    lines = p | beam.Create([{"a": 1}], reshuffle=False)
    lines.is_bounded = False
    _ = lines | WriteParts("/tmp/x", format)
    (shape,) = [
        stage.shape for stage in translate(ParsedPipeline(pipeline_proto(p)), bounded=False).stages if stage.shape
    ]
    return shape


FORMATS: list[Callable[[], Format]] = [
    lambda: Text(),
    lambda: JsonLines(),
    lambda: Bytes(),
    lambda: Csv(["a", "b"]),
    lambda: Csv(["b", "a"]),
    lambda: Csv(["a", "b"], delimiter=";"),
    lambda: Avro("long"),
    lambda: Avro({"type": "record", "name": "R", "fields": [{"name": "a", "type": "long"}]}),
    lambda: Avro({"type": "record", "name": "R", "fields": [{"name": "a", "type": "string"}]}),
    lambda: Parquet(pa.schema([("a", pa.int64()), ("b", pa.int64())])),
    lambda: Parquet(pa.schema([("b", pa.int64()), ("a", pa.int64())])),
    lambda: Parquet(pa.schema([("a", pa.int64()), ("b", pa.int32())])),
    lambda: Parquet(pa.schema([("a", pa.int64()), pa.field("b", pa.int64(), nullable=False)])),
]


def test_format_change_prevents_resume() -> None:
    shapes = [shape_of(make()) for make in FORMATS]
    assert len(set(shapes)) == len(FORMATS)
    assert shapes == [shape_of(make()) for make in FORMATS]
    assert shapes[0].endswith("records as Text")
    # Options that only affect the file, not the waiting records, change nothing.
    assert shape_of(Csv(["a", "b"], header=False, compression="gzip", suffix=".x")) == shapes[3]
    assert shape_of(Avro("long", codec="null")) == shapes[6]
    assert Csv(["a", "b"]).waits_as() == "Csv 7fc99cdd44e1"


def test_two_transforms_with_same_names_are_refused(tmp_path: Path) -> None:
    p = beam.Pipeline()
    lines = timed(p, 10)
    lines | "One" >> WriteParts(str(tmp_path), success="_SUCCESS")
    with pytest.raises(ValueError, match=r"Two and One both write into .*, files named .* end with '.txt'"):
        lines | "Two" >> WriteParts(f"file://{tmp_path}/")
    with pytest.raises(ValueError, match=r"Three and One both write into .*, a success='_SUCCESS'"):
        lines | "Three" >> WriteParts(str(tmp_path), name="three-{shard}-{part}", success="_SUCCESS")
    lines | "Elsewhere" >> WriteParts(f"{tmp_path}/elsewhere", success="_SUCCESS")
    lines | "Another format" >> WriteParts(str(tmp_path), JsonLines())
    lines | "Other names" >> WriteParts(str(tmp_path), name="other-{shard}-{part}{suffix}")
    timed(beam.Pipeline(), 10) | WriteParts(str(tmp_path))


@pytest.mark.parametrize("name", ["bytes", "elements", "seconds", "idle_seconds"])
def test_nonpositive_roll_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match=f"{name}=0"):
        Roll(**{name: 0})


def test_other_runners_publish_staged_files(tmp_path: Path) -> None:
    with beam.Pipeline(runner=FnApiRunner()) as p:
        timed(p, 10) | WriteParts(str(tmp_path), shards=2, success="_SUCCESS")
    assert sorted(line for lines in published(tmp_path).values() for line in lines) == sorted(map(str, range(10)))
    assert successes(tmp_path)["_SUCCESS"]["records"] == 10
