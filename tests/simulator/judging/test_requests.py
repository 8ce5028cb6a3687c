"""`requests` finds requests that are not carried out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest

from arcbeam.engine.coordinator import (
    CancelRequested,
    Command,
    DrainRequested,
    End,
    EndState,
    Event,
    Propose,
    SavepointRequested,
    SuspendRequested,
    TearDown,
    Warn,
)
from arcbeam.engine.watermarks.stages import WatermarkTimes
from arcbeam.model.commits import CommitMode
from arcbeam.model.timestamps import Timestamp
from arcbeam.store.manifest.values import JobShape, Manifest, ManifestKind, Pin
from simulator.judging.records import Broken
from simulator.judging.requests import REFUSED, WHILE_COMMITTING, RequestChecks

NOW = Timestamp(0)
TOLD_SO = Warn("savepoint 's' is not made: the job is cancelling")


def manifest(
    micro_batch: int, *pins: Pin, mode: CommitMode = CommitMode.RUNNING, opening: int = 0, progress: bytes = b""
) -> Manifest:
    """A manifest of epoch 1, or an opening of another epoch."""
    kind = ManifestKind.OPENING if opening else ManifestKind.MICRO_BATCH
    shape = JobShape("p", 1, ())
    before = (
        micro_batch,
        opening or 1,
        f"t{micro_batch}",
        f"t{micro_batch - 1}",
        kind,
        mode,
        NOW,
        b"",
        shape,
        (),
        (),
        (),
        (),
        (),
        (),
    )
    return Manifest("job", *before, progress, pins, ())


def pin(name: str, micro_batch: int) -> Pin:
    return Pin(name, micro_batch, NOW)


class Played:
    """A driver of epoch 1."""

    def __init__(self, *events: Event) -> None:
        self.happened: Counter[str] = Counter()
        self.requests = RequestChecks(lambda what: self.happened.update([what]))
        self.requests.opened(None, None, manifest(0, opening=1))
        self.head = manifest(0, opening=1)
        self.hears(*events)

    def hears(self, *events: Event, says: tuple[Command, ...] = ()) -> Played:
        for event in events:
            self.requests.handled(1, event, says)
        return self

    def proposes(self, micro_batch: int = 1) -> Played:
        command = Propose(micro_batch, NOW, CommitMode.RUNNING, WatermarkTimes(), b"", ())
        self.requests.handled(1, SavepointRequested(NOW, "unheard"), (Warn("'unheard'"), command))
        return self

    def commits(self, *pins: Pin, mode: CommitMode = CommitMode.RUNNING, micro_batch: int = 1) -> Played:
        made = manifest(micro_batch, *pins, mode=mode)
        self.requests.real(self.head, made)
        self.head = made
        return self

    def ends(self, state: EndState, *says: Command) -> Played:
        self.requests.handled(1, SavepointRequested(NOW, "unheard"), (Warn("'unheard'"), *says, End(state)))
        return self


SAVE, DRAIN, SUSPEND = (of(NOW, "s") for of in (SavepointRequested, DrainRequested, SuspendRequested))
MADE = pin("s", 1)


def test_carried_out_requests_pass() -> None:
    Played(SAVE).proposes().commits(MADE).ends(EndState.FAILED)
    Played(SUSPEND).proposes().commits(MADE, mode=CommitMode.SUSPENDED).ends(EndState.STOPPED)
    Played(DRAIN).proposes().commits(mode=CommitMode.DRAINING).proposes(2).commits(
        pin("s", 2), mode=CommitMode.DRAINED, micro_batch=2
    )
    waiting = (
        Played().proposes().hears(SAVE).commits().proposes(2).commits(pin("s", 2), micro_batch=2).ends(EndState.DONE)
    )
    assert waiting.happened == {WHILE_COMMITTING: 1}
    refused = Played(SAVE).hears(CancelRequested(NOW), says=(TOLD_SO, TearDown((), NOW))).ends(EndState.CANCELLED)
    assert refused.happened == {REFUSED: 1}


def test_cancellation_does_not_bind_driver_that_finishes_job() -> None:
    ended = Played(CancelRequested(NOW)).ends(EndState.CANCELLED)
    ended.requests.finishing(1)
    ended.ends(EndState.DONE)


@pytest.mark.parametrize(
    ("play", "message"),
    [
        (
            lambda: Played(SAVE).proposes().commits(),
            "has not the savepoints ['s'], which were requested before its proposal",
        ),
        (lambda: Played().proposes().commits(MADE), "which were never requested"),
        (lambda: Played(SUSPEND).proposes().commits(), "was proposed after SuspendRequested"),
        (lambda: Played(SUSPEND).proposes().commits(mode=CommitMode.SUSPENDED), "has not the savepoints"),
        (lambda: Played().proposes().commits(mode=CommitMode.SUSPENDED), "was proposed after no request to end"),
        (lambda: Played(DRAIN).proposes().commits(mode=CommitMode.DRAINED), "has not the savepoints"),
        (lambda: Played(DRAIN, SUSPEND), "though another end was requested before"),
        (lambda: Played(SAVE).ends(EndState.DONE), "neither made nor refused"),
        (lambda: Played().ends(EndState.STOPPED), "that was never requested"),
        (lambda: Played(CancelRequested(NOW)).ends(EndState.DONE), "was cancelled"),
        (lambda: Played(SAVE).proposes().commits(MADE).proposes(2).commits(micro_batch=2), "no request released them"),
    ],
    ids=[
        "lost",
        "strange",
        "not-suspended",
        "no-name",
        "suspended",
        "no-last",
        "both",
        "unseen",
        "stopped",
        "ran-on",
        "not-released",
    ],
)
def test_violated_requests_are_found(play: Callable[[], Played], message: str) -> None:
    with pytest.raises(Broken) as broken:
        play()
    assert message in str(broken.value)


def test_released_savepoint_must_be_missing_afterwards() -> None:
    played = Played(SAVE).proposes().commits(MADE)
    played.requests.release(1, "s")
    with pytest.raises(Broken, match="which were released"):
        played.proposes(2).commits(MADE, micro_batch=2)
    played.commits(micro_batch=2)


def test_opening_keeps_savepoints_and_state_of_its_origin() -> None:
    requests, head, origin = RequestChecks(print), manifest(5, pin("s", 2), pin("t", 4)), manifest(2, pin("s", 2))
    requests.opened(head, origin, manifest(6, *head.pins, opening=2))
    with pytest.raises(Broken, match="opens with savepoints"):
        requests.opened(head, origin, manifest(6, *origin.pins, opening=2))
    with pytest.raises(Broken, match="has other progress"):
        requests.opened(head, origin, manifest(6, *head.pins, opening=2, progress=b"x"))
    with pytest.raises(Broken, match="had to resume s"):
        requests.resumed(head, "s")
