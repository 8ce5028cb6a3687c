"""Facts about coders and windowing strategies, and display names. Pure functions over protos."""

from __future__ import annotations

import base64
import bz2
import contextlib
import os
import zlib
from typing import Any

from apache_beam.portability import common_urns
from apache_beam.portability.api import beam_runner_api_pb2 as runner_pb

from arcbeam.model.plan import Firings
from arcbeam.model.urns import KEY_CODER_URN


def may_lift(strategy: Any, bounded: bool) -> bool:
    """Return whether values may be combined before they are grouped, because no pane depends on what this loses.

    Combining loses the number of elements. In a streaming job it also loses which elements are late: a late element
    must not set the earliest time of a pane, and combined with others it would. And elements that are dropped are
    counted by window, so all of a window must have the same fate, whatever their keys.
    """
    trigger = strategy.trigger
    if bounded:
        return not (may_fire_early(trigger) and _counts(trigger))
    if _counts(trigger) or strategy.output_time == runner_pb.OutputTime.EARLIEST_IN_PANE:
        return False
    return not may_close(trigger, late=strategy.allowed_lateness > 0)


def may_close(trigger: Any, *, late: bool) -> bool:
    """Return whether a trigger may fire for the last time before its window expires: later elements are dropped.

    Args:
        trigger: the trigger.
        late: whether elements may arrive after the end of the window.
    """
    parts = [may_close(part, late=late) for part in parts_of(trigger)]
    match trigger.WhichOneof("trigger"):
        case None | "default" | "never" | "always" | "repeat":
            return False
        case "element_count" | "after_processing_time" | "after_synchronized_processing_time" | "or_finally":
            return True
        case "after_end_of_window":
            return late and not trigger.after_end_of_window.HasField("late_firings")
        case "after_any":
            return any(parts)
        case "after_all" | "after_each":
            return all(parts)
    raise _unknown(trigger)


def one_plain_pane(strategy: Any) -> bool:
    """Return whether a bounded input gives exactly one pane per key and window, with the timestamp of the window's end.

    On a bounded input nothing is late, because the watermark passes only when all input has been read. So only early
    firings can make a second pane.
    """
    at_end = strategy.output_time in (runner_pb.OutputTime.UNSPECIFIED, runner_pb.OutputTime.END_OF_WINDOW)
    return at_end and not may_fire_early(strategy.trigger)


def may_fire_early(trigger: Any, *, streaming: bool = False) -> bool:
    """Return whether a trigger may fire before the end of its window, on a bounded input or in a streaming job."""
    parts = (may_fire_early(part, streaming=streaming) for part in parts_of(trigger))
    match trigger.WhichOneof("trigger"):
        case None | "default" | "never":
            return False
        case "always" | "element_count" | "after_processing_time":
            return True
        case "after_synchronized_processing_time":
            return streaming  # a bounded input reaches it only at its end
        case "after_end_of_window" | "after_each":
            return next(parts, False)  # the early firings; the first trigger
        case "repeat" | "or_finally" | "after_any":
            return any(parts)
        case "after_all":
            return all(parts)
    raise _unknown(trigger)


def firings(strategy: Any, *, singleton: bool) -> Firings:
    """Return which panes of a side input a reader sees when its trigger fires several times in a window.

    All panes, as in the SDK's own tests. A singleton is the exception: there the last value replaces earlier ones. If
    the trigger waits for the end of the window, late values are added: the value before them was complete and is not an
    early firing.
    """
    discarding = strategy.accumulation_mode == runner_pb.AccumulationMode.DISCARDING
    early = may_fire_early(strategy.trigger)
    if singleton and (early or (strategy.allowed_lateness > 0 and not discarding)):
        return Firings.LAST
    return Firings.ALL


def is_singleton(side: Any) -> bool:
    """Return whether a side input is read with `AsSingleton`. Its proto says so only inside a pickle.

    The pickle is searched, not loaded: a job server does not run what clients send.
    """
    for opened in (bz2.decompress, zlib.decompress, bytes):
        with contextlib.suppress(OSError, ValueError, zlib.error):
            return b"AsSingleton" in opened(base64.b64decode(side.view_fn.payload, validate=True))
    return False


