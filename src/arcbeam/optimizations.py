"""The optimizations that a user can switch off: their names, and what happens without each.

Owns how `--disable_optimizations` is read.
"""

from __future__ import annotations

from collections.abc import Collection

from arcbeam.errors import InvalidPipelineError

LOCAL_EXCHANGE = "local_exchange"

OPTIMIZATIONS = {
    "value_chains": "transforms that use only values, not timestamps or windows, run element by element like all "
    "others",
    "loops": "consecutive transforms that use only values run one after the other, not in one compiled loop",
    "record_lists": "the records of a bounded source are passed on one by one, not in lists",
    "batches": "DoFns with batches as input or output run as in the SDK, which splits batches into elements",
    "packed_blobs": "the data of an exchange is not joined into large records",
    "bulk_values": "elements are encoded one by one in exchanges, not many together",
    "folds": "the add_input of every CombineFn is called for every element, also of Beam's common ones",
    "giving_up": "combining before an exchange continues, even if it hardly reduces the data",
    "quick_tasks": "Spark's Python workers are unchanged: after each task they collect garbage in all modules, and "
    "they acknowledge received data late",
    LOCAL_EXCHANGE: "each stage of a batch job runs in tasks of its own, also where there is little data",
    "driver_publishing": "workers publish all that sinks have staged; the driver never publishes itself",
}
"""The values of `--disable_optimizations`, and what happens without each."""

_ALL = "all"
"""Names every optimization."""


def disabled(given: Collection[str] | str | None) -> Collection[str]:
    """Return the names of the optimizations that are switched off.

    Args:
        given: the option's values: a list from a command line, or one text from a program; names, separated by commas.

    Raises:
        InvalidPipelineError: one of the names is unknown.
    """
    texts = [given] if isinstance(given, str) else given or ()
    names = {name for text in texts for each in text.split(",") if (name := each.strip())}
    unknown = sorted(names - OPTIMIZATIONS.keys() - {_ALL})
    if unknown:
        raise InvalidPipelineError(
            f"unknown optimization in --disable_optimizations: {', '.join(unknown)}",
            f"give some of {', '.join(OPTIMIZATIONS)}, or {_ALL}; to switch off fusion, use --no_fusion",
        )
    return OPTIMIZATIONS.keys() if _ALL in names else names
