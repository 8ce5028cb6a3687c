"""Fingerprints that identify each transform of a pipeline across submissions.

Owns which parts of a pipeline's proto count. Must not know how differences are handled.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from hashlib import sha256

from apache_beam.portability import common_urns, python_urns
from apache_beam.portability.api import beam_runner_api_pb2 as runner_pb

from arcbeam.model.fingerprint import Fingerprint, plain
from arcbeam.translate.identifying.pickles import digest
from arcbeam.translate.parsing.parsedpipeline import ParsedPipeline, ParsedTransform

_PARTS = common_urns.combine_components
_COMBINES = frozenset(
    {
        common_urns.composites.COMBINE_GLOBALLY.urn,
        common_urns.composites.COMBINE_PER_KEY.urn,
        _PARTS.COMBINE_GROUPED_VALUES.urn,
        _PARTS.COMBINE_PER_KEY_PRECOMBINE.urn,
        _PARTS.COMBINE_PER_KEY_MERGE_ACCUMULATORS.urn,
        _PARTS.COMBINE_PER_KEY_EXTRACT_OUTPUTS.urn,
        _PARTS.COMBINE_PER_KEY_CONVERT_TO_ACCUMULATORS.urn,
    }
)
_READ = common_urns.deprecated_primitives.READ.urn
_COMPOSITES = frozenset({python_urns.GENERIC_COMPOSITE_TRANSFORM, python_urns.PICKLED_TRANSFORM})
"""URNs of composites. A transform with one of these and no subtransforms returns its input."""


def fingerprints(pipeline: ParsedPipeline, now: float) -> dict[str, Fingerprint]:
    """Return the fingerprint of each leaf transform by its full name, without the line numbers of lambdas.

    Display data, environments, coders, the job's name and its options do not count; see `pickles` for code and values.

    Args:
        pipeline: the pipeline.
        now: the time of the submission, in seconds since 1970. Values that were read from the clock then do not
            count.
    """
    names: dict[str, ParsedTransform] = {}
    for transform in sorted(_leaves(pipeline), key=lambda transform: _order(transform.name)):
        first = name = plain(transform.name)
        number = 2
        while name in names:
            name, number = f"{first}#{number}", number + 1
        names[name] = transform
    producers: dict[str, str] = {}
    for name, transform in names.items():
        outputs = transform.proto.outputs
        for tag, pcoll in outputs.items():
            producers[pcoll] = name if len(outputs) == 1 else f"{name} ({tag})"
    return {
        name: Fingerprint(
            transform.urn,
            tuple(sorted(producers.get(pcoll, "") for pcoll in transform.proto.inputs.values())),
            sha256("\0".join(_content(pipeline, transform, now)).encode()).hexdigest(),
        )
        for name, transform in names.items()
    }


def _leaves(pipeline: ParsedPipeline) -> Iterator[ParsedTransform]:
    for transform in pipeline.transforms.values():
        if not transform.proto.subtransforms and transform.urn not in _COMPOSITES:
            yield transform


def _order(name: str) -> tuple[str | int, ...]:
    """Return a sort key that keeps the lambdas of a script in order when lines are added or removed before them."""
    return tuple(int(part) if part.isdigit() else part for part in re.split(r"(\d+)", name))


def _content(pipeline: ParsedPipeline, transform: ParsedTransform, now: float) -> Iterator[str]:
    """Yield what counts of a transform apart from its kind and inputs, in a fixed order."""
    spec, payload = transform.proto.spec, transform.par_do
    if transform.is_par_do:
        yield digest(payload.do_fn.payload, now)
        for tag, side in sorted(payload.side_inputs.items()):
            yield f"{tag} {side.access_pattern.urn} {digest(side.view_fn.payload, now)}"
        for name, state in sorted(payload.state_specs.items()):
            yield f"{name} {state.WhichOneof('spec')}"
        for name, timer in sorted(payload.timer_family_specs.items()):
            yield f"{name} {timer.time_domain}"
        yield f"{payload.requires_time_sorted_input} {payload.requires_stable_input} {payload.requests_finalization}"
    elif spec.urn in _COMBINES:
        yield digest(runner_pb.CombinePayload.FromString(spec.payload).combine_fn.payload, now)
    elif spec.urn == _READ:
        yield digest(runner_pb.ReadPayload.FromString(spec.payload).source.payload, now)
    else:
        yield digest(spec.payload, now)
    for tag, pcoll in sorted(transform.proto.outputs.items()):
        strategy = pipeline.strategy(pcoll)
        trigger = strategy.trigger.SerializeToString(deterministic=True).hex()
        how = (
            strategy.accumulation_mode,
            strategy.allowed_lateness,
            strategy.output_time,
            strategy.closing_behavior,
            strategy.on_time_behavior,
        )
        yield f"{tag} {strategy.window_fn.urn} {digest(strategy.window_fn.payload, now)} {trigger} {how}"
