"""The effect of a request on a job in a folder, and what is left there: the table of docs/reference/what-stays.md."""

from __future__ import annotations

from pathlib import Path

import pytest

from arcbeam.errors import RequestRefusedError
from arcbeam.model.commits import CommitMode, deletion, renaming
from arcbeam.model.files import Shard
from arcbeam.model.timestamps import Timestamp
from arcbeam.store.blobs.durable import DurableBlobs
from arcbeam.store.blobs.errors import StoreError
from arcbeam.store.blobs.folder import FolderBlobs
from arcbeam.store.log import requests
from arcbeam.store.log.commitlog import CommitLog, Committed
from arcbeam.store.log.endnote import EndNote, note_of, record_end
from arcbeam.store.log.inspection import inspect
from arcbeam.store.log.requests import RequestKind
from arcbeam.store.log.savepoints import change_stopped, pinned
from arcbeam.store.log.sweep import Sweeper
from arcbeam.store.manifest.names import Written
from arcbeam.store.shards.cache import HostCache
from tests.jobs.staying.tables import cells_for
from tests.store.samples import opened, read_head, version

ENDS = {"suspended": CommitMode.SUSPENDED, "done": CommitMode.DONE, "drained": CommitMode.DRAINED}
REQUESTS = {
    "savepoint": RequestKind.SAVEPOINT,
    "suspend": RequestKind.SUSPEND,
    "drain": RequestKind.DRAIN,
    "cancel": RequestKind.CANCEL,
    "delete savepoint": RequestKind.DELETE,
    "rename savepoint": RequestKind.RENAME,
}


def micro_batch(log: CommitLog, cache: HostCache, name: str = "", mode: CommitMode | None = None) -> None:
    """Commit a micro-batch with its own state file, which replaces all earlier ones."""
    number = log.head.micro_batch + 1
    at = version(log.head, 1, 0)
    view = cache.view(log.blobs, at)
    view.put(b"key", b"%d" % number)
    delta = cache.publish(log.blobs, at, Written(1, 0, number, log.epoch, "a", "delta"), view, number)
    view.close()
    assert delta is not None
    draft = log.draft(Timestamp(number), shards=(Shard(1, 0, (*at.files, delta)),))
    if mode is not None:
        draft = log.draft(Timestamp(number), mode=mode)
    assert isinstance(log.propose(pinned(draft, name) if name else draft), Committed)


def put_into(folder: Path, state: str) -> DurableBlobs:
    """Return a job in a state, by the name of its row, with the savepoint "safe"."""
    blobs = FolderBlobs(folder / "job", sync=False)
    log, cache = opened(blobs), HostCache(folder / "cache")
    micro_batch(log, cache, name="safe")
    micro_batch(log, cache)
    if state in ENDS:
        micro_batch(log, cache, mode=ENDS[state])
    elif state == "draining":
        micro_batch(log, cache, mode=CommitMode.DRAINING)
    elif state in ("failed", "cancelled"):
        record_end(blobs, EndNote(log.epoch, state.upper()))
    elif state.startswith("asked"):
        requests.ask(blobs, RequestKind.SUSPEND if "suspend" in state else RequestKind.SAVEPOINT, "other", Timestamp(1))
    return blobs


def ask(blobs: DurableBlobs, request: str, folder: Path) -> None:
    """Make a request by the name of its column."""
    if request == "resume":
        log = opened(blobs)
        for _ in range(12):
            micro_batch(log, HostCache(folder / "resumed"), mode=None)
            Sweeper(log, keep=1).sweep()
        return
    what = REQUESTS[request]
    name, new = "wanted", ""
    if what is RequestKind.CANCEL:
        name = ""
    elif what in (RequestKind.DELETE, RequestKind.RENAME):
        name, new = "safe", "safer" if what is RequestKind.RENAME else ""
    head = read_head(blobs)
    assert head is not None
    if what in (RequestKind.DELETE, RequestKind.RENAME) and head.mode in ENDS.values():
        change = deletion(name) if what is RequestKind.DELETE else renaming(name, new)
        change_stopped(blobs, change, Timestamp(100))
    else:
        requests.ask(
            blobs,
            what,
            "" if what is RequestKind.CANCEL else name,
            Timestamp(2),
            new if what is RequestKind.RENAME else "",
        )


def left(blobs: DurableBlobs) -> str:
    """Return the job's mode, and the letters of what exists of it. All its files must be readable."""
    head = read_head(blobs)
    assert head is not None
    for name in ("", *(pin.name for pin in head.pins)):
        found = inspect(blobs, savepoint=name, check=True)
        assert (found.damaged, found.problems) == ((), ())
    there = {"P": bool(head.pins), "Q": bool(requests.waiting(blobs)), "N": note_of(blobs, head) is not None}
    return f"{head.mode} {''.join(letter for letter, is_there in there.items() if is_there)}".strip()


@pytest.mark.contract("OPS-02", "STORE-05")
@pytest.mark.parametrize(("state", "request_", "expected"), list(cells_for(__file__)))
def test_request_leaves_what_the_table_says(tmp_path: Path, state: str, request_: str, expected: str) -> None:
    blobs = put_into(tmp_path, state)
    before = left(blobs)
    if expected.startswith("refused"):
        with pytest.raises((RequestRefusedError, StoreError)):
            ask(blobs, request_, tmp_path)
        assert left(blobs) == before, "a request that is refused changes nothing"
        assert f"refused {before.partition(' ')[2]}" == expected
    else:
        ask(blobs, request_, tmp_path)
        assert left(blobs) == expected


def test_the_table_has_every_request() -> None:
    assert {request for _, request, _ in cells_for(__file__)} == {*REQUESTS, "resume"}
