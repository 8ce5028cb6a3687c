"""The DoFns of a stage that implement `GracefulShutdown`, and their calls.

Owns how to find the instance that a worker really uses, and how its outputs are emitted. The code that runs the stage
decides when to call it. A contract test covers the SDK internals that this module relies on.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from apache_beam.internal import pickler
from apache_beam.portability import common_urns
from apache_beam.portability.api import beam_runner_api_pb2 as runner_pb
from apache_beam.pvalue import TaggedOutput
from apache_beam.runners import common
from apache_beam.runners.worker import operations
from apache_beam.transforms import core
from apache_beam.transforms.window import GlobalWindow
from apache_beam.typehints import typecheck
from apache_beam.utils.windowed_value import WindowedValue, create

from arcbeam.errors import ArcbeamError
from arcbeam.harness.operations.blockoperation import BlockOperation, user_error
from arcbeam.model import texts
from arcbeam.model.plan import Stage
from arcbeam.model.shutdown import GracefulShutdown
from arcbeam.model.timestamps import END_OF_GLOBAL_WINDOW

_DOFNS: Final = {
    common_urns.primitives.PAR_DO.urn,
    common_urns.sdf_components.PROCESS_SIZED_ELEMENTS_AND_RESTRICTIONS.urn,
}
_GLOBAL: Final = (GlobalWindow(),)


@dataclass(frozen=True, slots=True)
class _Offer:
    """An operation, and its DoFn."""

    op: Any
    fn: GracefulShutdown

    @property
    def step(self) -> str:
        """The operation's name, for messages."""
        name: str = self.op.name_context.step_name
        return name


class GracefulDoFns:
    """The DoFns of a stage that implement `GracefulShutdown`, from sources to sinks.

    Args:
        ops: the stage's operations, producers first; set up.
        descriptor: descriptor of the stage's bundles.

    Raises:
        ArcbeamError: one of them can never be called.
    """

    def __init__(self, ops: Mapping[str, Any], descriptor: Any) -> None:
        found = ((name, op, graceful(dofn_of(op))) for name, op in ops.items())
        self._offers = {name: _Offer(op, fn) for name, op, fn in found if fn is not None}
        self._descriptor = descriptor
        self._is_shut = False

    @property
    def steps(self) -> tuple[str, ...]:
        """The names of their transforms."""
        return tuple(offer.step for offer in self._offers.values())

    @property
    def prepares(self) -> bool:
        """Whether one of them overrides `prepare_to_shutdown`."""
        return any(_prepares(offer.fn) for offer in self._offers.values())

    def prepare(self) -> None:
        """Call `prepare_to_shutdown`, in an open bundle.

        Raises:
            UserCodeError: it has raised, or returned an invalid output. The error names the transform.
        """
        for name, offer in self._offers.items():
            if _prepares(offer.fn):
                outlets = _Outlets(offer, self._descriptor, name)
                with offer.op.scoped_finish_state:
                    for output in _prepared_outputs(offer, offer.fn):
                        outlets.put_out(output)

    def shut_down(self) -> list[str]:
        """Call `shutdown`, once; return the errors that were raised, as messages."""
        errors: list[str] = []
        if self._is_shut:
            return errors
        self._is_shut = True
        for offer in self._offers.values():
            try:
                offer.fn.shutdown()
            except Exception as e:
                errors.append(f"{_named(offer)} has raised {type(e).__name__}: {texts.safe_text(str, e)}")
        return errors


def _prepared_outputs(offer: _Offer, fn: GracefulShutdown) -> Iterator[Any]:
    """Yield the outputs of `prepare_to_shutdown`. Errors name the transform."""
    try:
        yield from fn.prepare_to_shutdown() or ()
    except ArcbeamError:
        raise
    except Exception as e:
        raise user_error(offer.op, e) from e


