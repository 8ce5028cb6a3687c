"""A coder for values that are bytes to a stage with an SDK worker.

Owns that such bytes mean the same in all stages: with their length inside of another value, else without.
"""

from __future__ import annotations

from typing import Any

from apache_beam.coders import coder_impl, coders

from arcbeam.model.urns import PREFIXED_URN


class PrefixedCoderImpl(coder_impl.StreamCoderImpl):  # type: ignore[misc]  # Beam is untyped
    """The encoding of a value as the SDK's coder of bytes encodes it.

    SUBTLE: the SDK's own coder with a length writes it always.
    """

    def __init__(self, of: Any) -> None:
        self._of = of

    def encode_to_stream(self, value: Any, out: Any, nested: bool) -> None:
        """See the SDK's `CoderImpl`."""
        out.write(self._of.encode(value), nested)

    def decode_from_stream(self, in_: Any, nested: bool) -> Any:
        """See the SDK's `CoderImpl`."""
        return self._of.decode(in_.read_all(nested))

    def estimate_size(self, value: Any, nested: bool = False) -> int:
        """See the SDK's `CoderImpl`."""
        size: int = self._of.estimate_size(value, False)
        return size

    def get_estimated_size_and_observables(self, value: Any, nested: bool = False) -> Any:
        """See the SDK's `CoderImpl`."""
        return self._of.get_estimated_size_and_observables(value, False)


class PrefixedCoder(coders.FastCoder):  # type: ignore[misc]  # Beam is untyped
    """See `PrefixedCoderImpl`.

    Args:
        of: coder of the values.
    """

    def __init__(self, of: Any) -> None:
        self._of = of

    def _create_impl(self) -> PrefixedCoderImpl:
        return PrefixedCoderImpl(self._of.get_impl())

    def _get_component_coders(self) -> list[Any]:
        return [self._of]

    def is_deterministic(self) -> bool:
        """Return whether the values' coder is."""
        return bool(self._of.is_deterministic())

    def __eq__(self, other: object) -> bool:
        return isinstance(other, PrefixedCoder) and bool(self._of == other._of)

    def __hash__(self) -> int:
        return hash((type(self), self._of))


def register() -> None:
    """Register our coder in the SDK. Idempotent."""
    coders.Coder.register_structured_urn(PREFIXED_URN, PrefixedCoder)
