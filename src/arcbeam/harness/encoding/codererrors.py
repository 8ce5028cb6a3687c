"""Errors for an element that a coder cannot encode: which element, which coder, which transform.

Owns the texts, and the place where the SDK first encodes such an element: where it samples sizes. Must not know Spark.
"""

from __future__ import annotations

import reprlib
import traceback
from collections.abc import Iterable
from typing import Any

from arcbeam.errors import ArcbeamError, CoderError
from arcbeam.model import texts
from arcbeam.model.urns import PRECOMBINE_URN

_REPR = reprlib.Repr()
_REPR.maxstring = _REPR.maxother = _REPR.maxlong = 200
_REPR_CHARACTERS_MAX = 2000
"""Limit for nested containers, whose parts are shortened separately."""


def shortened(value: Any) -> str:
    """Return a value's repr for messages; never raises, and returns in bounded time."""
    return texts.safe_text(_REPR.repr, value, _REPR_CHARACTERS_MAX)


def coder_name(coder: Any) -> str:
    """Return a coder's name for messages."""
    name = texts.safe_text(repr, coder, _REPR_CHARACTERS_MAX)
    return type(coder).__name__ if "object at 0x" in name else texts.safe_text(str, coder, _REPR_CHARACTERS_MAX)


def coder_error(coder: Any, step: str, error: Exception, values: Iterable[Any], where: str = "") -> CoderError:
    """Return the error for the first value that a coder cannot encode.

    Args:
        coder: a `Coder` or a coder impl.
        step: the transform that produced the values; "" if unknown here.
        error: the error that the coder has raised.
        values: the values; one of them is at fault.
        where: the purpose of the value, as the end of a sentence; "" for an element of a collection.
    """
    impl = coder.get_impl() if hasattr(coder, "get_impl") else coder
    culprit = next((v for v in values if not _encodes(impl, v)), None)
    what = f"{coder_name(coder)} cannot encode {shortened(culprit)}{where}"
    return CoderError(
        step, f"{what}: {type(error).__name__}: {texts.safe_text(str, error)}", texts.safe_text(_whole, error)
    )


def _whole(error: BaseException) -> str:
    return "".join(traceback.format_exception(error))


def key_error(coder: Any, step: str, error: Exception, pairs: Iterable[Any]) -> CoderError | None:
    """Return the error for the first pair whose key cannot be encoded; None if all can, or if they are not pairs."""
    impl = coder.get_impl()
    for pair in pairs:
        if not isinstance(pair, tuple) or len(pair) != 2:
            return None
        if not _encodes(impl, pair[0]):
            return coder_error(coder, step, error, [pair[0]], ", a key")
    return None


def producer_of(descriptor: Any, pcoll: str) -> str:
    """Return the name of the transform that produces a PCollection, if in the same stage; else the PCollection's id."""
    makers = (t.unique_name for t in descriptor.transforms.values() if pcoll in t.outputs.values())
    return next(makers, pcoll)


def key_producer_of(descriptor: Any, pcoll: str) -> str:
    """Return the same for a PCollection's keys: a combine before an exchange passes on the keys of its input."""
    for transform in descriptor.transforms.values():
        if transform.spec.urn == PRECOMBINE_URN and pcoll in transform.outputs.values():
            (pcoll,) = transform.inputs.values()
            break
    return producer_of(descriptor, pcoll)


def _encodes(impl: Any, value: Any) -> bool:
    try:
        impl.encode(value)
    except Exception:
        return False
    return True


class _Sampled:
    """Replaces a windowed-value coder's impl where the SDK samples sizes. Its errors name element and transform."""

    def __init__(self, coder: Any, step: str) -> None:
        self._impl = coder.get_impl()
        self._coder = coder.wrapped_value_coder
        self._step = step

    def get_estimated_size_and_observables(self, windowed: Any) -> Any:
        """See the SDK's `CoderImpl`."""
        try:
            return self._impl.get_estimated_size_and_observables(windowed)
        except ArcbeamError:
            raise
        except Exception as e:
            raise coder_error(self._coder, self._step, e, [windowed.value]) from e


def name_what_is_sampled(operations: Iterable[Any]) -> None:
    """Make errors of size sampling name the element and its transform. The operations must be set up."""
    for op in operations:
        if not op.receivers:
            continue
        coders = [op.windowed_coder] if op.spec is None else op.spec.output_coders
        for receiver, coder in zip(op.receivers, coders, strict=True):
            receiver.opcounter.coder_impl = _Sampled(coder, op.name_context.step_name)
