"""What a page shows, what of it changes: its fragments, and the stream of those that have changed.

Owns the order, size and rhythm of updates. A fragment is an element with an id, rendered with the whole page by the
same template, so page and updates cannot differ. Must not know what a fragment shows.
"""

from __future__ import annotations

import asyncio
import json
import re
import threading
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from hashlib import blake2b
from typing import Any, Final

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request

UPDATE_SECONDS: Final = 1.0
"""The least time between two updates of a page."""
UPDATE_BYTES: Final = 20_000
"""The most that an update contains. What does not fit follows in the next ones, the longest unsent first."""
_URGENT: Final = frozenset({"notices", "headline"})
"""The fragments that never wait."""
HEARTBEAT_SECONDS: Final = 2.0
"""A browser that gets nothing for 5 s says that there is no contact."""
_SHARE: Final = 0.003
"""The most of a core that rendering takes for all who see one address: large pages are updated less often."""
_UPDATE_SECONDS_MAX: Final = 5.0
"""Seconds. But no page is updated less often than that: it may have to say that a driver is silent."""
_PAGES: Final = 64
"""How many rendered pages are kept."""
_VERSIONS: Final = 256
"""Of how many versions of pages the digests are remembered, for browsers that connect again."""

_TIMES: Final = re.compile(r'(<time data-at="-?\d+"[^>]*>)[^<]*')
"""How long ago something was: the browser counts on."""


@dataclass(frozen=True, slots=True)
class Shown:
    """What a page shows.

    Attributes:
        template: its name.
        live: whether it may change.
        values: for the template.
        code: the HTTP status.
        data: returns the same as JSON values; None: the page has no data of its own.
    """

    template: str
    live: bool
    values: Mapping[str, Any] = field(default_factory=dict)
    code: int = 200
    data: Callable[[], Any] | None = None


View = Callable[[Request], Shown]


@dataclass(frozen=True)
class Rendered:
    """A page.

    Attributes:
        html: all of it.
        fragments: its changing elements in order, by their ids.
        live: whether it may change.
        code: the HTTP status.
        cost: the processor time for it, in seconds.
    """

    html: str
    fragments: Mapping[str, str] = field(default_factory=dict)
    live: bool = False
    code: int = 200
    cost: float = 0.0

    @cached_property
    def digests(self) -> Mapping[str, bytes]:
        """A digest of each fragment, in which relative times do not count."""
        return {
            id: _digest(_TIMES.sub(r"\1", html) if "<time" in html else html) for id, html in self.fragments.items()
        }

    @cached_property
    def _parts(self) -> dict[str, str]:
        return {}

    def part(self, id: str) -> str:
        """Return a fragment with its id, as a part of a message: JSON, made once for all viewers."""
        if (found := self._parts.get(id)) is None:
            found = self._parts[id] = json.dumps([id, self.fragments[id]], separators=(",", ":"))
        return found

    @cached_property
    def shape(self) -> str:
        """A digest of the ids: as long as it is the same, a browser need not load the page again."""
        return _digest("\n".join(self.fragments)).hex()

    @cached_property
    def version(self) -> str:
        """A digest of shape and content."""
        return f"{self.shape}-{_digest(repr(list(self.digests.values()))).hex()}"


def _digest(text: str) -> bytes:
    return blake2b(text.encode(errors="surrogatepass"), digest_size=8).digest()


class Board:
    """The pages that browsers show. Callable from several threads.

    Args:
        seconds: a monotonic clock, in seconds.
    """

    def __init__(self, seconds: Callable[[], float] = time.monotonic) -> None:
        self._seconds = seconds
        self._lock = threading.Lock()
        self._known: OrderedDict[str, Mapping[str, bytes]] = OrderedDict()
        self._newest: OrderedDict[str, tuple[float, Rendered]] = OrderedDict()
        self._making: dict[str, threading.Lock] = {}

    def loaded(self, address: str, rendered: Rendered) -> None:
        """Remember what a browser has loaded."""
        with self._lock:
            # An older one would send the browser back to this address.
            self._set_newest(address, rendered)
        self.shown(rendered)

    def shown(self, rendered: Rendered) -> None:
        """Remember what a browser shows completely."""
        with self._lock:
            self._known[rendered.version] = rendered.digests
            self._known.move_to_end(rendered.version)
            while len(self._known) > _VERSIONS:
                self._known.popitem(last=False)

    def sent(self, version: str) -> Mapping[str, bytes]:
        """Return the digests of what a browser shows; {} if that is forgotten."""
        with self._lock:
            return self._known.get(version, {})

    def fresh(self, address: str) -> Rendered | None:
        """Return a page as it was a moment ago; None if it has to be rendered again. Does not block."""
        with self._lock:
            at, rendered = self._newest.get(address, (0.0, None))
        return None if rendered is None or self._seconds() - at >= _pause(rendered.cost) else rendered

    def newest(self, address: str, make: Callable[[], Rendered]) -> Rendered:
        """Return a page as it is now, or was a moment ago: it is rendered once for all who see it."""
        with self._lock:
            making = self._making.setdefault(address, threading.Lock())
        with making:
            if (known := self.fresh(address)) is not None:
                return known
            rendered = make()
            with self._lock:
                self._set_newest(address, rendered)
            return rendered

    def _set_newest(self, address: str, rendered: Rendered) -> None:
        self._newest[address] = self._seconds(), rendered
        self._newest.move_to_end(address)
        while len(self._newest) > _PAGES:
            dropped, _ = self._newest.popitem(last=False)
            self._making.pop(dropped, None)


