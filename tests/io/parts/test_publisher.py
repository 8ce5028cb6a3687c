"""A bounded pipeline that runs again: its files replace earlier ones, whichever process dies when."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import apache_beam as beam
import pytest
from apache_beam.transforms import window

from arcbeam import documents
from arcbeam.io import JsonLines, Roll, WriteParts
from arcbeam.io.parts import successes
from arcbeam.io.parts.local import LocalStaging
from arcbeam.io.parts.publisher import Replacing
from arcbeam.io.parts.staging import Staged, Staging
from arcbeam.io.parts.work import VERSION
from arcbeam.model.attempts import Attempt
from tests.harness.drive import Collect, Driven
from tests.io.parts.jobs import attempt, left, publish, published

pytestmark = pytest.mark.contract("END-06")


class Killed(BaseException):
    """Simulates kill -9."""


def write(folder: Path, count: int, roll: int, **arguments: Any) -> Driven:
    with attempt(), Driven(shards=2) as p:
        lines = p | beam.Create(range(count), reshuffle=False)
        lines |= "Timed" >> beam.Map(lambda n: window.TimestampedValue(str(n), n)).with_output_types(str)
        lines |= "Windows" >> beam.WindowInto(window.FixedWindows(50))
        lines | WriteParts(str(folder), roll=Roll(elements=roll), **arguments) | Collect()
    return p


def lines(folder: Path) -> list[int]:
    return sorted(int(line) for some in published(folder).values() for line in some)


@pytest.mark.parametrize("shards", [None, 2])
@pytest.mark.parametrize("success", [None, "_SUCCESS"])
def test_surplus_files_of_earlier_run_are_removed(tmp_path: Path, shards: int | None, success: str | None) -> None:
    arguments = {"shards": shards, "success": success}
    publish(write(tmp_path, 100, 7, **arguments))
    many = len(published(tmp_path))
    publish(write(tmp_path, 100, 30, **arguments), times=2)
    assert len(published(tmp_path)) < many
    assert lines(tmp_path) == list(range(100))
    assert left(tmp_path) == []


def test_success_file_is_of_newest_micro_batch(tmp_path: Path) -> None:
    """Also after the job was restored from a savepoint, where a window may have fewer files than before."""
    staging = LocalStaging(str(tmp_path))

    def put(job: str, micro_batch: int, files: int) -> int:
        listed = [[f"part-{n}", 10, 20] for n in range(files)]
        fields = {
            "job": job,
            "micro_batch": micro_batch,
            "name": "_SUCCESS",
            "staged": f".arcbeam/runner/job/{micro_batch}-t-1",
        }
        successes.put(staging, {**fields, "window": "global", "destination": "", "files": listed})
        return len(json.loads(staging.get("_SUCCESS") or b"")["files"])

    assert put("job", 7, 3) == 3
    assert put("job", 5, 4) == 3, "published again"
    assert put("job", 9, 2) == 2
    assert put("other", 1, 1) == 1


@pytest.mark.parametrize("call", ["put", "publish", "delete"])
@pytest.mark.parametrize("turn", [1, 2])
@pytest.mark.parametrize("happened", [False, True])
def test_killed_publishing_is_completed_by_next_run(
    tmp_path: Path, call: str, turn: int, happened: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(write(tmp_path, 100, 7))
    p = write(tmp_path, 100, 20)
    of, turns = getattr(LocalStaging, call), []

    def dying(*arguments: Any) -> Any:
        turns.append(call)
        if len(turns) < turn or happened:
            of(*arguments)
        if len(turns) == turn:
            raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(LocalStaging, call, dying)
        with pytest.raises(Killed):
            publish(p)
    publish(write(tmp_path, 100, 30))
    assert lines(tmp_path) == list(range(100))


def test_other_windows_destinations_and_formats_stay(tmp_path: Path) -> None:
    to = {"destination": lambda line: f"d{int(line) % 2}"}
    publish(write(tmp_path, 100, 7, **to))
    publish(write(tmp_path, 100, 7, format=JsonLines(), **to))
    before = published(tmp_path)
    with attempt(), Driven() as p:
        few = p | beam.Create([0, 2]) | beam.Map(lambda n: window.TimestampedValue(str(n), n)).with_output_types(str)
        few | beam.WindowInto(window.FixedWindows(50)) | WriteParts(str(tmp_path), roll=Roll(elements=9), **to)
    publish(p)
    after = published(tmp_path)
    gone = [name for name in before if name.startswith("d0/part-19700101T000000Z") and name.endswith(".txt")]
    assert len(gone) > 1
    assert {name: some for name, some in after.items() if name not in gone} == {
        name: some for name, some in before.items() if name not in gone
    }
    assert sorted(line for name, some in after.items() if name in gone for line in some) == ["0", "2"]


def test_lists_are_stored_on_every_file_system(staging: Staging, names: Callable[[], list[str]]) -> None:
    def run(*files: str) -> None:
        made = []
        for name in files:
            writing = staging.begin(Attempt("job-1", 0, (0,), "t"), name)
            writing.write(b"x")
            staged = writing.finish()
            made.append(Staged(staged.staged, staged.size, name, staged.upload))
        replacing = Replacing(".arcbeam/files/0.json", ".arcbeam/job-1/0-t-list", "job-1", frozenset(files), "")
        replacing.begin(staging)
        staging.publish(made)
        replacing.end(staging)

    run("a", "b/c", "d")
    run("a", "e")
    assert names() == ["a", "e"]
    run("d")
    assert names() == ["d"]
    assert list(staging.leftovers()) == []
    staging.delete(["a"])


def test_later_run_is_not_undone(tmp_path: Path) -> None:
    staging = LocalStaging(str(tmp_path))
    old, new = (Replacing(".arcbeam/files/0.json", ".arcbeam/j/0-t-0", "j", frozenset(n), "") for n in ("a", "b"))
    for name in "abc":
        staging.put(name, b"x", ".arcbeam/j/0-t-1")
    staging.put(old.name, documents.encode(VERSION, {"files": ["c"], "before": []}), old.staged)
    old.begin(staging)
    new.begin(staging)
    old.end(staging)
    assert staging.get("c") == b"x"
    new.end(staging)
    assert (staging.get("a"), staging.get("b"), staging.get("c")) == (None, b"x", None)


def test_invalid_list_is_named(tmp_path: Path) -> None:
    staging = LocalStaging(str(tmp_path))
    replacing = Replacing(".arcbeam/files/0.json", ".arcbeam/j/0-t-0", "j", frozenset("a"), "")
    for data in (b"x", b"[]", documents.encode(VERSION, {"files": ["../x"], "before": []})):
        staging.put(replacing.name, data, replacing.staged)
        with pytest.raises(ValueError, match=r"files/0\.json is not a valid list"):
            replacing.begin(staging)
