"""Facts about coders and windowing strategies, and names for people. Pure functions over protos."""

from __future__ import annotations

import os
from typing import Any

from apache_beam.portability import common_urns
from apache_beam.portability.api import beam_runner_api_pb2 as runner_pb


def one_plain_pane(strategy: Any) -> bool:
    """Whether a bounded input gives exactly one pane per key and window, with the timestamp of the window's end.

    On a bounded input nothing is late (the watermark passes only when all input has been seen), so only early firings
    can make a second pane.
    """
    at_end = strategy.output_time in (runner_pb.OutputTime.UNSPECIFIED, runner_pb.OutputTime.END_OF_WINDOW)
    return at_end and not _may_fire_early(strategy.trigger)


def _may_fire_early(trigger: Any) -> bool:
    """Whether a trigger may fire while a bounded input comes in."""
    kind = trigger.WhichOneof("trigger")
    spec: Any = getattr(trigger, kind) if kind else None
    match kind:
        case None | "default" | "never" | "after_synchronized_processing_time":
            return False
        case "after_end_of_window":
            return _may_fire_early(spec.early_firings)
        case "repeat":
            return _may_fire_early(spec.subtrigger)
        case "after_any":
            return any(map(_may_fire_early, spec.subtriggers))
        case "after_all":
            return all(map(_may_fire_early, spec.subtriggers))
        case "or_finally":
            return _may_fire_early(spec.main) or _may_fire_early(getattr(spec, "finally"))
        case "after_each":
            return any(map(_may_fire_early, spec.subtriggers[:1]))
    return True


def coder(components: Any, coder_id: str) -> str:
    """A short name of a coder: its last URN part and its components'."""
    if coder_id not in components.coders:
        return coder_id
    proto = components.coders[coder_id]
    urn = proto.spec.urn
    short = {common_urns.coders.KV.urn: "kv"}.get(urn) or urn.removeprefix("beam:coder:").rsplit(":", 1)[0]
    parts = ", ".join(coder(components, c) for c in proto.component_coder_ids)
    return f"{short}<{parts}>" if parts else short


def windowing(strategy: Any) -> str:
    """A short name of a windowing strategy: window function, trigger if not the default, accumulation mode."""
    fn = strategy.window_fn.urn.removeprefix("beam:window_fn:").rsplit(":", 1)[0]
    kind = strategy.trigger.WhichOneof("trigger")
    text: str = fn
    if kind not in (None, "default"):
        mode = runner_pb.AccumulationMode.Enum.Name(strategy.accumulation_mode).lower()
        text += f", {kind}, {mode}"
    return text


def stage_name(names: list[str]) -> str:
    """A stage's name: its transforms' common prefix and the ends of their names."""
    if len(names) <= 1:
        return "".join(names)
    prefix = os.path.commonprefix(names)  # noqa: RUF071  # cut back to a whole component in the next line
    prefix = prefix[: prefix.rfind("/") + 1]
    return prefix + " + ".join(n[len(prefix) :] for n in names)
