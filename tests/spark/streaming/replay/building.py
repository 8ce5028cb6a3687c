"""A simulated pipeline as a Beam pipeline.

Owns how stages are connected, and how their output is recorded: once, in files of whole groups, so that a retried task
writes the same files. Must not know what is right.
"""

from __future__ import annotations

import os
import pickle
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import apache_beam as beam
from apache_beam.transforms import window
from apache_beam.utils.windowed_value import PaneInfoTiming

from arcbeam.engine.watermarks.clocks import Port
from arcbeam.io import WithWatermark
from arcbeam.model.timestamps import Duration, Timestamp
from arcbeam.model.windows import PaneInfo, Timing
from simulator.judging.records import Out
from simulator.scenario.combining import atoms_of
from simulator.scenario.kinds import MAIN, Expand, Group, Join, Keep, Pass, Source
from simulator.scenario.plans import Pipeline, Stage
from tests.spark.streaming.replay import usercode
from tests.spark.streaming.replay.keeping import UntilExpiration, keeping
from tests.spark.streaming.replay.usercode import Made, Pair
from tests.spark.streaming.replay.windows import Behaving, lasting, ours, windowfn_of

_TIMINGS = {
    PaneInfoTiming.EARLY: Timing.EARLY,
    PaneInfoTiming.ON_TIME: Timing.ON_TIME,
    PaneInfoTiming.LATE: Timing.LATE,
    PaneInfoTiming.UNKNOWN: Timing.UNKNOWN,
}


@dataclass
class Death:
    """The death of a worker: the first that gets there.

    Attributes:
        mark: a file that exists when one has died.
        behind: number of elements of one stage in one worker until then.
    """

    mark: str
    behind: int

    def comes_nearer(self) -> None:
        """Count an output element of the stage."""
        self.behind -= 1
        if self.behind <= 0 and not os.path.exists(self.mark):
            os.close(os.open(self.mark, os.O_CREAT))
            os._exit(9)


class Builder:
    """Builds a pipeline.

    Args:
        p: the Beam pipeline.
        pipeline: the simulated pipeline.
        death: the death of a worker.
    """

    def __init__(self, p: beam.Pipeline, pipeline: Pipeline, death: Death | None = None) -> None:
        self._p, self._pipeline, self._death = p, pipeline, death
        self._outputs: dict[Port, Any] = {}
        sources = [stage.kind for stage in pipeline.stages if isinstance(stage.kind, Source)]
        self._last = max(event.time for source in sources for event in source.events) + 1

    def build(self, folder: str) -> None:
        """Build the whole pipeline; the output of its stages is in files of that folder when it has ended."""
        records = []
        for stage in self._pipeline.stages:
            made = self._stage(stage)
            for output in stage.outputs:
                out = made if len(stage.outputs) == 1 else made[output]
                if isinstance(stage.kind, Pass) and stage.kind.delay is not None:
                    jump = None if stage.kind.jump is None else lasting(Duration(stage.kind.jump))
                    delay, policy = lasting(Duration(stage.kind.delay)), stage.kind.policy.value
                    observed = WithWatermark(None, delay, policy=policy, max_jump=jump)
                    out |= f"observed {stage.name} {output}" >> observed
                self._outputs[Port(stage.name, output)] = out
                records.append(
                    out
                    | f"record {stage.name} {output}" >> beam.ParDo(Recording(stage, output, self._death))
                    | f"all of {stage.name} {output}" >> beam.WindowInto(window.GlobalWindows())
                )
        every = records | "every record" >> beam.Flatten()
        _ = every | "by stage" >> beam.GroupByKey() | "write" >> beam.ParDo(Writing(folder))

    def _stage(self, stage: Stage) -> Any:
        name = stage.name
        match stage.kind:
            case Source() as source:
                fn = (usercode.ReadingToTheEnd if source.bounded else usercode.ReadingOn)(
                    source, stage.outputs, self._last
                )
                parts = self._p | f"begin {name}" >> beam.Impulse()
                return parts | f"parts of {name}" >> beam.FlatMap(_parts, source) | name >> _outputs(stage, fn)
            case Pass():
                return self._arrived(stage) | name >> _outputs(stage, usercode.Passing(stage.outputs))
            case Expand() as kind:
                timed = self._windowed(stage) if kind.side else self._arrived(stage)
                timed |= f"time of {name}" >> beam.Map(_timed)
                return timed | name >> beam.ParDo(usercode.Expanding(kind), self._side(stage))
            case Join():
                return self._windowed(stage) | name >> beam.Map(usercode.joining, self._side(stage))
            case Keep() as kind:
                return self._windowed(stage) | name >> Requiring(keeping(kind), kind.way, self._side(stage))
            case Group() as group:
                windowed = self._arrived(stage) | f"windows of {name}" >> _into(Behaving(group))
                grouped = beam.CombinePerKey(usercode.Atoms()) if group.combined else beam.GroupByKey()
                return windowed | name >> grouped | f"panes of {name}" >> beam.Map(usercode.paned)
        raise ValueError(f"the SDK cannot express {stage.kind}")

    def _arrived(self, stage: Stage) -> Any:
        """Return a stage's input: pairs, in the global window."""
        inputs = [self._pairs(port, stage) for port in stage.inputs]
        arrived = inputs[0] if len(inputs) == 1 else inputs | f"inputs of {stage.name}" >> beam.Flatten()
        if stage.together:
            typed = beam.Map(_together).with_output_types(Pair)
            arrived |= f"together in {stage.name}" >> typed
        return arrived

    def _pairs(self, port: Port, reader: Stage) -> Any:
        name = f"{port.stage} {port.output} for {reader.name}"
        return (
            self._outputs[port]
            | f"pairs of {name}" >> beam.FlatMap(_pair).with_output_types(Pair)
            | f"{name}, unwindowed" >> beam.WindowInto(window.GlobalWindows())
        )

    def _windowed(self, stage: Stage) -> Any:
        assert stage.windowing is not None
        lateness = stage.kind.lateness if isinstance(stage.kind, Keep) else 0
        into = beam.WindowInto(windowfn_of(stage.windowing), allowed_lateness=lasting(Duration(lateness)))
        return self._arrived(stage) | f"windows of {stage.name}" >> into

    def _side(self, stage: Stage) -> Any:
        """Return the side input of a stage; None if it has none."""
        if stage.side is None:
            return None
        assert stage.windowing is not None
        name = f"side of {stage.name}"
        there = self._outputs[stage.side] | f"what is in the {name}" >> beam.FlatMap(_value)
        side = beam.pvalue.AsIter(there | f"windows of the {name}" >> beam.WindowInto(windowfn_of(stage.windowing)))
        side._window_mapping_fn = _the_same  # the SDK would take the last of several windows that end together
        return side


