"""The operation of a splittable DoFn, one restriction after the other: processed, split meanwhile, truncated.

Owns how a restriction enters the SDK, and what is returned. The caller decides which restriction runs when, and what
happens to the rest: rounds of a bounded stage (`harness.batch.restrictions`), or a micro-batch.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

from apache_beam.internal import pickler
from apache_beam.io.watermark_estimators import MonotonicWatermarkEstimator
from apache_beam.portability.api import beam_runner_api_pb2 as runner_pb
from apache_beam.runners import common
from apache_beam.runners.worker import operations

from arcbeam.errors import ArcbeamError
from arcbeam.harness.bundle import splitting
from arcbeam.harness.bundle.processor import StageProcessor
from arcbeam.harness.bundle.restrictionoperation import RestrictionOperation
from arcbeam.harness.bundle.splitting import Splitter
from arcbeam.harness.encoding.exactcoder import ExactCoder
from arcbeam.model.dofns import KnowsIdle

splitting.register()

_PROCESSES = (RestrictionOperation, operations.SdfProcessSizedElements)

_watermark_of: Any = MonotonicWatermarkEstimator.current_watermark


def _current_watermark(estimator: Any) -> Any:
    """Replace the estimator's method: set a missing watermark, then call the original."""
    if estimator._watermark is None:
        estimator._watermark = estimator._last_observed_timestamp
    return _watermark_of(estimator)


# SUBTLE: the original compares with the previous watermark. The default provider starts with None, so it would raise.
MonotonicWatermarkEstimator.current_watermark = _current_watermark


@dataclass(frozen=True, slots=True)
class Sized:
    """An encoded restriction: a windowed `((element, (restriction, estimator state)), size)`.

    Attributes:
        element: the encoded windowed value.
        size: the size, according to the restriction's provider.
        fresh: whether no part of it was processed. Fresh ones are encoded with the coder of the stage's root, residuals
            with the operation's coder.
    """

    element: bytes
    size: float
    fresh: bool


@dataclass(frozen=True, slots=True)
class Processed:
    """The result of processing a restriction. Residuals are `DelayedBundleApplication`s.

    Attributes:
        split_off: residuals of splits.
        deferred: residuals that the DoFn has deferred.
        made: number of elements that the DoFn has output.
    """

    split_off: list[Any]
    deferred: list[Any]
    made: int


class SplittableOperation:
    """The operation of a stage that processes restrictions.

    Args:
        processor: the stage's processor.

    Attributes:
        op: the SDK's operation.
        root_coder, op_coder: the coders of fresh restrictions, and of residuals.
    """

    def __init__(self, processor: StageProcessor) -> None:
        self._processor = processor
        self.op: Any = next(op for op in processor.sdk.ops.values() if isinstance(op, _PROCESSES))
        # SUBTLE: the SDK encodes residuals with this coder. Its original coder truncates times to milliseconds.
        left = ExactCoder(self.op.input_info.main_input_coder)
        self.op.input_info = self.op.input_info._replace(main_input_coder=left)
        self.root_coder: Any = ExactCoder(processor.root.written_coder).get_impl()
        self.op_coder: Any = left.get_impl()

    def process(self, element: Any, splitter: Splitter, *, fresh: bool) -> Processed:
        """Process a restriction in the open bundle.

        Args:
            element: the decoded windowed value.
            splitter: watches over it.
            fresh: see `Sized`.

        Raises:
            Exception: user code has raised; the message names the transform.
        """
        # SUBTLE: residuals do not pass through the root: a truncation before it must not see what it has truncated.
        enter = self._processor.root.receivers[0].receive if fresh else self.op.process
        outputs = splitter.outputs()
        splitter.begin()
        try:
            try:
                enter(element)
            except BaseException:
                splitter.abandon()
                raise
            split_off = splitter.end()
        except Exception as e:
            named = self._with_step(e)
            if named is e:
                raise
            raise named  # noqa: B904  # the user's own is its context, as with the SDK's
        return Processed(split_off, self._processor.bundles.take_deferrals(), splitter.outputs() - outputs)

    def left(self, application: Any) -> Sized:
        """Return a residual in encoded form."""
        element: bytes = application.application.element
        return Sized(element, self.op_coder.decode_nested(element).value[1], fresh=False)

    def truncate(self, sized: Sized) -> Sized | None:
        """Return what a drain keeps of a restriction; None if nothing."""
        coder = self.root_coder if sized.fresh else self.op_coder
        windowed = coder.decode_nested(sized.element)
        (element, (restriction, state)), _ = windowed.value
        try:
            kept = self._provider.truncate(element, restriction)
            if kept is None:
                return None
            size = self._provider.restriction_size(element, kept)
            if size < 0:
                raise ValueError(f"the size of restriction {kept} is {size}; restriction_size must not be negative")
        except Exception as e:
            raise self._with_step(e) from e
        return Sized(coder.encode_nested(windowed.with_value(((element, (kept, state)), size))), size, sized.fresh)

    @property
    def idling(self) -> KnowsIdle | None:
        """The DoFn, if it knows when a restriction has nothing to do."""
        fn = self.op.fn if isinstance(self.op, RestrictionOperation) else None
        return fn if isinstance(fn, KnowsIdle) else None

    @property
    def endless(self) -> bool:
        """Whether the DoFn declares that its output for one element may be unbounded."""
        return bool(self._signature.is_unbounded_per_element())

    @property
    def _provider(self) -> Any:
        """The DoFn's restriction provider. The SDK truncates in an operation of its own, which not every plan has."""
        return self._signature.get_restriction_provider()

    @cached_property
    def _signature(self) -> Any:
        components = runner_pb.Components.FromString(self._processor.stage.payload)
        transform = components.transforms[self.op.name_context.transform_id]
        payload = runner_pb.ParDoPayload.FromString(transform.spec.payload)
        fn, *_ = pickler.loads(payload.do_fn.payload)
        return common.DoFnSignature(fn)

    def _with_step(self, error: Exception) -> Exception:
        """Return a copy of a user's error that names the transform, as the SDK does for all other DoFns."""
        if isinstance(error, ArcbeamError) or getattr(error, "_tagged_with_step", False):
            return error
        named: Any
        text = f"{error} [while running '{self.op.name_context.step_name.removesuffix('/Process')}']"
        try:
            named = type(error)(text)
            named._tagged_with_step = True
        except Exception:
            named = RuntimeError(f"{type(error).__name__}: {text}")
            named._tagged_with_step = True
        copy: Exception = named.with_traceback(error.__traceback__)
        return copy
