"""A submission with the folder of a job that has ended: its own pipeline finishes it, another one is refused."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest

from arcbeam.model.commits import CommitMode, Committable
from arcbeam.model.fingerprint import Fingerprint
from arcbeam.model.plan import Channel, Plan, Routing, Stage
from arcbeam.model.timestamps import Timestamp
from arcbeam.store.blobs.errors import IncompatibleStateError, JobEndedError
from arcbeam.store.log.savepoints import pinned
from arcbeam.store.manifest.jobgraphfile import JobGraph
from arcbeam.streaming.restore.restore import RestoreOptions, Taken, restore
from arcbeam.testing.blobs import MemoryBlobs
from tests.golden import check_message

pytestmark = pytest.mark.contract("END-01", "END-02", "STORE-05")

VERSIONS = {"python": "3.11", "beam": "2.77", "arcbeam": "1"}
LEFT = (Committable("sum/publish", b"part"),)


def plan(sum: str = "sum") -> Plan:
    """A source, and a stage with state that publishes."""
    return Plan(
        "job",
        (
            Stage("s0", "read", (), b"", None, (0,), uid="read"),
            Stage("s1", "sum", (), b"", 0, (), uid=sum, shape="cells", publishers=(f"{sum}/publish",)),
        ),
        (Channel(0, "rows", Routing.KEYED, "", "", ("s0",), ("s1",)),),
        bounded=False,
    )


def job_graph(sum: str = "sum", content: str = "code", versions: Mapping[str, str] = VERSIONS, **more: str) -> JobGraph:
    """The job graph of such a plan; `more` are further transforms that read `sum`, and their code."""
    transforms = {
        "read": Fingerprint("impulse", (), ""),
        sum: Fingerprint("pardo", ("read",), content),
        **{name: Fingerprint("pardo", (sum,), code) for name, code in more.items()},
    }
    return JobGraph("job", b"proto", versions=versions, transforms=transforms)


def taken(blobs: MemoryBlobs, how: RestoreOptions, sum: str = "sum") -> Taken:
    return restore(plan(sum), blobs, how, shards=4, now=Timestamp(1), driver="here")


def ended(mode: CommitMode = CommitMode.DONE, kept: JobGraph | None = None) -> MemoryBlobs:
    """A job that has ended; its last micro-batch may be unpublished."""
    blobs = MemoryBlobs()
    log = taken(blobs, RestoreOptions(job_graph=kept or job_graph())).log
    log.propose(pinned(replace(log.draft(Timestamp(4)), mode=mode, committables=LEFT), "end"))
    return blobs


@pytest.mark.parametrize("mode", [CommitMode.DONE, CommitMode.DRAINED])
def test_same_pipeline_again_writes_nothing(mode: CommitMode) -> None:
    blobs = ended(mode)
    before = dict(blobs.data)
    for again in (job_graph(), replace(job_graph(), name="another", options={"spark_master": "local[1]"})):
        log = taken(blobs, RestoreOptions(job_graph=again)).log
        assert (log.head.mode, log.head.committables) == (mode, LEFT)
        assert blobs.data == before


@pytest.mark.parametrize("mode", [CommitMode.DONE, CommitMode.DRAINED])
@pytest.mark.parametrize(
    ("other", "line"),
    [
        (job_graph(content="other code"), "'sum' has other code, arguments or windows"),
        (job_graph(write="code"), "'write' is new"),
        (replace(job_graph(), transforms={"read": Fingerprint("impulse", (), "")}), "'sum' is missing"),
    ],
)
def test_another_pipeline_is_refused_and_leaves_nothing(mode: CommitMode, other: JobGraph, line: str) -> None:
    blobs = ended(mode)
    before = dict(blobs.data)
    for drop in (False, True):
        with pytest.raises(IncompatibleStateError) as refused:
            taken(blobs, RestoreOptions(job_graph=other, drop=drop))
        assert f"  - {line}" in refused.value.message.splitlines()
        assert blobs.data == before
    assert taken(blobs, RestoreOptions(job_graph=job_graph())).log.head.mode is mode, (
        "the job's own is not refused after that"
    )
    assert taken(blobs, RestoreOptions(job_graph=other, force=True)).log.head.mode is CommitMode.RUNNING


def test_refusal_names_differences_and_remedies() -> None:
    kept = job_graph(write="a", count="b")
    changed = {**kept.transforms, "sum": Fingerprint("pardo", ("read", "late"), "")}
    del changed["write"]
    other = replace(kept, transforms={**changed, "late": Fingerprint("impulse", (), "")})
    with pytest.raises(IncompatibleStateError) as refused:
        taken(ended(kept=kept), RestoreOptions(job_graph=other))
    check_message("ended-job-another-pipeline", str(refused.value))
    many = replace(kept, transforms={**kept.transforms, **{f"more {n:02}": changed["sum"] for n in range(20)}})
    with pytest.raises(IncompatibleStateError) as refused:
        taken(ended(kept=kept), RestoreOptions(job_graph=many))
    assert refused.value.message.splitlines()[9] == "  - and 12 more"


def test_renamed_transforms_are_the_same_pipeline() -> None:
    blobs = ended(kept=job_graph(**{"sum/publish": "x"}))
    before = dict(blobs.data)
    now = replace(job_graph("total"), transforms=job_graph("total", **{"total/publish": "x"}).transforms)
    with pytest.raises(IncompatibleStateError):
        taken(blobs, RestoreOptions(job_graph=now), "total")
    for _ in range(2):
        head = taken(blobs, RestoreOptions(job_graph=now, renamed={"sum": "total"}), "total").log.head
        assert [of.stage for of in head.committables] == ["total/publish"]
        assert blobs.data == before


def test_code_of_other_versions_is_not_compared() -> None:
    newer = {**VERSIONS, "python": "3.12"}
    blobs = ended()
    assert (
        taken(blobs, RestoreOptions(job_graph=job_graph(content="same source", versions=newer))).log.head.committables
        == LEFT
    )
    with pytest.raises(IncompatibleStateError):
        taken(blobs, RestoreOptions(job_graph=job_graph(write="code", versions=newer)))


def test_job_without_fingerprints_is_compared_by_stages() -> None:
    for kept in (replace(job_graph(), transforms={}), None):
        blobs = MemoryBlobs()
        log = taken(blobs, RestoreOptions(job_graph=kept)).log
        log.propose(replace(log.draft(Timestamp(4)), mode=CommitMode.DONE))
        before = dict(blobs.data)
        taken(blobs, RestoreOptions(job_graph=job_graph()))
        with pytest.raises(IncompatibleStateError):
            taken(blobs, RestoreOptions(job_graph=job_graph("total")), "total")
        assert blobs.data == before


def test_other_shards_or_savepoint_are_refused() -> None:
    blobs = ended()
    before = dict(blobs.data)
    with pytest.raises(IncompatibleStateError, match="has 4 shards"):
        taken(blobs, RestoreOptions(job_graph=job_graph(), shards=7))
    with pytest.raises(JobEndedError):
        taken(blobs, RestoreOptions("end", job_graph=job_graph()))
    assert blobs.data == before
