"""Part files of streaming jobs on Spark, on local disk and S3: after suspend, resume and drain, each record once."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import apache_beam as beam
import pytest
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.transforms import window

from arcbeam import ArcbeamRunner
from arcbeam.io import Roll, WriteParts
from arcbeam.io.parts.places import staging_for
from tests.spark.streaming.fed import fed, feed
from tests.store.backends import s3_server
from tests.waiting import while_running

pytestmark = pytest.mark.usefixtures("spark")

Files = dict[str, bytes]


class Place:
    """The folder of part files: what readers see, and what is staged."""

    def __init__(self, path: str, options: dict[str, Any]) -> None:
        self.path = path
        self.options = [f"--{name}={value}" for name, value in options.items()]
        self._staging = staging_for(path, options)

    def _names(self) -> list[str]:
        if not self.path.startswith("s3://"):
            root = Path(self.path)
            return [str(path.relative_to(root)) for path in root.rglob("*") if path.is_file()]
        s3, prefix = self._staging._s3, self._staging._prefix  # type: ignore[attr-defined]
        listed = s3.list_objects_v2(Bucket="jobs", Prefix=prefix).get("Contents", ())
        return [each["Key"].removeprefix(prefix) for each in listed]

    def files(self, beginning: str = "") -> dict[str, bytes]:
        """Return what readers see, without hidden names."""
        names = [name for name in self._names() if name.startswith(beginning or ("part", "d"))]
        names = [name for name in names if beginning or "_SUCCESS" not in name]
        return {name: data for name in sorted(names) if (data := self._staging.get(name)) is not None}

    def lines(self) -> list[str]:
        return sorted((line for data in self.files().values() for line in data.decode().splitlines()), key=int)

    def staged(self) -> int:
        return len(list(self._staging.leftovers()))


@pytest.fixture
def local(tmp_path: Path) -> Place:
    return Place(str(tmp_path / "out"), {})


@pytest.fixture
def s3() -> Iterator[Place]:
    with s3_server() as endpoint:
        names = {"endpoint_url": endpoint, "access_key_id": "k", "secret_access_key": "s", "region_name": "us-east-1"}
        yield Place(f"s3://jobs/{uuid.uuid4().hex}", {f"s3_{name}": value for name, value in names.items()})


def submit(source: Path, state: Path, place: Place, windowed: Any, shards: int = 2, **arguments: Any) -> Any:
    options = ["--streaming", f"--shards={shards}", f"--checkpoint_dir={state}", *place.options]
    p = beam.Pipeline(runner=ArcbeamRunner(), options=PipelineOptions(options))
    lines = fed(p, source) | "Line" >> beam.Map(str).with_output_types(str) | "Windows" >> beam.WindowInto(windowed)
    _ = lines | WriteParts(place.path, **arguments)
    return p.run()


@pytest.mark.contract("END-03", "END-01", "END-06", "STORE-01", "STORE-12")
@pytest.mark.parametrize(("kind", "shards"), [("local", 5), pytest.param("s3", 2, marks=pytest.mark.long)])
def test_open_parts_survive_suspension_and_windows_complete(
    tmp_path: Path, kind: str, shards: int, request: pytest.FixtureRequest
) -> None:
    place: Place = request.getfixturevalue(kind)
    source, state = tmp_path / "source", tmp_path / "state"
    reported = {"roll": Roll(elements=20), "success": "_SUCCESS", "destination": lambda line: f"d{int(line) % 2}"}
    feed(source, 95)
    first = submit(source, state, place, window.FixedWindows(50), **reported)
    # A closed window is complete; of the other one, with 45 lines, only full parts exist.
    while_running(first, lambda: len(place.lines()) == 50 + 20 + 20)
    first.suspend()
    seen = place.files()
    assert place.lines()[:50] == [str(n) for n in range(50)]
    assert place.staged() == 0

    feed(source, 120, end=True)
    assert submit(source, state, place, window.FixedWindows(50), shards, **reported).wait_until_finish() == "DONE"
    assert place.lines() == [str(n) for n in range(120)]
    assert place.staged() == 0
    assert all(place.files()[name] == data for name, data in seen.items()), "published files must not change"
    over = [json.loads(data) for half in (0, 1) for data in place.files(f"d{half}/_SUCCESS").values()]
    assert sum(success["records"] for success in over) == 120
    assert sorted(file["name"] for success in over for file in success["files"]) == sorted(
        name for name in place.files() if "_SUCCESS" not in name
    )


@pytest.mark.contract("END-02", "END-06")
@pytest.mark.parametrize("kind", ["s3", pytest.param("local", marks=pytest.mark.long)])
def test_drain_closes_and_publishes_all_parts(tmp_path: Path, kind: str, request: pytest.FixtureRequest) -> None:
    place: Place = request.getfixturevalue(kind)
    source, state = tmp_path / "source", tmp_path / "state"
    feed(source, 25)
    roll = Roll(elements=10, seconds=86_400)
    job = submit(source, state, place, window.GlobalWindows(), roll=roll)
    while_running(job, lambda: len(place.files()) == 2)
    assert place.lines() == [str(n) for n in range(20)]
    job.drain()
    assert job.wait_until_finish() == "DRAINED"
    assert place.lines() == [str(n) for n in range(25)]
    assert place.staged() == 0
