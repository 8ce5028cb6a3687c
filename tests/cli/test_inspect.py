"""`arcbeam inspect`, for people and for programs."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from arcbeam.cli import main
from arcbeam.model.files import Shard
from arcbeam.model.timestamps import MAX_TIMESTAMP, MIN_TIMESTAMP, Timestamp
from arcbeam.store.blobs.folder import FolderBlobs
from arcbeam.store.log import jobgraphs, requests
from arcbeam.store.log.commitlog import CommitLog
from arcbeam.store.log.savepoints import pinned
from arcbeam.store.manifest.jobgraphfile import JobGraph
from arcbeam.store.manifest.names import Written
from arcbeam.store.manifest.values import (
    HoldSummary,
    JobShape,
    OutputWatermark,
    ResidualSummary,
    StageShape,
    StageWatermarks,
)
from arcbeam.store.shards.compaction import publish
from arcbeam.store.shards.shardfile import in_blocks
from tests.golden import check_message

pytestmark = pytest.mark.contract("STORE-05", "OPS-02")


def invoke(*arguments: str) -> Result:
    return CliRunner().invoke(main.main, ["inspect", *arguments])


@pytest.fixture
def job(tmp_path: Path) -> Path:
    blobs = FolderBlobs(tmp_path / "job", sync=False)
    shape = JobShape("plan", 4, (StageShape("words/count", 1, "cells"),))
    log = CommitLog.open(blobs, shape, Timestamp(0), driver="host-a, process 7", token=iter("abcdef").__next__)
    written = Written(1, 3, 1, log.epoch, "a", "delta")
    file = publish(
        blobs, tmp_path, written, in_blocks([(b"k", b"v"), (b"l", None)]), first_micro_batch=1, last_micro_batch=1
    )
    draft = log.draft(
        Timestamp(1_700_000_000_123_456),
        shards=(Shard(1, 3, (file,)),),
        watermarks=(
            StageWatermarks("words/count", MAX_TIMESTAMP, Timestamp(-1), (OutputWatermark("out", MIN_TIMESTAMP),)),
        ),
        holds=(HoldSummary("words/count", 12, Timestamp(0), "a timer"),),
        residuals=(ResidualSummary("words/count", 2, 0.5, Timestamp(1_000_000)),),
    )
    log.propose(pinned(draft, "safe"))
    return tmp_path / "job"


def test_inspect_prints_tables(job: Path) -> None:
    result = invoke(str(job), "--check")
    assert result.exit_code == 0, result.output
    lines = [" ".join(line.split()) for line in result.stdout.splitlines()]
    assert lines[0] == f"job: b in {job}"
    assert re.fullmatch(
        r"micro_batch: 1 \(job: running\), committed at 2023-11-14 22:13:20.123456Z \([\d,]+ days ago\)",
        lines[1],
    )
    assert lines[2] == "driver: epoch 1, host-a, process 7"
    assert (
        "words/count end of time 1969-12-31 23:59:59.999999Z beginning of time 12 from 1970-01-01 00:00:00Z: a timer "
        "2 of size 0.5, next due 1970-01-01 00:00:01Z"
    ) in lines
    assert any(line.startswith("1 1 of 4 1 1 1 ") for line in lines), "the state of level 1"
    assert "safe 1 2023-11-14 22:13:20.123456Z" in lines
    assert lines[-1] == "files: complete and readable"


def test_inspect_prints_json(job: Path) -> None:
    result = invoke(str(job), "--json", "--micro-batches", "1")
    found = json.loads(result.stdout)
    assert (found["micro_batch"], found["mode"], found["time"]) == (1, "running", 1_700_000_000_123_456)
    assert found["stages"][0]["outputs"] == [{"output": "out", "watermark": MIN_TIMESTAMP}]
    assert [micro_batch["micro_batch"] for micro_batch in found["micro_batches"]] == [1]
    assert found["problems"] is None


def test_missing_file_is_reported(job: Path) -> None:
    (file,) = (job / "shards").rglob("*.delta")
    file.unlink()
    result = invoke(str(job), "--check")
    assert result.exit_code == 1
    assert f"  - 'shards/1/3/{file.name}' is missing in '{job}'" in result.stdout


def test_folder_without_job_is_an_error(tmp_path: Path) -> None:
    result = invoke(str(tmp_path))
    assert result.exit_code == 1
    assert str(tmp_path) in result.stderr
    (tmp_path / "manifests").mkdir()
    (tmp_path / "manifests" / "000000000000").write_bytes(b"something else")
    result = invoke(str(tmp_path), "--json")
    assert result.exit_code == 1
    error = json.loads(result.stderr)["error"]
    assert error["type"] == "DamagedFileError"
    assert "'manifests/000000000000'" in error["message"]


def test_micro_batch_and_savepoint_exclude_each_other(job: Path) -> None:
    assert invoke(str(job), "--micro-batch", "0").exit_code == 0
    assert invoke(str(job), "--savepoint", "safe").exit_code == 0
    assert invoke(str(job), "--micro-batch", "1", "--savepoint", "safe").exit_code == 2


def test_inspect_accepts_path_of_savepoint(job: Path) -> None:
    shown = json.loads(invoke(f"{job}/savepoints/safe", "--json").stdout)
    assert (shown["location"], shown["micro_batch"]) == (str(job), 1)
    assert invoke(f"{job}/savepoints/safe", "--micro-batch", "1").exit_code == 2
    missing = invoke(f"{job}/savepoints/other", "--json")
    assert (missing.exit_code, "'other'" in json.loads(missing.stderr)["error"]["message"]) == (1, True)


def test_inspect_shows_job_graph_and_requests(job: Path) -> None:
    blobs = FolderBlobs(job, sync=False)
    assert "resume: run its script again: the folder holds no job graph" in [
        " ".join(line.split()) for line in invoke(str(job)).stdout.splitlines()
    ]
    name = jobgraphs.keep(blobs, JobGraph("words", b"proto", versions={"python": "3.11", "beam": "2.77.0"}), {}, 2, "")
    shape = JobShape("plan", 4, (StageShape("words/count", 1, "cells"),))
    CommitLog.open(blobs, shape, Timestamp(9), job_graph=lambda *_: name)
    requests.ask(blobs, requests.RequestKind.DRAIN, "last", Timestamp(5))
    lines = [" ".join(line.split()) for line in invoke(str(job)).stdout.splitlines()]
    assert {f"resume: arcbeam resume {job}", "job graph: 'words' of Beam 2.77.0, Python 3.11"} <= set(lines)
    assert any(line.startswith(f"job: words in {job} (id ") for line in lines)
    assert "drain last 2" in lines
    shown = json.loads(invoke(str(job), "--json").stdout)
    assert shown["requests"] == [{"what": "drain", "savepoint": "last", "micro_batch": 2}]
    assert shown["job_graph"]["file"] == name
    (job / name).write_bytes(b"something else")
    result = invoke(str(job))
    assert result.exit_code == 1
    assert f"'{name}' in '{job}'" in result.stdout


def test_damaged_manifest_shows_readable_rest(job: Path) -> None:
    newest = job / "manifests" / f"{2:012}"
    newest.write_bytes(b"something else")
    result = invoke(str(job))
    assert result.exit_code == 1
    lines = [" ".join(line.split()) for line in result.stdout.splitlines()]
    check_message("inspect-damaged-manifest", "\n".join(lines[:3]), FOLDER=job)
    assert lines[3] == ""
    assert lines[5].startswith("micro_batch: 1 (job: running)")
    result = invoke(str(job), "--json")
    assert result.exit_code == 1
    found = json.loads(result.stdout)
    assert (found["micro_batch"], len(found["damaged"])) == (1, 1)
