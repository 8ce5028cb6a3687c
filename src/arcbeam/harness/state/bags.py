"""The values that user code reads from a bag or a combining state: they never change afterwards.

Owns two corrections of the SDK's states, where the result of `read` follows later changes of the state. If each output
is encoded at once, this has no effect. But our writes keep outputs as objects, some until the task ends. By then the
state may have been extended, cleared or dropped.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any

from apache_beam.coders import coder_impl
from apache_beam.runners.worker import bundle_processor

from arcbeam.harness.state.statehandler import StateHandler


class BagElements:
    """The elements of a bag at one moment; may be iterated any number of times.

    Args:
        stored: the elements that earlier bundles have left; never changed.
        added: the elements that this bundle has added; only appended to.
    """

    __slots__ = ("_added", "_count", "_stored")

    def __init__(self, stored: Iterable[Any], added: list[Any]) -> None:
        self._stored = stored
        self._added = added
        self._count = len(added)

    def __iter__(self) -> Iterator[Any]:
        yield from self._stored
        yield from islice(self._added, self._count)

    def __reduce__(self) -> tuple[Any, ...]:
        return list, (list(self),)


coder_impl.FastPrimitivesCoderImpl.register_iterable_like_type(BagElements)


_PLAIN = frozenset({int, float, bool, str, bytes, type(None)})
"""Types whose values are immutable."""


def kept_apart(accumulator: Any, coder: Any) -> Any:
    """Return an equal accumulator that shares nothing with this one, or this one if it is immutable.

    Beam allows `extract_output` to change its accumulator, and a merge to change its first one. An output may be a part
    of either. So an accumulator whose output was extracted is not used again.

    Args:
        accumulator: the accumulator.
        coder: impl of its coder.
    """
    kind = type(accumulator)
    if kind in _PLAIN or (kind is tuple and all(type(each) in _PLAIN for each in accumulator)):
        return accumulator
    try:
        return coder.decode(coder.encode(accumulator))
    except Exception:
        # Committing the state raises the same error, with the name of the state.
        return accumulator


class _Bag(bundle_processor.SynchronousBagRuntimeState):  # type: ignore[misc]  # Beam is untyped
    def read(self) -> Iterable[Any]:
        handler = self._state_handler
        if not isinstance(handler, StateHandler):
            elements: Iterable[Any] = super().read()
            return elements
        stored = () if self._cleared else handler.blocking_get(self._state_key, self._value_coder.get_impl())
        return BagElements(stored, self._added_elements)


class _Combining(bundle_processor.CombiningValueRuntimeState):  # type: ignore[misc]
    def read(self) -> Any:
        bag = self._underlying_bag_state
        merged = self._read_accumulator(rewrite=False)
        bag.clear()
        bag.add(kept_apart(merged, bag._value_coder.get_impl()))
        return self._combinefn.extract_output(merged)


def register() -> None:
    """Replace the SDK's states by ours. Idempotent."""
    bundle_processor.SynchronousBagRuntimeState = _Bag
    bundle_processor.CombiningValueRuntimeState = _Combining
