"""Publish in the driver what takes only milliseconds: without a Spark job, and with publishers that stay connected.

Workers publish in a short Spark job. It takes a slot that the next micro-batch needs, and may run in another process
than the one before, where a publisher first has to connect, and perhaps to fence the one before.

Owns which publishers the driver opens, and when it leaves publishing to workers. Must not know what a failure means to
the job.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass, field, replace
from typing import Final, TypeVar

from arcbeam.errors import JobCancelledError
from arcbeam.harness.operations.publishoperation import OpenPublisher, may_be_quick
from arcbeam.model import texts
from arcbeam.model.plan import Plan, Stage
from arcbeam.sizes import threshold
from arcbeam.spark.tasks.ending.publishing import WARNINGS_MAX, Sweep

_T = TypeVar("_T")

_LOG = logging.getLogger("arcbeam.publish")

_QUICK_ONES: Final = threshold(10)
"""Consecutive quick calls after which the driver publishes: a change of the process costs more than one of them."""
_FAILURES: Final = 3
"""After as many without a success, the driver leaves a publisher to workers."""
_LOOK_SECONDS: Final = 0.1
"""Between two looks whether a call is to be abandoned."""
CLOSE_SECONDS: Final = 10.0
"""For the teardown of a publisher."""


@dataclass(frozen=True, slots=True)
class Rest:
    """What workers have to publish.

    Attributes:
        committables: with the names of their publishers.
        again: whether they may have been published before.
        warnings: of what the driver has published.
    """

    committables: list[tuple[str, bytes]]
    again: bool
    warnings: list[str] = field(default_factory=list)


class _Here:
    """A publisher in this process, from when it is prepared until it fails.

    Args:
        stage: the stage that contains it.
        name: its name.
        given_up: set when calls are to be abandoned.
    """

    def __init__(self, stage: Stage, name: str, given_up: threading.Event) -> None:
        self._stage, self._name, self._given_up = stage, name, given_up
        self._open: OpenPublisher | None = None
        self._preparing: threading.Thread | None = None
        # Calls in a row.
        self._quick = self._failures = 0
        self._warnings: list[str] = []

    @property
    def publishes(self) -> bool:
        """Whether the driver publishes quick committables now."""
        return self._open is not None and self._quick > _QUICK_ONES

    def publish(self, committables: Sequence[bytes], *, again: bool) -> list[str] | None:
        """Publish committables, or leave them to workers.

        Returns:
            Warnings; None: workers have to publish.

        Raises:
            Exception: what user code raises. Perhaps some are published.
        """
        if (opened := self._open) is None:
            self._prepare()
            return None
        self._quick = self._quick + 1 if opened.is_quick(committables) else 0
        if not self.publishes:
            return None
        _within(lambda: opened.publish(committables, again=again), self._given_up)
        self._failures = 0
        warnings = [f"{self._name}: {text}" for text in dict.fromkeys(self._warnings)]
        self._warnings.clear()
        return warnings[:WARNINGS_MAX]

    def sweep(self, sweep: Sweep) -> list[str]:
        """Remove what will never be published. Return warnings."""
        opened = self._open
        assert opened is not None
        try:
            _within(lambda: opened.sweep(sweep.job, sweep.micro_batch), self._given_up)
        except Exception as e:
            return [f"{self._name}: could not remove all leftover files: {texts.safe_text(repr, e)}"]
        return []

    def failed(self, error: BaseException) -> None:
        """Leave what follows to workers, until it is prepared again."""
        self._failures += 1
        self._quick = 0
        _LOG.info("%s: workers publish, because the driver cannot: %s", self._name, texts.safe_text(repr, error))
        self.close()

    def close(self, seconds: float = CLOSE_SECONDS) -> list[str]:
        """Tear it down, and return errors as messages.

        Args:
            seconds: how long to wait for it.
        """
        opened, self._open = self._open, None
        if opened is None:
            return []
        try:
            return _within(opened.close, threading.Event(), seconds)
        except TimeoutError:
            return [f"{self._name}: its teardown has not returned within {seconds:.0f} s"]

    def _prepare(self) -> None:
        """Open it in a thread of its own, unless that is under way, or has failed too often."""
        if self._preparing is None and self._failures < _FAILURES:
            self._preparing = threading.Thread(target=self._prepared, name="publisher-prepares", daemon=True)
            self._preparing.start()

    def _prepared(self) -> None:
        try:
            opened = OpenPublisher(self._stage, self._name)
            try:
                opened.prepare_in_driver(self._warnings.append)
            except BaseException:
                opened.close()
                raise
            self._open = opened
        except BaseException as e:
            self.failed(e)
        finally:
            self._preparing = None


class DriverPublishing:
    """Publishes for a job, in its driver. One call at a time.

    Args:
        plan: the job's plan.
        on: whether the driver may publish at all.
    """

    def __init__(self, plan: Plan, *, on: bool) -> None:
        self._given_up = threading.Event()
        self._publishers = {
            name: _Here(stage, name, self._given_up)
            for stage in plan.stages
            for name in stage.publishers
            if on and may_be_quick(stage, name)
        }

    def publish(self, committables: Iterable[tuple[str, bytes]], *, again: bool) -> Rest:
        """Publish what is quick, if this process can. What fails here is left to workers, too.

        Args:
            committables: with the names of their publishers.
            again: whether they may have been published before.
        """
        of: dict[str, list[bytes]] = defaultdict(list)
        for name, committable in committables:
            of[name].append(committable)
        rest = Rest([], again)
        for name, all in of.items():
            here, warnings = self._publishers.get(name), None
            if here is not None:
                try:
                    warnings = here.publish(all, again=again)
                except Exception as e:
                    here.failed(e)
                    rest = replace(rest, again=True)
            if warnings is None:
                rest.committables.extend((name, each) for each in all)
            else:
                rest.warnings.extend(warnings)
        return rest

    def sweep(self, sweep: Sweep) -> tuple[set[str], list[str]]:
        """Remove what will never be published, of the publishers that publish here now.

        Returns:
            Their names, and warnings.
        """
        those = {name: here for name, here in self._publishers.items() if here.publishes}
        return set(those), [text for here in those.values() for text in here.sweep(sweep)]

    def close(self, seconds: float = CLOSE_SECONDS) -> list[str]:
        """Tear down what is open, and return errors as messages.

        Args:
            seconds: how long to wait for each.
        """
        return [text for here in self._publishers.values() for text in here.close(seconds)]

    def give_up(self) -> None:
        """Abandon what runs; callable from any thread."""
        self._given_up.set()


def _within(call: Callable[[], _T], given_up: threading.Event, seconds: float = float("inf")) -> _T:
    """Return what a call returns, made in a thread that nothing waits for at the process's exit.

    Raises:
        JobCancelledError: `given_up` was set first.
        TimeoutError: it has not returned in time.
    """
    done: Future[_T] = Future()
    over = time.monotonic() + seconds

    def run() -> None:
        try:
            done.set_result(call())
        except BaseException as e:
            done.set_exception(e)

    threading.Thread(target=run, name="publishes", daemon=True).start()
    while not wait([done], _LOOK_SECONDS).done:
        if given_up.is_set():
            raise JobCancelledError("publishing was abandoned")
        if time.monotonic() > over:
            raise TimeoutError
    return done.result()
