"""Check that the stages of a simulated job read exactly the current contents of their side inputs.

Owns the contents of each side input after each micro-batch, computed from the commits. Must not know the files and how
they are merged.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from arcbeam.engine.watermarks.clocks import Port
from arcbeam.model.windows import Window
from simulator.judging.assigning import assigned
from simulator.judging.records import Broken, Out, Part, Record
from simulator.judging.reference import honest
from simulator.scenario.plans import Pipeline, Stage


class Committed(NamedTuple):
    """A micro-batch that counts.

    Attributes:
        records: its records.
        stages: the stages that the pipeline had.
    """

    records: Sequence[Record]
    stages: frozenset[str]

    @classmethod
    def of(cls, parts: Sequence[Part]) -> Committed:
        """Return the micro-batch of some parts, at least one."""
        return cls([record for part in parts for record in part.records], parts[0].stages)


def check(pipeline: Pipeline, micro_batches: Iterable[Committed]) -> None:
    """Check what was read in all micro-batches that count.

    Args:
        pipeline: the pipeline of the job.
        micro_batches: all of them, in order.

    Raises:
        Broken: a stage read something else than the contents after the micro-batches before.
    """
    # A source that joins later may bring elements whose side input window has expired: its files are deleted.
    # A source that joins later may bring elements whose window of the side input has ended, and its files are gone.
    joins = any(pipeline.since.values())
    judged = honest(pipeline) if joins else frozenset(pipeline.by_name)
    there: dict[tuple[str, Port, Window], list[bytes]] = defaultdict(list)
    for records, stages in micro_batches:
        outs = [record for record in records if isinstance(record, Out)]
        for out in outs:
            if out.side_input is not None and out.window is not None and out.stage in judged:
                _check_read(pipeline.by_name[out.stage], out, out.window, there)
        now: dict[tuple[str, Port, Window], list[bytes]] = defaultdict(list)
        for out in outs:
            port = Port(out.stage, out.output)
            for reader in pipeline.side_readers.get(port, ()):
                if reader.name not in stages:
                    # It joins later, and does not find what was put out before.
                    continue
                assert reader.windowing is not None
                for window in assigned(reader.windowing, out.time) if out.atoms else ():
                    now[reader.name, port, window] += out.atoms
        for place, atoms in now.items():
            there[place] = atoms if pipeline.by_name[place[0]].newest else there[place] + atoms


def _check_read(stage: Stage, out: Out, window: Window, there: dict[tuple[str, Port, Window], list[bytes]]) -> None:
    due = sorted(atom for port in stage.sides for atom in there.get((stage.name, port, window), ()))
    if list(out.side_input or ()) != due:
        what = "the newest firing of its side input" if stage.newest else "its side input"
        raise Broken(f"{stage.name} has read {out.side_input} of {what} in {window}, and there was {due}")