def _counts(trigger: Any) -> bool:
    """Return whether a trigger, or a part of it, depends on the number of elements."""
    match trigger.WhichOneof("trigger"):
        case "element_count" | "always":
            return True
    return any(map(_counts, parts_of(trigger)))


def parts_of(trigger: Any) -> list[Any]:
    """Return the triggers inside a trigger."""
    kind = trigger.WhichOneof("trigger")
    spec: Any = getattr(trigger, kind) if kind else None
    match kind:
        case None | "default" | "never" | "always" | "element_count":
            return []
        case "after_processing_time" | "after_synchronized_processing_time":
            return []
        case "after_end_of_window":
            return [spec.early_firings, spec.late_firings]
        case "repeat":
            return [spec.subtrigger]
        case "or_finally":
            return [spec.main, getattr(spec, "finally")]
        case "after_any" | "after_all" | "after_each":
            return list(spec.subtriggers)
    raise _unknown(trigger)


def _unknown(trigger: Any) -> ValueError:
    return ValueError(f"unknown trigger: {trigger.WhichOneof('trigger')}")


def coder(components: Any, coder_id: str) -> str:
    """Return a short name of a coder: the last part of its URN and its components' names."""
    if coder_id not in components.coders:
        return coder_id
    proto = components.coders[coder_id]
    urn = proto.spec.urn
    if urn == KEY_CODER_URN:
        return coder(components, proto.component_coder_ids[0])
    short = {common_urns.coders.KV.urn: "kv"}.get(urn) or urn.removeprefix("beam:coder:").rsplit(":", 1)[0]
    parts = ", ".join(coder(components, c) for c in proto.component_coder_ids)
    return f"{short}<{parts}>" if parts else short


def same_coder(components: Any, one: str, other: str) -> bool:
    """Return whether two coders are the same, with all of their components."""
    if one == other:
        return True
    first, second = components.coders[one], components.coders[other]
    parts = first.component_coder_ids, second.component_coder_ids
    return (
        first.spec == second.spec
        and len(parts[0]) == len(parts[1])
        and all(same_coder(components, *pair) for pair in zip(*parts, strict=True))
    )


def windows(strategy: Any) -> str:
    """Return a short name of a window function."""
    fn: str = strategy.window_fn.urn
    return fn.removeprefix("beam:window_fn:").rsplit(":", 1)[0]


def windowing(strategy: Any) -> str:
    """Return a short name of a windowing strategy: window function, trigger if not the default, accumulation mode."""
    kind = strategy.trigger.WhichOneof("trigger")
    text = windows(strategy)
    if kind not in (None, "default"):
        mode = runner_pb.AccumulationMode.Enum.Name(strategy.accumulation_mode).lower()
        text += f", {kind}, {mode}"
    return text


def pcollection(unique_name: str) -> str:
    """Return a PCollection's display name: its producer's name, with the tag if it is not the main output.

    Args:
        unique_name: the SDK's name: the length of the transform's name, that name, "." and the tag.
    """
    for digits in range(1, len(unique_name)):
        if not unique_name[:digits].isdecimal():
            break
        end = digits + int(unique_name[:digits])
        if unique_name[end : end + 1] == ".":
            name, tag = unique_name[digits:end], unique_name[end + 1 :]
            return name if tag == "None" else f"{name}.{tag}"
    return unique_name.removesuffix(".out")  # a collection that combiner lifting adds


def stage_name(names: list[str]) -> str:
    """Return a stage's name: its transforms' common prefix and the ends of their names."""
    if len(names) <= 1:
        return "".join(names)
    prefix = os.path.commonprefix(names)  # noqa: RUF071  # cut back to a whole component in the next line
    prefix = prefix[: prefix.rfind("/") + 1]
    return prefix + " + ".join(n[len(prefix) :] for n in names)
