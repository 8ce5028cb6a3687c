"""Spark's output modes as Beam's windows, triggers, accumulation and lateness.

Owns the presets. The table of when results are emitted and when state is released is in `docs/explanation/time.md`.
"""

from __future__ import annotations

import apache_beam as beam
from apache_beam.transforms import trigger, window
from apache_beam.utils.timestamp import Duration

from arcbeam.io.spans import micros_of


class OutputMode:
    """Windowings that make the results of a grouping appear as in Spark's output modes. Apply one before the grouping.

    `pairs | OutputMode.update(FixedWindows(60)) | beam.CombinePerKey(sum)`. Collections after the grouping also have
    the windows, accumulation and lateness of the mode. Apply another `WindowInto` to change them.
    """

    @staticmethod
    def append(windowfn: window.WindowFn) -> beam.WindowInto:
        """Emit each result once, when the watermark passes the end of its window. The result is final.

        Elements that arrive later are dropped (see `WithLate`).

        Args:
            windowfn: any but the global window, which has no end.

        Raises:
            ValueError: `windowfn` is the global window, or not a WindowFn.
        """
        _check(windowfn, "append")
        if isinstance(windowfn, window.GlobalWindows):
            raise ValueError(
                "OutputMode.append: results are emitted at the end of their window, and the global window ends only "
                "with the input. Use windows of time, or OutputMode.update or .complete"
            )
        return beam.WindowInto(windowfn, accumulation_mode=trigger.AccumulationMode.DISCARDING, allowed_lateness=0)

    @staticmethod
    def update(
        windowfn: window.WindowFn, *, every: float = 0, allowed_lateness: Duration | float = 0
    ) -> beam.WindowInto:
        """Emit a result whenever it changes. It contains all elements of its key and window so far.

        Args:
            windowfn: any window function. Results in the global window are kept forever, as with `complete`.
            every: whole seconds of processing time from the first change to the result. 0: the same micro-batch.
            allowed_lateness: how long after its end a window may still change.

        Raises:
            ValueError: `every` is negative or not a whole number, the lateness is negative, or `windowfn` is not a
                WindowFn.
        """
        _check(windowfn, "update")
        if (lateness := micros_of("OutputMode.update", "allowed_lateness", allowed_lateness)) < 0:
            raise ValueError(f"OutputMode.update(allowed_lateness={allowed_lateness}): a duration must not be negative")
        seconds, rest = divmod(micros_of("OutputMode", "every", every), 1_000_000)
        if seconds < 0:
            raise ValueError(f"OutputMode: every={every} s: a duration must not be negative")
        if rest:
            raise ValueError(f"OutputMode: every={every} s: Beam's triggers take whole seconds only")
        changed = trigger.Repeatedly(trigger.AfterProcessingTime(seconds))
        return beam.WindowInto(
            windowfn,
            # Without a delay the trigger fires for each element. Its continuation fires once for all that arrived
            # together.
            trigger=changed if seconds else changed.get_continuation_trigger(),
            accumulation_mode=trigger.AccumulationMode.ACCUMULATING,
            allowed_lateness=Duration(micros=lateness),
        )

    @staticmethod
    def complete(*, every: float = 0) -> beam.WindowInto:
        """Emit a result whenever it changes. It contains all elements of its key so far. State is never released.

        Spark also repeats results that have not changed. Here only changed results are emitted.

        Args:
            every: as for `update`.

        Raises:
            ValueError: `every` is negative or not a whole number.
        """
        return OutputMode.update(window.GlobalWindows(), every=every)


def _check(windowfn: object, mode: str) -> None:
    if not isinstance(windowfn, window.WindowFn):
        shown = f"{windowfn!r}"[:100]
        raise ValueError(f"OutputMode.{mode}({shown}): expected a WindowFn, such as FixedWindows(60)")
