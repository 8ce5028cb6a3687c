"""A job resumes although its script has put other random parts into labels; nothing is guessed."""

from __future__ import annotations

from dataclasses import replace

import pytest

from arcbeam.model.commits import CommitMode, Committable
from arcbeam.model.files import FileKind, Shard, ShardFile
from arcbeam.model.fingerprint import Fingerprint
from arcbeam.model.timestamps import Timestamp
from arcbeam.store.blobs.errors import IncompatibleStateError
from arcbeam.store.manifest.jobgraphfile import JobGraph
from arcbeam.store.manifest.names import Written, written_name
from arcbeam.store.manifest.values import OutputWatermark, StageWatermarks
from arcbeam.streaming.driverstate import Progress, progress_of
from arcbeam.streaming.restore.restore import RestoreOptions, Taken
from arcbeam.testing.blobs import MemoryBlobs
from tests.streaming.restore.test_restore import plan, taken

pytestmark = pytest.mark.contract("STORE-05")


def label(part: str) -> str:
    return f"Detect/Score (Z-{part})"


def job_graph(*parts: str, code: str = "score", beam: str = "2.77.0") -> JobGraph:
    """A source, and a transform with state for each part, which are alike."""
    transforms = {"read": Fingerprint("ParDo", (), "read")}
    transforms |= {f"{label(part)}/ParDo": Fingerprint("ParDo", ("read",), code) for part in parts}
    return JobGraph("job", b"proto", versions={"python": "3.11", "beam": beam}, transforms=transforms)


def resumed(blobs: MemoryBlobs, part: str, *parts: str, how: RestoreOptions = RestoreOptions(), **made: str) -> Taken:
    return taken(blobs, plan(f"{label(part)}/ParDo"), replace(how, job_graph=job_graph(part, *parts, **made)))


def begun(*parts: str, mode: CommitMode = CommitMode.RUNNING) -> MemoryBlobs:
    blobs, stage = MemoryBlobs(), f"{label(parts[0])}/ParDo"
    log = resumed(blobs, *parts).log
    name = written_name(Written(1, 0, 1, log.epoch, "a", "delta"))
    file = ShardFile(name, FileKind.DELTA, 9, 0, 1, 0, b"a", b"a", 1, 1)
    draft = log.draft(
        Timestamp(2),
        shards=(Shard(1, 0, (file,)),),
        watermarks=(StageWatermarks(stage, Timestamp(3), Timestamp(3), (OutputWatermark("out", Timestamp(3)),)),),
        progress=Progress(("read",), "", {"read": 1, stage: 2}).encoded(),
    )
    log.propose(replace(draft, mode=mode, committables=(Committable(f"{stage}/publish", b"a"),)))
    return blobs


def test_stage_with_other_random_label_keeps_its_state() -> None:
    blobs = begun("54a7b9")
    for part, before in (("0c3d1e", "54a7b9"), ("0c3d1e", None), ("ffffff", "0c3d1e")):
        job = resumed(blobs, part)
        stage = f"{label(part)}/ParDo"
        assert job.relabelled == ({} if before is None else {label(before): label(part)})
        assert job.numbers == {"read": 1, stage: 2}
        assert progress_of(job.log.head).numbers == {"read": 1, stage: 2}, "also if no micro-batch follows"
        assert [of.stage for of in job.log.head.watermarks] == [stage]
        assert [of.stage for of in job.log.head.committables] == [f"{stage}/publish"]
        assert job.dropped == ()
        warned = (
            []
            if before is None
            else [f"'{label(before)}' is resumed as '{label(part)}': only random parts of the labels differ"]
        )
        assert list(job.warnings(RestoreOptions())) == warned


def test_ambiguous_labels_are_refused_by_name() -> None:
    blobs = begun("54a7b9", "54a7ba")
    before = dict(blobs.data)
    with pytest.raises(IncompatibleStateError) as refused:
        resumed(blobs, "0c3d1e", "0c3d1f")
    assert "'Detect/Score (Z-54a7b9)/ParDo', 'Detect/Score (Z-54a7ba)/ParDo' and" in refused.value.message
    assert f"stage '{label('54a7b9')}/ParDo' has state" in refused.value.message
    assert blobs.data == before
    # The user can say which one it is; then the other one is clear.
    mapped = {label("54a7b9"): label("0c3d1f")}
    job = taken(
        blobs,
        plan(f"{label('0c3d1f')}/ParDo"),
        RestoreOptions(renamed=mapped, job_graph=job_graph("0c3d1e", "0c3d1f")),
    )
    assert job.numbers[f"{label('0c3d1f')}/ParDo"] == 2
    assert job.relabelled == {label("54a7ba"): label("0c3d1e")}


def test_other_code_is_refused() -> None:
    with pytest.raises(IncompatibleStateError, match="nothing has the code and the place of 'Detect/Score"):
        resumed(begun("54a7b9"), "0c3d1e", code="other")


def test_code_of_another_version_is_not_compared() -> None:
    with pytest.raises(IncompatibleStateError, match=r"stage 'Detect/Score .* has state"):
        resumed(begun("54a7b9"), "0c3d1e", beam="2.76.0")


def test_state_is_dropped_on_request() -> None:
    job = resumed(begun("54a7b9"), "0c3d1e", how=RestoreOptions(drop=True))
    assert job.relabelled == {}
    assert job.dropped
    assert job.numbers[f"{label('0c3d1e')}/ParDo"] == 3


def test_ended_job_is_finished_under_its_new_label() -> None:
    blobs = begun("54a7b9", mode=CommitMode.DONE)
    before = dict(blobs.data)
    assert resumed(blobs, "0c3d1e").log.head.mode is CommitMode.DONE
    assert blobs.data == before
    with pytest.raises(IncompatibleStateError, match=r"'Detect/Score .* is new"):
        resumed(blobs, "0c3d1e", code="other")
