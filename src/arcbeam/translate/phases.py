"""The SDK's graph phases in the runner's order, from the SDK's internal `translations`.

Owns which phases run, and how exchanges are cut out of the graph. Must not know plans or Spark. A contract test checks
the SDK internals that this module uses.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from graphlib import CycleError, TopologicalSorter
from typing import Any

from apache_beam.portability import common_urns
from apache_beam.portability.api import beam_runner_api_pb2 as runner_pb
from apache_beam.runners.portability.fn_api_runner import translations
from apache_beam.runners.worker import bundle_processor

from arcbeam.model.urns import LATE_ANNOTATION
from arcbeam.sizes import threshold
from arcbeam.translate import describe, teststream
from arcbeam.translate.detours import without_detours
from arcbeam.translate.parsing.parsedpipeline import EXCHANGES, KNOWN_URNS, ParsedPipeline, ParsedTransform, leaf_stages
from arcbeam.translate.parsing.parsedstages import DATA_INPUT, DATA_OUTPUT, SCRIPT, SPLIT_URN, ParsedStage

SdkStage = translations.Stage


class _EmbeddedContext(translations.TransformContext):  # type: ignore[misc]  # Beam is untyped
    """A context with one SDK on both sides of every edge: no worker has to skip bytes that it cannot decode."""

    def length_prefix_pcoll_coders(self, pcoll_id: str) -> None:
        """Keep the coder: only the SDK that wrote an element reads it."""

    def add_data_channel_coder(self, pcoll_id: str, is_input: bool = False) -> None:
        """Do nothing: there is no data plane."""

    def ours(self, coder_id: str) -> str:
        """Return the coder: all values are decoded."""
        return coder_id

    def decoding(self, exchange: Any, source: str, outputs: dict[str, str]) -> Iterator[Any]:
        """Yield nothing: what leaves an exchange is decoded, whatever its coder is."""
        yield from ()

    def windows(self, coder_id: str) -> tuple[str, str]:
        """Return the coder twice: all windows are decoded."""
        return coder_id, coder_id

    def stored(self, coder_id: str) -> tuple[str, bool]:
        """Return the coder: elements are stored as they are declared."""
        return coder_id, False


class _WorkersContext(translations.TransformContext):  # type: ignore[misc]  # Beam is untyped
    """A context with SDK workers: between stages, values that the runner cannot decode are prefixed by their length.

    Attributes:
        python: an environment with workers that run Python; None if there is none.
    """

    python: str | None = None

    def maybe_length_prefixed_and_safe_coder(self, coder_id: str) -> tuple[str, str]:
        """Return the coder on the way to a worker, and the runner's coder for the same bytes.

        A string is bytes here: it is encoded alike, and strings of Go need not be UTF-8.
        """
        if self.components.coders[coder_id].spec.urn == common_urns.coders.STRING_UTF8.urn:
            prefixed: str = super().maybe_length_prefixed_and_safe_coder(coder_id)[0]
            return prefixed, self.bytes_coder_id
        found: tuple[str, str] = super().maybe_length_prefixed_and_safe_coder(self._with_ends_of_windows(coder_id))
        return found

    def windows(self, coder_id: str) -> tuple[str, str]:
        """Return a coder of windows for a worker, and the runner's coder for the same bytes.

        Of windows of a type that only the worker knows, the runner reads the end.
        """
        if self.components.coders[coder_id].spec.urn in self._known_coder_urns:
            return coder_id, coder_id
        theirs: str = self.timestamped_prefixed_window_coder(coder_id)
        return theirs, self.safe_coders[theirs]

    def _with_ends_of_windows(self, coder_id: str) -> str:
        """Return the coder of timers with the end of their windows; another coder as it is."""
        coder = self.components.coders[coder_id]
        if coder.spec.urn != common_urns.coders.TIMER.urn:
            return coder_id
        key, window = coder.component_coder_ids
        changed = runner_pb.Coder(spec=coder.spec, component_coder_ids=[key, self.windows(window)[0]])
        found: str = self.add_or_get_coder_id(changed, coder_id)
        return found

    def ours(self, coder_id: str) -> str:
        """Return the coder that reads the same bytes as the coder of an edge between stages.

        What only an SDK's worker can decode is bytes.
        """
        coder: str = self.safe_coders[self.maybe_length_prefixed_coder(coder_id)]
        return coder

    def decoding(self, exchange: Any, source: str, outputs: dict[str, str]) -> Iterator[Any]:
        """Yield a stage that changes the encoding of what leaves an exchange, if it is declared with another coder.

        Between stages, most values are bytes, so only a worker can do that. Other SDKs than Python's declare one coder.

        Args:
            exchange: the transform.
            source: its input.
            outputs: its outputs by tag; changed to those that are encoded as they entered.
        """
        pcollections = self.components.pcollections
        for tag, pcoll in outputs.items():
            written, declared = pcollections[source].coder_id, pcollections[pcoll].coder_id
            if self.python is None or describe.same_coder(self.components, written, declared):
                continue
            outputs[tag] = encoded = f"{pcoll} as written"
            pcollections[encoded].CopyFrom(pcollections[pcoll])
            pcollections[encoded].coder_id = written
            name = f"{exchange.unique_name}/Encode"
            transform = runner_pb.PTransform(
                unique_name=name,
                inputs={"in": encoded},
                outputs={"out": pcoll},
                spec=runner_pb.FunctionSpec(urn=bundle_processor.IDENTITY_DOFN_URN),
                environment_id=self.python,
            )
            yield SdkStage(name, [transform], downstream_side_inputs=frozenset(), must_follow=frozenset())

    def decoded(self, coder_id: str) -> str:
        """Return the coder with which embedded Python reads and writes the bytes of an edge between stages."""
        coder: str = self.maybe_length_prefixed_coder(coder_id)
        return coder

    def stored(self, coder_id: str) -> tuple[str, bool]:
        """Return the coder with which elements are stored, and whether it prefixes some parts by their length."""
        coder: str = self.maybe_length_prefixed_coder(coder_id)
        return coder, "length_prefix" in describe.coder(self.components, coder)

    def port(self, pcoll: str) -> tuple[str, str]:
        """Return the windowed coder of a PCollection on the way into or out of a worker, and the runner's for it."""
        self.add_data_channel_coder(pcoll)
        coder: str = self.data_channel_coders[pcoll]
        return coder, self.safe_coders[coder]


