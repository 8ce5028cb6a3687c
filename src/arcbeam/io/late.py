"""What a grouping drops as too late, as a collection.

Owns how a pipeline asks for it, and what is known of such an element. Who drops is the runner; its side of it is
`arcbeam.harness.operations.lateoperation`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal, NamedTuple

import apache_beam as beam
from apache_beam.transforms import window
from apache_beam.typehints import typehints
from apache_beam.utils.timestamp import Timestamp

from arcbeam.model.urns import LATE_ANNOTATION, LATE_TAG


class LateElement(NamedTuple):
    """An element that a grouping has dropped, in one of its windows.

    Attributes:
        key: of the element.
        value: of the element; of what was to be combined, as it came.
        timestamp: its event time. Of what a window held when it was closed (see `reason`), the window's last moment.
        window: in which it was dropped; one in several windows is dropped in each by itself.
        watermark: of the grouping's input when it was dropped.
        reason: "expired": the watermark had passed the end of its window and the allowed lateness. "closed": the
            trigger of its window had finished, or its window became one with such a window.
    """

    key: Any
    value: Any
    timestamp: Timestamp
    window: Any
    watermark: Timestamp
    reason: Literal["expired", "closed"]


class GroupedAndLate(NamedTuple):
    """What `WithLate` gives.

    Attributes:
        grouped: what the grouping gives.
        late: what it drops, as `LateElement`s.
    """

    grouped: Any
    late: Any


class WithLate(beam.PTransform):  # type: ignore[misc]  # Beam is untyped
    """A grouping, and a collection of what it drops: `totals, late = pairs | WithLate(beam.CombinePerKey(sum))`.

    The grouping gives what it gives without this. Each element of its input is, in each of its windows, either in the
    panes of the window or in `late`, never in both, however often a micro-batch is run; only a window that accumulates,
    and becomes one with another whose trigger had finished, gives to `late` also what earlier panes of it have had.
    Dropping is counted as ever (`droppedDueToLateness`, `droppedDueToClosedWindow`).

    `late` is in the global window, its elements have their own event times, and no grouping behind it that stays in
    the global window finds them too late. To put them into windows of their own, give them the time at which they
    were dropped: `late | beam.Map(lambda e: TimestampedValue(e, e.watermark)) | beam.WindowInto(FixedWindows(60))`
    drops nothing, for no watermark behind the grouping is ahead of that.

    Where elements are combined, that is not begun before they are grouped: what is dropped is elements, and a window
    holds all of its own until it fires.

    Runners other than arcbeam's give an empty `late`, whatever they drop.

    Args:
        grouping: a `beam.GroupByKey` or `beam.CombinePerKey`.

    Raises:
        ValueError: it is something else.
    """

    def __init__(self, grouping: beam.GroupByKey | beam.CombinePerKey, label: str | None = None) -> None:
        named = getattr(grouping, "transform", None)
        if isinstance(named, beam.GroupByKey | beam.CombinePerKey):
            # "name" >> grouping
            label, grouping = label or grouping.label, named
        super().__init__(label)
        # Not subclasses: what they do beside it would be lost.
        if type(grouping) not in (beam.GroupByKey, beam.CombinePerKey):
            raise ValueError(
                f"WithLate({grouping!r}): what is dropped is known of a beam.GroupByKey or a beam.CombinePerKey; give "
                f"it one of these, without side inputs and hot-key fanout, and apply what is around it to its result"
            )
        self._grouping = grouping

    def expand(self, pairs: Any) -> GroupedAndLate:
        """See `beam.PTransform`."""
        groups = pairs | "GroupByKey" >> beam.GroupByKey()
        told = groups | "Late" >> _Apart(groups.element_type).with_outputs(LATE_TAG, main="grouped")
        grouped, grouping = told.grouped, self._grouping
        if isinstance(grouping, beam.CombinePerKey):
            combine = beam.CombineValues(grouping.fn, *grouping.args, **grouping.kwargs)
            key, _ = groups.element_type.tuple_types
            result = grouping.fn.get_type_hints().simple_output_type(grouping.label) or typehints.Any
            grouped = grouped | "Combine" >> combine.with_output_types(typehints.KV[key, result])
        return GroupedAndLate(grouped, told[LATE_TAG] | "Global" >> beam.WindowInto(window.GlobalWindows()))

    def default_label(self) -> str:
        """See `beam.PTransform`."""
        return f"WithLate({self._grouping.label})"


class _Apart(beam.ParDo):  # type: ignore[misc]  # Beam is untyped
    """Stands behind a grouping; the runner that knows the annotation puts out what was dropped by its other output."""

    def __init__(self, groups: Any) -> None:
        super().__init__(_PassOn())
        self.with_output_types(groups)

    def annotations(self) -> dict[str, Any]:
        """See `beam.PTransform`."""
        return {**super().annotations(), LATE_ANNOTATION: b""}


class _PassOn(beam.DoFn):  # type: ignore[misc]  # Beam is untyped
    """What it is to runners that do not know it."""

    def process(self, element: Any) -> Iterator[Any]:
        """Nothing is late."""
        yield element
