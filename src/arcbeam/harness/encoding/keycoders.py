"""Keys that carry their type: named tuples, enums and the like, which the SDK writes with the type pickled in front.

Owns that a worker pickles types in one way. The SDK has two, by `--update_compatibility_version`, and one memory of the
bytes of each type for both: in a worker that has run a job of the one, a job of the other would write what it cannot
read. Keys live no longer than their job, so there is nothing that an older way would be compatible with.
"""

from __future__ import annotations

from typing import Any

from apache_beam.coders import coders


def _create_impl(self: Any) -> Any:
    return coders.DeterministicFastPrimitivesCoderV2(self._underlying_coder, self._step_label).get_impl()


def register() -> None:
    """Makes the SDK's coder of the older way use the newer one. Idempotent; call in workers only."""
    coders.DeterministicFastPrimitivesCoder._create_impl = _create_impl