class _Outlets:
    """The outputs of an operation, by tag."""

    def __init__(self, offer: _Offer, descriptor: Any, name: str) -> None:
        self._offer = offer
        op, tags = offer.op, list(offer.op.spec.output_tags)
        self._receivers: dict[str | None, Any] = dict(zip(tags, op.receivers, strict=True))
        pcolls = descriptor.transforms[name].outputs
        self._global: dict[str | None, bool] = {tag: _is_global(descriptor, pcolls[tag]) for tag in tags}
        main = tags[0] if len(tags) == 1 else "None"
        for by_tag in (self._receivers, self._global):
            if main in by_tag:
                by_tag[None] = by_tag[main]

    def put_out(self, output: Any) -> None:
        """Emit one returned output.

        Raises:
            UserCodeError: the output is invalid (a `TypeError` or `KeyError`).
        """
        tag: str | None = None
        if isinstance(output, TaggedOutput):
            tag, output = output.tag, output.value
        if tag not in self._receivers:
            known = ", ".join(repr(each) for each in self._receivers if each is not None)
            raise self._refused(KeyError(f"has no output {tag!r} for prepare_to_shutdown; its outputs are: {known}"))
        if not isinstance(output, WindowedValue):
            if not self._global[tag]:
                raise self._refused(
                    TypeError(
                        f"returns a {type(output).__name__} from prepare_to_shutdown, but its output is not in the "
                        f"global window: return a WindowedValue, with a timestamp and windows"
                    )
                )
            output = create(output, END_OF_GLOBAL_WINDOW, _GLOBAL)
        self._receivers[tag].receive(output)

    def _refused(self, error: Exception) -> ArcbeamError:
        (text,) = error.args
        return user_error(self._offer.op, type(error)(f"{_named(self._offer)} {text}"))


def _named(offer: _Offer) -> str:
    return f"{type(offer.fn).__name__} of {offer.step!r}"


def _prepares(fn: GracefulShutdown) -> bool:
    return type(fn).prepare_to_shutdown is not GracefulShutdown.prepare_to_shutdown


def _is_global(descriptor: Any, pcoll: str) -> bool:
    windowing = descriptor.windowing_strategies[descriptor.pcollections[pcoll].windowing_strategy_id]
    return bool(windowing.window_fn.urn == common_urns.global_windows.urn)


def dofn_of(op: Any) -> Any:
    """Return the DoFn that an operation calls; None if it calls none."""
    if isinstance(op, BlockOperation):
        return getattr(op, "_fn", None)
    if not isinstance(op, operations.DoOperation):
        return None
    # SUBTLE: the SDK's operation and its runner hide theirs. The operation's attribute `fn`, where visible, is another
    # instance.
    runner = _part(op, common.DoFnRunner)
    invoker = None if runner is None else _part(runner, common.DoFnInvoker)
    return None if invoker is None else invoker.signature.do_fn


def _part(whole: Any, kind: type) -> Any:
    return next((part for part in gc.get_referents(whole) if isinstance(part, kind)), None)


def graceful(fn: Any) -> GracefulShutdown | None:
    """Return the implementation of the interface: the DoFn, or one that the SDK has wrapped; None if there is none.

    Raises:
        ArcbeamError: it runs in a process of its own, where it cannot be called.
    """
    elsewhere = False
    while not isinstance(fn, GracefulShutdown):
        if isinstance(fn, core._ExceptionHandlingWrapperDoFn | core._TimeoutDoFn | core._SubprocessDoFn):
            elsewhere |= isinstance(fn, core._SubprocessDoFn)
            fn = vars(fn)["_fn"]
        elif isinstance(fn, typecheck.AbstractDoFnWrapper):
            fn = vars(fn)["dofn"]
        else:
            return None
    if elsewhere:
        raise ArcbeamError(
            f"{type(fn).__name__} implements GracefulShutdown, but runs in a process of its own",
            "remove the interface, or use_subprocess from with_exception_handling",
        )
    return fn


def offers(stage: Stage) -> bool:
    """Return whether a DoFn of a stage implements the interface, without opening the stage."""
    for transform in runner_pb.Components.FromString(stage.payload).transforms.values():
        if transform.spec.urn in _DOFNS:
            payload = runner_pb.ParDoPayload.FromString(transform.spec.payload)
            info = core.DoFnInfo.from_runner_api(payload.do_fn, None)
            fn, *_ = pickler.loads(info.serialized_dofn_data())
            if graceful(fn) is not None:
                return True
    return False
