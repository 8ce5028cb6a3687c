"""The SDK's state sampler, running for a task instead of a bundle.

Owns the sampler's thread, and which processor's sampler is the current one of the thread that runs bundles. The SDK
starts and joins a sampler's thread per bundle. A join waits for the end of a sleep that grows to 200 ms, which
dominates short bundles. Here the thread is signalled to end, and is joined only before the next start.
"""

from __future__ import annotations

import threading
from typing import Any

from apache_beam.runners.worker import statesampler


class StateSampling:
    """Runs a processor's state sampler. `begin` and `end` are called on the thread that runs the bundles.

    Invariant: at most one thread that has not been signalled to end runs the sampler.
    """

    def __init__(self, sampler: Any) -> None:
        self._sampler = sampler
        self._thread: threading.Thread | None = None
        self._running = False

    def begin(self) -> None:
        """Make this the current sampler of the thread, and start sampling unless it is running.

        SUBTLE: the SDK keeps one current sampler per thread. User counters and logs go to its current step. A task that
        runs several stages runs their processors in turn on one thread, so each bundle makes its own sampler current.
        """
        statesampler.set_current_tracker(self._sampler)
        if self._running:
            return
        if self._thread is not None:
            self._thread.join()
        self._sampler.reset()
        self._sampler.started = True
        self._sampler.tracked_thread = threading.current_thread()
        self._thread = threading.Thread(target=self._sampler.run, name="state-sampler", daemon=True)
        self._thread.start()
        self._running = True

    def end(self) -> None:
        """Signal the sampler to end; do not wait for its thread."""
        if not self._running:
            return
        self._running = False
        if statesampler.get_current_tracker() is self._sampler:
            statesampler.set_current_tracker(None)
        self._sampler.finished = True
