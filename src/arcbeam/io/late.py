"""The elements that a grouping drops as too late, as a collection.

Owns how a pipeline requests them, and what is known of such an element. The runner drops elements; its side is
`arcbeam.harness.operations.lateoperation`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal, NamedTuple

import apache_beam as beam
from apache_beam.transforms import window
from apache_beam.typehints import typehints
from apache_beam.utils.timestamp import Timestamp
from typing_extensions import override

from arcbeam.model.urns import LATE_ANNOTATION, LATE_TAG


class LateElement(NamedTuple):
    """An element that a grouping has dropped, in one of its windows.

    Attributes:
        key: the element's key.
        value: the element's value; if values are combined, the value before combining.
        timestamp: the element's event time. If the window held the element when it was closed (see `reason`), the last
            moment of the window.
        window: the window in which it was dropped. An element in several windows is dropped in each separately.
        watermark: the watermark of the grouping's input when the element was dropped.
        reason: "expired": the watermark had passed the end of the window and the allowed lateness. "closed": the
            trigger of the window had finished, or the window was merged with such a window.
    """

    key: Any
    value: Any
    timestamp: Timestamp
    window: Any
    watermark: Timestamp
    reason: Literal["expired", "closed"]


class GroupedAndLate(NamedTuple):
    """The result of `WithLate`.

    Attributes:
        grouped: the output of the grouping.
        late: the elements that it drops, as `LateElement`s.
    """

    grouped: Any
    late: Any


class WithLate(beam.PTransform):  # type: ignore[misc]  # Beam is untyped
    """A grouping, and a collection of the elements that it drops: `totals, late = pairs |
    WithLate(CombinePerKey(sum))`.

    The grouping's output is the same as without this transform. Each input element is, in each of its windows, either
    in the window's panes or in `late`, never in both, however often a micro-batch runs. The one exception: a window
    that accumulates and is merged with a window whose trigger had finished. Then `late` also contains elements of its
    earlier panes. The metrics of dropped elements stay the same (`droppedDueToLateness`, `droppedDueToClosedWindow`).

    `late` is in the global window, and its elements keep their event times. A grouping of `late` in the global window
    drops none of them. To put them into other windows, set their times to the time at which they were dropped:
    `late | beam.Map(lambda e: TimestampedValue(e, e.watermark)) | beam.WindowInto(FixedWindows(60))`. This drops
    nothing, because no later watermark of the collection is ahead of that time.

    Elements are not combined before they are grouped, because single elements are dropped. So a window holds all of its
    elements until it fires.

    With other runners `late` is empty, whatever they drop.

    Args:
        grouping: a `beam.GroupByKey` or `beam.CombinePerKey`.

    Raises:
        ValueError: `grouping` is another transform.
    """

    def __init__(self, grouping: beam.GroupByKey | beam.CombinePerKey, label: str | None = None) -> None:
        named = getattr(grouping, "transform", None)
        if isinstance(named, beam.GroupByKey | beam.CombinePerKey):
            # "name" >> grouping
            label, grouping = label or grouping.label, named
        super().__init__(label)
        # Subclasses are refused: what they do in addition would be lost.
        if type(grouping) not in (beam.GroupByKey, beam.CombinePerKey):
            raise ValueError(
                f"WithLate({grouping!r}): expected a beam.GroupByKey or a beam.CombinePerKey without side inputs and "
                f"hot-key fanout, whose dropped elements are known. Apply other transforms to its result"
            )
        self._grouping = grouping

    @override
    def expand(self, pairs: Any) -> GroupedAndLate:
        groups = pairs | "GroupByKey" >> beam.GroupByKey()
        split = groups | "Late" >> _Apart(groups.element_type).with_outputs(LATE_TAG, main="grouped")
        grouped, grouping = split.grouped, self._grouping
        if isinstance(grouping, beam.CombinePerKey):
            combine = beam.CombineValues(grouping.fn, *grouping.args, **grouping.kwargs)
            key, _ = groups.element_type.tuple_types
            result = grouping.fn.get_type_hints().simple_output_type(grouping.label) or typehints.Any
            grouped = grouped | "Combine" >> combine.with_output_types(typehints.KV[key, result])
        return GroupedAndLate(grouped, split[LATE_TAG] | "Global" >> beam.WindowInto(window.GlobalWindows()))

    @override
    def default_label(self) -> str:
        return f"WithLate({self._grouping.label})"


class _Apart(beam.ParDo):  # type: ignore[misc]  # Beam is untyped
    """Follows a grouping. A runner that knows the annotation emits dropped elements through the second output."""

    def __init__(self, groups: Any) -> None:
        super().__init__(_PassOn())
        self.with_output_types(groups)

    @override
    def annotations(self) -> dict[str, Any]:
        return {**super().annotations(), LATE_ANNOTATION: b""}


class _PassOn(beam.DoFn):  # type: ignore[misc]  # Beam is untyped
    """On runners that do not know the annotation, passes elements on."""

    def process(self, element: Any) -> Iterator[Any]:
        """Pass the element on; none is late."""
        yield element