def _expand_scripts(stages: Iterable[Any], context: Any) -> Iterator[Any]:
    """Replace a TestStream by a read for each of its outputs, so that each output has its own watermark."""
    for stage in stages:
        transform = stage.transforms[0]
        if transform.spec.urn != teststream.URN:
            yield stage
            continue
        for tag, pcoll in sorted(transform.outputs.items()):
            name = transform.unique_name if len(transform.outputs) == 1 else f"{transform.unique_name}/{tag}"
            spec = runner_pb.FunctionSpec(urn=DATA_INPUT, payload=SCRIPT + tag.encode())
            yield SdkStage(
                name,
                [runner_pb.PTransform(unique_name=name, outputs={"out": pcoll}, spec=spec)],
                downstream_side_inputs=stage.downstream_side_inputs,
                must_follow=stage.must_follow,
            )


def _expand_exchanges(stages: Iterable[Any], context: Any) -> Iterator[Any]:
    """Replace Reshuffle and Redistribute by a write and a read. Elements keep windows, timestamps and panes."""
    stages = list(stages)
    splits = {
        pcoll for stage in stages for t in stage.transforms if t.spec.urn == SPLIT_URN for pcoll in t.outputs.values()
    }
    for stage in stages:
        transform = stage.transforms[0]
        if transform.spec.urn not in EXCHANGES:
            yield stage
            continue
        outputs = dict(transform.outputs)
        # An SDF's own reshuffle is a copy of the SDF's transform and still names its side inputs.
        sources = list(transform.inputs.values())
        source = next((p for p in sources if p in splits), sources[0])
        yield from context.decoding(transform, source, outputs)
        buffer_id = f"spread:{transform.unique_name}".encode()
        write = SdkStage(
            transform.unique_name + "/Write",
            [
                runner_pb.PTransform(
                    unique_name=transform.unique_name + "/Write",
                    inputs={"in": source},
                    spec=runner_pb.FunctionSpec(urn=DATA_OUTPUT, payload=buffer_id),
                )
            ],
            downstream_side_inputs=frozenset(),
            must_follow=stage.must_follow,
        )
        yield write
        yield SdkStage(
            transform.unique_name + "/Read",
            [
                runner_pb.PTransform(
                    unique_name=transform.unique_name + "/Read",
                    outputs=outputs,
                    spec=runner_pb.FunctionSpec(urn=DATA_INPUT, payload=buffer_id),
                )
            ],
            downstream_side_inputs=stage.downstream_side_inputs,
            must_follow=frozenset([write]) | stage.must_follow,
        )


