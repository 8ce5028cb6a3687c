"""The interface of DoFns for a job that ends gracefully.

Owns the interface that users subclass. Must not know Beam, nor its caller (`arcbeam.harness.bundle.graceful`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final, Self

MARK: Final = "arcbeam_graceful_shutdown"
"""A key of the display data and the name of an attribute, by which a pipeline's proto shows that a DoFn implements
`GracefulShutdown`."""


class GracefulShutdown:
    """Calls of a DoFn when its job ends gracefully: its sources have ended, or it is drained.

    A DoFn subclasses both: `class Notify(beam.DoFn, GracefulShutdown)`. Both methods are optional. They are called from
    sources to sinks. They are never called when the job is suspended, is cancelled or fails. After a failure they may
    be called again, on this or another instance, so they must be idempotent. Other runners do not call them.

    The memory of an instance is lost when its process ends. So these methods must not be the place to output data that
    must not be lost: keep it in state, or output it with its bundle.

    SDK workers cannot make these calls. So in a pipeline with SDK workers, such a DoFn runs in Spark's Python workers.
    """

    def __new__(cls, *arguments: Any, **named: Any) -> Self:
        """Return a marked instance."""
        made = super().__new__(cls)
        vars(made)[MARK] = True
        return made

    def __init_subclass__(cls, **named: Any) -> None:
        """Mark the display data of a DoFn, whatever class defines it."""
        super().__init_subclass__(**named)
        if (display_data := getattr(cls, "display_data", None)) is not None:
            cls.display_data = _marking(display_data)  # type: ignore[attr-defined]  # a DoFn has it

    def prepare_to_shutdown(self) -> Iterable[Any] | None:
        """Prepare to shut down, after all elements were processed. Output is processed normally, before the last
        commit.

        Called in its own bundle or at the end of one, between `start_bundle` and `finish_bundle`, on at least one
        instance, and at least once by each task of the micro-batch in which it is called. An exception fails the
        micro-batch.

        In a streaming job, no output of this DoFn is complete before that. A side input made from it, or a group in the
        global window, is ready only at the end of the job.

        Returns:
            The output: `WindowedValue`s, as in `finish_bundle`, also in a `beam.pvalue.TaggedOutput`. If the output is
            in the global window, any other value is output with that window's last moment as its time.
        """
        return None

    def shutdown(self) -> None:
        """Release resources or notify, after the last commit is made and published. No further calls process elements.

        Called on each existing instance, or, if there is none, on a new one after its `setup`. `teardown` follows. An
        exception is a warning, and so is a timeout: the job has ended well by then.
        """


def _marking(display_data: Callable[[Any], dict[str, Any]]) -> Callable[[Any], dict[str, Any]]:
    def marked(self: Any) -> dict[str, Any]:
        return _marked(display_data(self))

    return marked


def _marked(data: dict[str, Any]) -> dict[str, Any]:
    return {**data, MARK: True}
