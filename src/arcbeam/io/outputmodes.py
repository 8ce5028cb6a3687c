"""Spark's output modes, as what Beam has for them: windows, a trigger, accumulation and lateness.

Owns the presets; the table of who puts out when, and who lets go when, is in `docs/explanation/time.md`.
"""

from __future__ import annotations

import apache_beam as beam
from apache_beam.transforms import trigger, window
from apache_beam.utils.timestamp import Duration

from arcbeam.io.spans import micros_of


class OutputMode:
    """Put before a grouping, one of these makes its results come out as Spark's mode has it.

    `pairs | OutputMode.update(FixedWindows(60)) | beam.CombinePerKey(sum)`. What stands behind the grouping has
    windows, accumulation and lateness of the mode, too; apply another `WindowInto` for others.
    """

    @staticmethod
    def append(windowfn: window.WindowFn) -> beam.WindowInto:
        """Each result comes out once, when the watermark has passed the end of its window, and is final.

        What comes behind that is dropped (see `WithLate`).

        Args:
            windowfn: not the global window, which has no end.

        Raises:
            ValueError: it is the global window, or no WindowFn.
        """
        _check(windowfn, "append")
        if isinstance(windowfn, window.GlobalWindows):
            raise ValueError(
                "OutputMode.append: a result comes out when its window has ended, and the global window does not end "
                "before the input; take windows of time, or OutputMode.update or .complete"
            )
        return beam.WindowInto(windowfn, accumulation_mode=trigger.AccumulationMode.DISCARDING, allowed_lateness=0)

    @staticmethod
    def update(
        windowfn: window.WindowFn, *, every: float = 0, allowed_lateness: Duration | float = 0
    ) -> beam.WindowInto:
        """A result comes out whenever it has changed: all that has come to its key and window so far.

        Args:
            windowfn: of any kind; results in the global window are held for ever, as are those of `complete`.
            every: whole seconds by the clock from the first change to when it comes out; with 0: in the same
                micro-batch.
            allowed_lateness: how long behind its end a window still changes.

        Raises:
            ValueError: `every` is below zero, or no whole number; the lateness is below zero; `windowfn` is none.
        """
        _check(windowfn, "update")
        if (lateness := micros_of("OutputMode.update", "allowed_lateness", allowed_lateness)) < 0:
            raise ValueError(
                f"OutputMode.update(allowed_lateness={allowed_lateness}): a span of time is not below zero"
            )
        seconds, rest = divmod(micros_of("OutputMode", "every", every), 1_000_000)
        if seconds < 0:
            raise ValueError(f"OutputMode: every={every} s is before the change that is to come out")
        if rest:
            raise ValueError(f"OutputMode: every={every} s; Beam's triggers go by whole seconds")
        changed = trigger.Repeatedly(trigger.AfterProcessingTime(seconds))
        return beam.WindowInto(
            windowfn,
            # One of no delay fires for each element; that which follows it, for all that came at the same time.
            trigger=changed if seconds else changed.get_continuation_trigger(),
            accumulation_mode=trigger.AccumulationMode.ACCUMULATING,
            allowed_lateness=Duration(micros=lateness),
        )

    @staticmethod
    def complete(*, every: float = 0) -> beam.WindowInto:
        """A result comes out whenever it has changed: all that has ever come to its key. Nothing is ever let go.

        Spark repeats the results that have not changed, too; here only those come that have.

        Args:
            every: as of `update`.

        Raises:
            ValueError: `every` is below zero.
        """
        return OutputMode.update(window.GlobalWindows(), every=every)


def _check(windowfn: object, mode: str) -> None:
    if not isinstance(windowfn, window.WindowFn):
        shown = f"{windowfn!r}"[:100]
        raise ValueError(f"OutputMode.{mode}({shown}): it takes a WindowFn, such as FixedWindows(60)")