def _lift_combiners(bounded: bool, stages: Iterable[Any], context: Any) -> list[Any]:
    """Run the SDK's lifting of combiners, but decide here which combiners to lift.

    The SDK lifts where a trigger fires after one element, which then stands for all elements combined in a bundle. It
    does not lift where a trigger fires only at the watermark.
    """
    strategies = context.components.windowing_strategies.values()
    kept = [runner_pb.Trigger.FromString(strategy.trigger.SerializeToString()) for strategy in strategies]
    for strategy in strategies:
        lift = describe.may_lift(strategy, bounded)
        strategy.trigger.CopyFrom(_LIFTED if lift else _NOT_LIFTED)
    lifted = list(translations.lift_combiners(stages, context))
    for strategy, trigger in zip(strategies, kept, strict=True):
        strategy.trigger.CopyFrom(trigger)
    return lifted


_LIFTED = runner_pb.Trigger(default=runner_pb.Trigger.Default())
_NOT_LIFTED = runner_pb.Trigger(element_count=runner_pb.Trigger.ElementCount(element_count=2))


def _break_before(wanted: Callable[[Any], object]) -> Callable[[Iterable[Any], Any], Iterator[Any]]:
    """Return a phase that starts a new stage at each ParDo with a matching payload."""

    def phase(stages: Iterable[Any], context: Any) -> Iterator[Any]:
        for stage in stages:
            if any(wanted(ParsedTransform(each).par_do) for each in stage.transforms):
                stage.forced_root = True
            yield stage

    return phase


def _break_long_chains(stages: Iterable[Any], context: Any) -> list[Any]:
    """Limit the length of paths inside a stage: the SDK's operations call each other and can nest only so deep.

    A transform at the maximum depth becomes the root of a stage, and so on along its path. The depth is the longest
    path since the last such root, whether or not the whole path ends up in one stage.
    """
    stages = list(stages)
    producers = {pcoll: stage for stage in stages for t in stage.transforms for pcoll in t.outputs.values()}
    depths: dict[Any, int] = {}
    for last in stages:
        waiting = [last]
        while waiting:
            stage = waiting[-1]
            before = [producers[p] for t in stage.transforms for p in t.inputs.values() if p in producers]
            if missing := [s for s in before if s not in depths and s is not stage]:
                waiting += missing
                continue
            waiting.pop()
            if stage in depths:
                continue
            depth = 1 if stage.forced_root else 1 + max((depths[s] for s in before if s is not stage), default=0)
            if depth > _CHAIN_TRANSFORMS_MAX and not any(t.spec.urn == DATA_OUTPUT for t in stage.transforms):
                stage.forced_root, depth = True, 1
            depths[stage] = depth
    return stages


_CHAIN_TRANSFORMS_MAX = threshold(100, 3)
"""Transforms. Each takes at least four frames of Python's stack of 1,000, and user code needs some."""


def _break_everywhere(stages: Iterable[Any], context: Any) -> Iterator[Any]:
    """Without fusion: every SDK transform is the root of its own stage.

    Only the runner's writes join their producer, and the transform that outputs dropped elements joins its grouping.
    """
    for stage in stages:
        if not any(t.spec.urn == DATA_OUTPUT or LATE_ANNOTATION in t.annotations for t in stage.transforms):
            stage.forced_root = True
        yield stage


class _AsWritten:
    """The order of stages and transforms before fusion.

    The SDK fuses and sorts over sets. Restoring the original order gives the same plan for the same pipeline.
    """

    def __init__(self, stages: Iterable[Any]) -> None:
        self.stages = list(stages)
        self._places: dict[str, int] = {}
        for stage in self.stages:
            for transform in stage.transforms:
                self._places.setdefault(transform.unique_name, len(self._places))

    def restore(self, stages: Iterable[Any]) -> list[Any]:
        """Put stages and transforms back into that order after fusion, as far as their dependencies allow."""
        stages = list(stages)
        for stage in stages:
            stage.transforms.sort(key=self._place)
        for stage in stages:
            stage.must_follow = tuple(sorted(stage.must_follow, key=self._first))
        return sorted(stages, key=self._first)

    def _place(self, transform: Any) -> tuple[int, str]:
        return self._places.get(transform.unique_name, len(self._places)), transform.unique_name

    def _first(self, stage: Any) -> tuple[int, str]:
        return min(map(self._place, stage.transforms), default=(0, ""))


