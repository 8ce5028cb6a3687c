"""Samples of a stage's outputs: the first elements of each, as texts, through the SDK's own data sampler.

Owns which elements are kept, and their form. A stage that is opened with a sampler passes each element on its own, and
is slower; one without a sampler does no such thing. Must not know who requests samples, nor where they go.
"""

from __future__ import annotations

import reprlib
from collections.abc import Iterable
from typing import Any, Final

from apache_beam.runners.worker.data_sampler import DataSampler
from apache_beam.transforms.window import IntervalWindow
from apache_beam.utils.windowed_value import PANE_INFO_UNKNOWN, PaneInfoTiming

from arcbeam.errors import UserCodeError
from arcbeam.harness.bundle.failingelement import failing_element_of
from arcbeam.harness.bundle.usererrors import described, original
from arcbeam.model import texts

SAMPLES_MAX: Final = 5
"""The elements of an output that are kept."""
TEXT_BYTES_MAX: Final = 2048
"""Bytes of a text in UTF-8."""
_CUT: Final = " … (cut)"
_PARTS_MAX: Final = 100
"""Parts of a container that are shown; a text of 2 kB seldom has room for more."""

_REPR: Final = reprlib.Repr()
_REPR.maxstring = _REPR.maxother = _REPR.maxlong = 2 * TEXT_BYTES_MAX
_REPR.maxlist = _REPR.maxtuple = _REPR.maxdict = _REPR.maxset = _REPR.maxfrozenset = _REPR.maxdeque = _PARTS_MAX

_TIMINGS: Final = {getattr(PaneInfoTiming, name): name for name in ("EARLY", "ON_TIME", "LATE")}


class _First:
    """The first elements of an output, as texts. For the SDK's receivers it is an `ElementSampler`: they set `el`."""

    def __init__(self) -> None:
        self.kept: list[dict[str, Any]] = []

    @property
    def has_element(self) -> bool:
        """Whether no further element is wanted."""
        return len(self.kept) >= SAMPLES_MAX

    @has_element.setter
    def has_element(self, value: bool) -> None:
        """Do nothing: `el` is set, too."""

    @property
    def el(self) -> Any:
        """Nothing: elements become texts at once, because a consumer may change a value, and a value may be large."""
        return None

    @el.setter
    def el(self, element: Any) -> None:
        self.kept.append(record(element))


class StageSampler(DataSampler):  # type: ignore[misc]  # Beam is untyped
    """The sampler of one stage: the stage's processor gets it, and the task that opened the stage reads it."""

    def __init__(self) -> None:
        # 0: without a timer.
        super().__init__(max_samples=SAMPLES_MAX, sample_every_sec=0)
        self._firsts: dict[str, list[tuple[str, _First]]] = {}

    def initialize_samplers(self, transform_id: str, descriptor: Any, coder_factory: Any) -> Any:
        """See the SDK's `DataSampler`."""
        samplers = super().initialize_samplers(transform_id, descriptor, coder_factory)
        transform = descriptor.transforms[transform_id]
        for tag, sampler in zip(transform.outputs, samplers, strict=True):
            if not isinstance(sampler.element_sampler, _First):
                sampler.element_sampler = _First()
            name = f"{transform.unique_name}.{tag}" if len(transform.outputs) > 1 else transform.unique_name
            self._firsts.setdefault(transform_id, []).append((name, sampler.element_sampler))
        return samplers

    def taken(self, transforms: Iterable[str]) -> list[dict[str, Any]]:
        """Return the samples so far, as JSON values.

        Args:
            transforms: the ids of the stage's transforms, producers first.

        Returns:
            For each output that has any: `output`, its full name in the pipeline, and `elements`, each with `value` (a
            text), `time` (microseconds since 1970), `windows` (texts) and `pane` (a text, or "").
        """
        outputs = [each for id in transforms for each in self._firsts.get(id, ())]
        return [{"output": name, "elements": list(first.kept)} for name, first in outputs if first.kept]


def failure_record(error: BaseException, step: str) -> dict[str, Any] | None:
    """Return the element with which user code has failed, as JSON values; None if no user code has failed.

    Args:
        error: as it has left the bundle.
        step: the transform that ran; "" if unknown.

    Returns:
        `transform`, `error` (a text), and `value`, a text; "" if it is unknown.
    """
    found = described(error, step)
    if not isinstance(found, UserCodeError):
        return None
    element = failing_element_of(error) or failing_element_of(original(error, step)[0])
    value = "" if element is None else _text(element.element)
    return {"transform": found.step, "error": cut(found.error), "value": value}


def cut(text: str) -> str:
    """Return a text, cut at `TEXT_BYTES_MAX` bytes."""
    data = texts.fit(text).encode()
    if len(data) <= TEXT_BYTES_MAX:
        return data.decode()
    return data[: TEXT_BYTES_MAX - len(_CUT.encode())].decode(errors="ignore") + _CUT


def _text(value: Any) -> str:
    return cut(texts.safe_text(_REPR.repr, value))


def record(element: Any) -> dict[str, Any]:
    """Return a windowed value as JSON values; see `StageSampler.taken`."""
    return {
        "value": _text(element.value),
        "time": int(element.timestamp.micros),
        "windows": [_window(window) for window in element.windows],
        "pane": _pane(element.pane_info),
    }


def _window(window: Any) -> str:
    """Return a window as a text: an interval in UTC, any other one as it prints itself."""
    if isinstance(window, IntervalWindow):
        try:
            return f"{window.start.to_rfc3339()} to {window.end.to_rfc3339()}"
        except (OverflowError, ValueError):
            pass  # outside of the calendar
    return cut(texts.safe_text(str, window))


def _pane(pane: Any) -> str:
    """Return the pane of an element of a grouping as a text; "" for all others."""
    if pane == PANE_INFO_UNKNOWN or pane.timing not in _TIMINGS:
        return ""
    ends = [name for name, holds in (("first", pane.is_first), ("last", pane.is_last)) if holds]
    return ", ".join([_TIMINGS[pane.timing].replace("_", " ").lower(), f"number {pane.index}", *ends])
