"""Exactly-once effects outside the pipeline: what a micro-batch has staged is published once it is committed.

Owns how a pipeline says what is to be published, and who publishes. When that is done is the runner's; its side of it
is `arcbeam.harness.operations.publishoperation`.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, Final

import apache_beam as beam
from apache_beam.transforms.core import DoFn

from arcbeam.model.attempts import Attempt, here
from arcbeam.model.urns import PUBLISH_ANNOTATION

_NAMELESS: Final = Attempt("", 0, (), "")


class Publisher(DoFn):  # type: ignore[misc]  # Beam is untyped
    """What makes staged things real. To be subclassed, and given to `Publish`.

    A pipeline writes in two halves, as a database's prepared transactions do. A DoFn of its own *stages*: it writes
    where no reader looks (a temporary file, a table beside the one that is read, an open transaction), and puts out a
    *committable*: whatever is needed to make that real. Here, `publish` makes it real.

    On arcbeam a committable is kept in the manifest of the micro-batch that made it, and is given to `publish` when
    that micro-batch is committed: never before, and again and again until it succeeds, also after everything was
    killed. So:

    - `publish` must be idempotent: what is published already stays as it is, and is no error;
    - what it needs must be in the committable, not in memory: another process publishes than has staged;
    - what was staged by an attempt that was not committed is published by nobody: `sweep` removes it.

    The next micro-batch is not committed before the last one is published. A bounded pipeline publishes once, at its
    end; if it fails before that, nothing.

    `setup` and `teardown` are called as of every DoFn, in each process that publishes. On other runners, which know no
    commits, a bundle is published when it ends: then effects are at least once.

    Attributes:
        again: what is given to `publish` may have been published before: by a call that failed, or by a driver that
            died. If not, what is not there any more is lost.
    """

    again = True

    @abstractmethod
    def publish(self, committables: Sequence[Any]) -> None:
        """Makes them real; those of one micro-batch, or some of them, in no particular order. What it raises is tried
        again; what it warns of (`warnings.warn`) is told where the job is told of.

        Calls run beside each other, in different processes: of a micro-batch with different committables; but a process
        whose driver was killed, or whose call was given up, may still be at the same ones.
        """

    def sweep(self, job: str, micro_batch: int) -> None:
        """Removes what attempts of a job have staged up to a micro-batch, and what was not published: it never will be.

        Called after all committables of the micro-batch are published, and of those before. By default nothing is
        removed. An attempt that nobody waits for may still be running: what it stages afterwards is for the next call.

        Args:
            job: whose; as `attempt().job` has it.
            micro_batch: the newest that is committed. Those that follow are not to be touched.
        """

    # What it is to runners that do not know it.

    def start_bundle(self) -> None:
        """Nothing is staged yet."""
        self._committables: list[Any] = []

    def process(self, committable: Any) -> None:
        """It waits for the end of the bundle."""
        self._committables.append(committable)

    def finish_bundle(self) -> None:
        """All of the bundle is published."""
        if self._committables:
            self.publish(self._committables)
        self._committables = []


class Publish(beam.PTransform):  # type: ignore[misc]  # Beam is untyped
    """Publishes committables: `staged | Publish(MyPublisher())`.

    They travel by the coder of their collection, and should be small: they are in the manifest of their micro-batch.

    Args:
        publisher: makes them real.

    Raises:
        TypeError: it is no `Publisher`.
    """

    def __init__(self, publisher: Publisher) -> None:
        super().__init__()
        if not isinstance(publisher, Publisher):
            raise TypeError(f"Publish({publisher!r}): give it an arcbeam.io.Publisher")
        self._publisher = publisher

    def expand(self, committables: Any) -> Any:
        """See `beam.PTransform`."""
        return committables | "Publish" >> _Marked(self._publisher)

    def default_label(self) -> str:
        """See `beam.PTransform`."""
        return f"Publish({type(self._publisher).__name__})"


class _Marked(beam.ParDo):  # type: ignore[misc]  # Beam is untyped
    """A runner that knows the annotation publishes with the micro-batch's commit."""

    def annotations(self) -> dict[str, Any]:
        """See `beam.PTransform`."""
        return {**super().annotations(), PUBLISH_ANNOTATION: b""}


def attempt() -> Attempt:
    """The attempt that runs here, for the names of what it stages; a nameless one where nothing is known of it."""
    return here.attempt or _NAMELESS
