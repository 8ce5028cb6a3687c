"""What a DoFn may offer to a job that ends gracefully.

Owns the interface that users subclass. Must not know Beam, nor who calls it (`arcbeam.harness.bundle.graceful`).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any


class GracefulShutdown:
    """Calls of a DoFn when its job ends gracefully: its sources have ended, or it is drained.

    A DoFn subclasses both: `class Notify(beam.DoFn, GracefulShutdown)`. Both methods are optional. They are called from
    sources to sinks, never when the job is suspended, is cancelled or fails, and possibly again, on this or another
    instance, if something was killed on the way: so what they do must be idempotent. On other runners nobody calls
    them.

    What an instance keeps in memory between bundles is lost when its process is: neither method is a place to put out
    what must not be lost. That belongs into state, or leaves with its bundle.
    """

    def prepare_to_shutdown(self) -> Iterable[Any] | None:
        """All that there is has been processed. What is put out goes on like any other output, before the last commit.

        Called in a bundle of its own or at the end of one, between `start_bundle` and `finish_bundle`, on at least one
        instance, and at least once by each task of the micro-batch in which it is called. What it raises fails the
        micro-batch.

        In a streaming job, nothing that this DoFn puts out is complete before: a side input that is made of it, or a
        group in the global window, is there when the job has come to its end.

        Returns:
            What to put out: `WindowedValue`s, as `finish_bundle` has it, also in a `beam.pvalue.TaggedOutput`. Where
            the output is in the global window, anything else is put out with the last moment of that as its time.
        """
        return None

    def shutdown(self) -> None:
        """The last commit is made and published, nothing more will come: release, notify.

        Called on each instance that is there, or on a new one, behind its `setup`, if none is. `teardown` comes later.
        What it raises is a warning: the job has ended well by then. So is not to return in time.
        """