def _fused(stages: Iterable[Any], context: Any) -> list[Any]:
    """Run the SDK's fusion, but avoid stages that wait for each other.

    Take two collections, each used by a transform that reads the other as a side input. The SDK fuses each collection
    with its user, and neither stage could begin. In that case one user starts a new stage.
    """
    as_written = _AsWritten(stages)
    stages = as_written.stages
    before = [(stage.must_follow, stage.transforms) for stage in stages]
    while True:
        fused = as_written.restore(translations.greedily_fuse(stages, context))
        reader = _reader_in_circle(fused)
        if reader is None:
            return fused
        for stage, (must_follow, transforms) in zip(stages, before, strict=True):
            # Fusion also changes these in stages that it does not fuse.
            stage.must_follow, stage.transforms = must_follow, transforms
            if reader in stage.transforms:
                stage.forced_root = True


def _reader_in_circle(stages: Sequence[Any]) -> Any:
    """Return a transform to break a cycle of stages at; None if there is no cycle or no such transform.

    It reads a side input from another stage of the cycle, and is not the first transform of its stage.
    """
    try:
        TopologicalSorter({stage: [s for s in stage.must_follow if s is not stage] for stage in stages}).prepare()
    except CycleError as e:
        circle = e.args[1]
    else:
        return None
    written = {p for stage in circle for t in stage.transforms if t.spec.urn == DATA_OUTPUT for p in t.inputs.values()}
    for stage in circle:
        begins = {p for t in stage.transforms for p in t.outputs.values() if t.spec.payload == _copied(p)}
        own = {p for t in stage.transforms for p in t.outputs.values()} - begins
        for transform in stage.transforms:
            sides = set(translations.side_inputs(transform).values())
            if sides & written and own & (set(transform.inputs.values()) - sides):
                return transform
    return None


def _copied(pcoll: str) -> bytes:
    """Return the buffer that carries a collection from its producing stage to others."""
    buffer: bytes = translations.create_buffer_id(pcoll)
    return buffer


def optimized(
    pipeline: ParsedPipeline, *, fusion: bool, drain: bool, bounded: bool
) -> tuple[Any, ParsedPipeline, list[ParsedStage]]:
    """Run the phases on a copy of the pipeline.

    Args:
        pipeline: the pipeline.
        fusion: whether transforms may share a stage.
        drain: insert a truncation before every splittable DoFn.
        bounded: side inputs are complete before the stage that reads them begins. In a streaming job elements wait
            for side inputs.

    Returns:
        The context, which has the coders of edges between stages; the pipeline, with what the phases added; and the
        stages, in topological order. Reads and writes between stages are transforms with the URNs DATA_INPUT and
        DATA_OUTPUT, whose payload names a buffer.
    """
    proto = pipeline.changed()
    kind = _WorkersContext if pipeline.any_workers else _EmbeddedContext
    context = kind(proto.components, frozenset(KNOWN_URNS), is_drain=drain)
    context.python = pipeline.python_workers
    stages: list[Any] = list(leaf_stages(proto))
    phases = [
        translations.annotate_downstream_side_inputs,
        translations.annotate_stateful_dofns_as_roots,
        _break_before(lambda payload: payload.requires_stable_input),
        # In a streaming job a combine keeps its state under its own name, independent of other combines.
        *([translations.pack_combiners] if bounded else []),
        partial(_lift_combiners, bounded),
        translations.expand_sdf,
        _expand_scripts,
        _expand_exchanges,
        translations.expand_gbk,
        translations.sink_flattens,
        # In a streaming job elements wait for side inputs when they enter a stage, which does not group or window
        # them.
        *([] if bounded else [_break_before(lambda payload: payload.side_inputs)]),
        *([_break_long_chains] if fusion else [_break_everywhere]),
        _fused,
        # In a streaming job, adding or removing a consumer of a Flatten would move the state of the others: see
        # docs/developers/batch.md.
        *([partial(without_detours, translations.side_inputs)] if bounded else []),
        translations.read_to_impulse,
        translations.impulse_to_input,
        translations.sort_stages,
        translations.add_impulse_to_dangling_transforms,
    ]
    with _deep_graphs(len(proto.components.transforms)):
        for phase in phases:
            stages = list(phase(stages, context))
    return context, ParsedPipeline(proto), [ParsedStage(stage) for stage in stages if stage.transforms]


@contextlib.contextmanager
def _deep_graphs(transforms: int) -> Iterator[None]:
    """Raise Python's recursion limit: some of the SDK's phases follow a graph by recursion.

    They are pure Python, whose calls do not use the thread's C stack.
    """
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(limit + _FRAMES * transforms)
    try:
        yield
    finally:
        sys.setrecursionlimit(limit)


_FRAMES = 4
"""Maximum stack frames for each transform of a path."""
