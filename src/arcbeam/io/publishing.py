"""Exactly-once effects outside the pipeline: staged data is published after its micro-batch is committed.

Owns how a pipeline declares what to publish, and how it is published. The runner decides when; its side is
`arcbeam.harness.operations.publishoperation`.
"""

from __future__ import annotations

import warnings
from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, Final

import apache_beam as beam
from apache_beam.runners.worker import statesampler
from apache_beam.transforms.core import DoFn
from typing_extensions import override

from arcbeam.errors import SetupError
from arcbeam.model.attempts import IN_SDK_WORKER, Attempt, process_state
from arcbeam.model.urns import PUBLISH_ANNOTATION, QUICK

_NAMELESS: Final = Attempt("", 0, (), "")


class Publisher(DoFn):  # type: ignore[misc]  # Beam is untyped
    """Publishes staged data. Subclass it, and pass an instance to `Publish`.

    A pipeline writes in two phases, like a prepared transaction of a database:

    1. A DoFn of the pipeline *stages* data: it writes where no reader looks (a temporary file, a staging table, an open
       transaction). It emits a *committable*: the information that is needed to publish the data.
    2. `publish` publishes the data.

    arcbeam stores a committable in the manifest of the micro-batch that emitted it. It passes the committable to
    `publish` after that micro-batch is committed, never before. It repeats the call until it succeeds, also after all
    processes were killed. Therefore:

    - `publish` must be idempotent: data that is already published stays unchanged, and is not an error.
    - The committable must contain all that `publish` needs: another process publishes than the one that staged.
    - Data that was staged by an attempt that was not committed is never published. `sweep` removes it.

    The next micro-batch is not committed before the previous one is published. A bounded pipeline publishes once, at
    its end. If it fails, nothing is published.

    `setup` and `teardown` are called as for any DoFn, in each process that publishes. Other runners do not know
    commits. They publish a bundle when it ends, so effects are at least once.

    Attributes:
        again: True if a committable may have been published before, by a call that failed or by a driver that died. If
            False, staged data that no longer exists is lost.
    """

    again = True

    @abstractmethod
    def publish(self, committables: Sequence[Any]) -> None:
        """Publish the data of committables of one micro-batch: all of them, or some, in no particular order.

        A call that raises is repeated. If it raises an `arcbeam.errors.PublishRefusedError`, the job fails instead, and
        the driver that resumes it repeats the call. Warnings (`warnings.warn`) are shown with the job's messages.

        Calls run concurrently in different processes, with different committables of the micro-batch. A process whose
        driver was killed, or whose call was abandoned, may still be publishing the same committables.
        """

    def warn(self, text: str) -> None:
        """Show a warning with the job's messages."""
        warnings.warn(text, stacklevel=2)

    def prepare_in_driver(self) -> None:
        """Find out whether this process, the job's driver, reaches all that `publish` needs. Raise if it does not.

        Called after `setup`, in a thread of its own, and only if the class overrides `is_quick`. By then workers
        publish already.
        """

    def is_quick(self, committables: Sequence[Any]) -> bool:
        """Return whether `publish` takes only milliseconds for these committables.

        Then the driver of a streaming job publishes them itself: another Spark job would take longer, and a worker may
        first have to connect. If that fails, workers publish them. By default they always do.
        """
        return False

    def sweep(self, job: str, micro_batch: int) -> None:
        """Remove unpublished data that attempts of a job have staged up to a micro-batch; it will never be published.

        Called after all committables of this and earlier micro-batches are published. By default nothing is removed.
        An abandoned attempt may still be running. The next call removes what it stages later.

        Args:
            job: the job's id, as in `attempt().job`.
            micro_batch: the newest committed micro-batch. Data of later ones must stay.
        """

    # On runners that do not know the annotation this is a plain DoFn.

    def start_bundle(self) -> None:
        """Start with no committables."""
        self._committables: list[Any] = []

    def process(self, committable: Any) -> None:
        """Buffer a committable until the end of the bundle."""
        self._committables.append(committable)

    def finish_bundle(self) -> None:
        """Publish the bundle's committables."""
        if self._committables:
            self.publish(self._committables)
        self._committables = []


class Publish(beam.PTransform):  # type: ignore[misc]  # Beam is untyped
    """Publish committables: `staged | Publish(MyPublisher())`.

    Committables are encoded with the coder of their collection. They should be small: they are stored in the manifest
    of their micro-batch.

    Args:
        publisher: publishes the committables' data.

    Raises:
        TypeError: `publisher` is not a `Publisher`.
    """

    def __init__(self, publisher: Publisher) -> None:
        super().__init__()
        if not isinstance(publisher, Publisher):
            raise TypeError(f"Publish({publisher!r}): expected an instance of arcbeam.io.Publisher")
        self._publisher = publisher

    @override
    def expand(self, committables: Any) -> Any:
        return committables | "Publish" >> _Marked(self._publisher)

    @override
    def default_label(self) -> str:
        return f"Publish({type(self._publisher).__name__})"


class _Marked(beam.ParDo):  # type: ignore[misc]  # Beam is untyped
    """A ParDo with an annotation: a runner that knows it publishes when the micro-batch is committed."""

    @override
    def annotations(self) -> dict[str, Any]:
        quick = type(self.fn).is_quick is not Publisher.is_quick
        return {**super().annotations(), PUBLISH_ANNOTATION: QUICK if quick else b""}


def attempt() -> Attempt:
    """Return the current attempt, to name what it stages. Return one with empty names outside of a job.

    Raises:
        SetupError: an SDK worker runs the DoFn, and does not know the attempt. A DoFn whose output is the input of
            `Publish` never runs there.
    """
    if process_state.attempt is None and _is_in_sdk_worker():
        raise SetupError(
            "an SDK worker runs this DoFn, and does not know the attempt that arcbeam.io.attempt() returns",
            "apply Publish to this DoFn's own output: then both run in Spark's Python workers; or omit "
            "--environment_type",
        )
    return process_state.attempt or _NAMELESS


def _is_in_sdk_worker() -> bool:
    """Return whether this thread runs a bundle of ours in an SDK worker.

    SUBTLE: nothing else that user code can reach there names the runner.
    """
    tracker = statesampler.get_current_tracker()
    return tracker is not None and f"-{IN_SDK_WORKER}" in tracker.stage_name
