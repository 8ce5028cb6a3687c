"""Watches a bundle in a worker from which nothing arrives: which transform runs, and whether anything changes.

Owns when a worker is asked for its progress, and the warnings. It never stops a worker: user code may take any time.
Must not wait for the worker's answer.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from apache_beam.metrics import monitoring_infos as mi
from apache_beam.portability.api import beam_fn_api_pb2 as fn_pb

from arcbeam.fnapi.descriptors import is_port
from arcbeam.fnapi.service.connection import Connection
from arcbeam.fnapi.service.instruction import Instruction, Responded

_LOG = logging.getLogger("arcbeam.sdk")
ASK_SECONDS = 10.0
"""Seconds between two requests for progress, while nothing arrives."""
WARN_SECONDS = 60.0
"""Seconds without any change until the first warning; each later one takes twice as long."""
_TIMES: Final = frozenset([mi.START_BUNDLE_MSECS_URN, mi.PROCESS_BUNDLE_MSECS_URN, mi.FINISH_BUNDLE_MSECS_URN])
_MOVES: Final = frozenset([mi.ELEMENT_COUNT_URN, mi.WORK_COMPLETED_URN, mi.WORK_REMAINING_URN])


class Watch:
    """Watches the bundles of one stage, one after the other.

    Args:
        worker: the worker.
        step: name of the stage's first transform.
        names: full names of the worker's transforms by id.
        infos: returns the metrics in a response.

    Attributes:
        running: name of the transform that has taken most of the time lately, as far as is known.
    """

    def __init__(
        self, worker: Connection, step: str, names: Mapping[str, str], infos: Callable[[Any], Sequence[Any]]
    ) -> None:
        self._worker, self._names, self._infos = worker, names, infos
        self.running = self._step = step
        self._requested: Instruction | None = None
        self._is_known = False

    def begin(self, bundle: Instruction) -> None:
        """Watch a bundle."""
        self._bundle = bundle
        self.running, self._is_known = self._step, False
        self._moved = self._asked_at = time.monotonic()
        self._warn_after = WARN_SECONDS
        self._moves: dict[Any, bytes] = {}
        self._times: dict[str, int] = {}

    def may_run(self) -> tuple[str, ...]:
        """Return the names of the transforms of which one runs."""
        if self._is_known:
            return (self.running,)
        return tuple(sorted(name for id, name in self._names.items() if not is_port(id)))

    def moved(self) -> None:
        """Something has arrived for the bundle."""
        self._moved, self._warn_after = time.monotonic(), WARN_SECONDS

    @property
    def pause(self) -> float:
        """Seconds until the next call of `look`."""
        return max(ASK_SECONDS / 10, self._asked_at + ASK_SECONDS - time.monotonic())

    def look(self) -> None:
        """Ask for the progress, if it is time, or take the answer; warn if nothing changes."""
        now = time.monotonic()
        # Before this call sends a request.
        is_silent = self._requested is not None and not self._requested.has_arrivals
        if self._requested is not None and self._requested.has_arrivals:
            requested, self._requested = self._requested, None
            for arrival in requested.take(lambda: True):
                if isinstance(arrival, Responded) and not arrival.response.error:
                    self._take(self._infos(arrival.response.process_bundle_progress))
            self._worker.end_bundle(requested)
        elif self._requested is None and now - self._asked_at >= ASK_SECONDS and now - self._moved >= ASK_SECONDS:
            self._asked_at = now
            request = fn_pb.ProcessBundleProgressRequest(instruction_id=self._bundle.id)
            self._requested = self._worker.request(process_bundle_progress=request)
        if now - self._moved >= self._warn_after:
            self._warn_after *= 2
            _LOG.warning(
                "%r: the SDK worker has sent nothing and shows no progress for %.0f s%s. Everything that depends on "
                "it waits until it continues",
                self.running,
                now - self._moved,
                ", and does not answer" if is_silent else "",
            )

    def end(self) -> None:
        """Watch no longer. Idempotent."""
        requested, self._requested = self._requested, None
        if requested is not None:
            self._worker.end_bundle(requested)

    def _take(self, infos: Sequence[Any]) -> None:
        moves = {mi.to_key(info): info.payload for info in infos if info.urn in _MOVES}
        if moves != self._moves:
            self._moves = moves
            self.moved()
        times: dict[str, int] = {}
        for info in infos:
            if info.urn in _TIMES and (id := info.labels.get(mi.PTRANSFORM_LABEL)):
                times[id] = times.get(id, 0) + mi.extract_counter_value(info)
        spent = {id: took - self._times.get(id, 0) for id, took in times.items()}
        self._times = times
        longest = max(spent, key=spent.__getitem__, default=None)
        if longest is not None and spent[longest] > 0:
            self.running, self._is_known = self._names.get(longest, longest), True