def _pause(cost: float) -> float:
    # A little less than the rhythm of the streams, so that none of them misses a turn.
    return min(max(UPDATE_SECONDS, cost / _SHARE), _UPDATE_SECONDS_MAX) - 0.1


class Stream:
    """What one browser has to get.

    Args:
        shape: of the page that it shows.
        sent: the digests of what it shows; {}: unknown.
    """

    def __init__(self, shape: str, sent: Mapping[str, bytes]) -> None:
        self._shape, self._sent = shape, dict(sent)
        # What is shown completely.
        self.shown: Rendered | None = None
        self._turns: dict[str, int] = {}
        self._turn = 0
        # The page that was sent last, and what of it was not.
        self._last: Rendered | None = None
        self._waiting: Sequence[str] = ()

    @property
    def version(self) -> str:
        """The version that the browser shows. Without its second part, the browser shows parts of several."""
        return f"{self._shape}-" if self.shown is None else self.shown.version

    def messages(self, rendered: Rendered) -> Sequence[str]:
        """Return what to send of a page: nothing, changed fragments, or that the page has to be loaded again."""
        self._turn += 1
        if rendered is self.shown and rendered.live:
            return ()
        if rendered.shape != self._shape:
            return [message("reload")]
        if rendered is not self._last:
            found = [id for id, digest in rendered.digests.items() if self._sent.get(id) != digest]
            self._waiting = sorted(found, key=lambda id: (id not in _URGENT, self._turns.get(id, 0)))
            self._last = rendered
        changed = self._waiting
        chosen: list[str] = []
        size = 0
        for id in changed:
            size += len(rendered.part(id)) + 1
            if chosen and size > UPDATE_BYTES - 200:
                break
            chosen.append(id)
            self._turns[id], self._sent[id] = self._turn, rendered.digests[id]
        self._waiting = changed[len(chosen) :]
        self.shown = None if self._waiting else rendered
        sent = [message("change", f"[{','.join(map(rendered.part, chosen))}]", self.version)] if chosen else []
        return sent if rendered.live or self._waiting else [*sent, message("end")]


def message(kind: str, data: str = '""', version: str = "") -> str:
    """Return a server-sent event with that JSON. Its id is the version that the browser shows then."""
    return f"event: {kind}\nid: {version}\ndata: {data}\n\n"


async def updates(
    board: Board, address: str, make: Callable[[], Rendered], version: str, *, brief: bool = False
) -> AsyncIterator[str]:
    """Yield the events for a browser, until its page has ended.

    Args:
        board: of all pages.
        address: of the page.
        make: renders it.
        version: of the page that the browser shows; see `Stream.version`.
        brief: end after one update: the browser has no connection to spare, and asks again.
    """
    stream = Stream(version.partition("-")[0], board.sent(version))
    yield "retry: 1000\n\n"
    quiet = 0.0
    while True:
        if (rendered := board.fresh(address)) is None:
            rendered = await run_in_threadpool(board.newest, address, make)
        messages = stream.messages(rendered)
        if stream.shown is not None:
            board.shown(stream.shown)
        if not messages and (brief or quiet >= HEARTBEAT_SECONDS):
            messages = [message("alive", version=stream.version)]
        quiet = 0.0 if messages else quiet + UPDATE_SECONDS
        for each in messages:
            yield each
            if each.startswith(("event: end", "event: reload")):
                return
        if brief:
            return
        await asyncio.sleep(UPDATE_SECONDS)
