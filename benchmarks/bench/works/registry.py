"""All works, and what each peer does for each: the only place to register a new work.

A work is in one of two tables: the works themselves, and the ways that users write things (`Work.way`). A peer that has
no job for a work is omitted from its row.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from bench.works import uses, ways, work
from bench.works.work import Work

WORKS: dict[str, Work] = work.WORKS | ways.WORKS | uses.WORKS
"""By name, in the order of the tables."""


def jobs(peer: str) -> Mapping[str, Callable[..., Any]]:
    """Return a peer's jobs by the names of their works; Beam's runners share theirs.

    Imports only what is requested: a process that runs one peer need not have the others' libraries.
    """
    match peer:
        case "rdd":
            from bench.works import rdd, uses_rdd, ways_rdd

            return rdd.JOBS | ways_rdd.JOBS | uses_rdd.JOBS
        case "frames":
            from bench.works import frames

            return frames.JOBS
        case "sql":
            from bench.works import sql

            return sql.JOBS
        case _:
            from bench.works import pipelines, uses_beam, ways_beam

            found = pipelines.PIPELINES | ways_beam.PIPELINES | uses_beam.PIPELINES
            return {n: j for n, j in found.items() if peer != "local" or n not in ways_beam.NOT_LOCAL}