def _outputs(stage: Stage, fn: beam.DoFn) -> Any:
    others = [output for output in stage.outputs if output != MAIN]
    return beam.ParDo(fn).with_outputs(*others, main=MAIN) if others else beam.ParDo(fn)


def _into(windowing: Any) -> Any:
    """Return a `WindowInto` with exactly that strategy."""
    into = beam.WindowInto(windowing.windowfn)
    into.windowing = into.fn.windowing = windowing
    return into


class Requiring(beam.ParDo):  # type: ignore[misc]  # Beam is untyped
    """A `ParDo` that may require time sorted input, or have a callback on window expiration.

    The SDK has these requirements, but cannot express them.

    Args:
        fn: the DoFn.
        way: see `Keep`.
        sides: the side inputs.
    """

    def __init__(self, fn: beam.DoFn, way: str, *sides: Any) -> None:
        super().__init__(fn, *sides)
        self._way = way

    def to_runner_api_parameter(self, context: Any, **more: Any) -> Any:
        urn, payload = super().to_runner_api_parameter(context, **more)
        if self._way == "order":
            payload.requires_time_sorted_input = True
            context.add_requirement(beam.portability.common_urns.requirements.REQUIRES_TIME_SORTED_INPUT.urn)
        if "expiration" in self._way:
            payload.on_window_expiration_timer_family_spec = UntilExpiration.EXPIRES.name
            context.add_requirement(beam.portability.common_urns.requirements.REQUIRES_ON_WINDOW_EXPIRATION.urn)
        return urn, payload


def _parts(_: bytes, source: Source) -> Iterator[tuple[int, int]]:
    count, parts = len(source.events), source.parts
    return ((count * part // parts, count * (part + 1) // parts) for part in range(parts))


def _pair(made: Made) -> Iterator[Pair]:
    if made.value:
        yield made.key, made.value


def _value(made: Made) -> Iterator[bytes]:
    if made.value:
        yield made.value


def _together(pair: Pair) -> Pair:
    return b"all", pair[1]


def _timed(pair: Pair, time: Any = beam.DoFn.TimestampParam) -> tuple[bytes, bytes, int]:
    return *pair, time.micros


def _the_same(of: Any) -> Any:
    return of


class Recording(beam.DoFn):  # type: ignore[misc]
    """Makes records of a stage's output.

    Args:
        stage: the stage.
        output: its output.
        death: the death of a worker that does so.
    """

    def __init__(self, stage: Stage, output: str, death: Death | None) -> None:
        self.name, self.output, self.death = stage.name, output, death
        self.windowed, self.paned = stage.windowing is not None, isinstance(stage.kind, Group)

    def process(
        self,
        made: Made,
        time: Any = beam.DoFn.TimestampParam,
        window: Any = beam.DoFn.WindowParam,
        pane: Any = beam.DoFn.PaneInfoParam,
    ) -> Iterator[tuple[str, bytes]]:
        if self.death is not None:
            self.death.comes_nearer()
        out = Out(
            self.name,
            self.output,
            made.key,
            tuple(atoms_of(made.value)),
            Timestamp(time.micros),
            ours(window) if self.windowed else None,
            _pane(pane) if self.paned else None,
            made.joined,
            made.elements,
        )
        yield self.name, pickle.dumps(out)


def _pane(pane: Any) -> PaneInfo:
    return PaneInfo(pane.index, pane.nonspeculative_index, _TIMINGS[pane.timing], pane.is_first, pane.is_last)


class Writing(beam.DoFn):  # type: ignore[misc]
    """Writes the records of a stage to a file.

    Args:
        folder: the folder for the file.
    """

    def __init__(self, folder: str) -> None:
        self.folder = folder

    def process(self, element: tuple[str, Iterable[bytes]], pane: Any = beam.DoFn.PaneInfoParam) -> None:
        name, records = element
        beside = os.path.join(self.folder, f"{name}.{os.getpid()}.tmp")
        with open(beside, "wb") as file:
            pickle.dump(list(records), file)
        os.replace(beside, os.path.join(self.folder, f"{name}.{pane.index}"))


def written(folder: Path) -> list[Out]:
    """Return the output of all stages."""
    files = [file for file in sorted(folder.iterdir()) if not file.name.endswith(".tmp")]
    return [pickle.loads(record) for file in files for record in pickle.loads(file.read_bytes())]
