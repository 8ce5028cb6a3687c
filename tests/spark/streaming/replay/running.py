"""A seed, replayed on Spark: its pipeline runs, as a whole or in two parts, and its output is judged.

Owns which seeds are disturbed (cancelled and resumed, or by the death of a worker), and how. Must not know what is
right.
"""

from __future__ import annotations

import contextlib
import random
import unittest.mock
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import apache_beam as beam
from apache_beam.options.pipeline_options import PipelineOptions

from arcbeam import ArcbeamRunner
from arcbeam.errors import RequestRefusedError
from arcbeam.spark.streaming import streamingjob
from arcbeam.store.blobs.backends import open_blobs
from arcbeam.store.log.chain import read_newest
from simulator.judging.records import Drop, Out
from simulator.scenario.choosing import plain_scenario_of
from tests.spark.streaming.replay.building import Builder, Death, written
from tests.spark.streaming.replay.expressing import Expressed, expressed
from tests.spark.streaming.replay.judging import judge


@dataclass(frozen=True)
class Replayed:
    """The result of a seed.

    Attributes:
        outs: the output.
        drops: what was dropped.
        cancelled: number of micro-batches after which the job was cancelled; 0: it was not.
        died: whether a worker has died.
    """

    expressed: Expressed
    outs: Sequence[Out]
    drops: Sequence[Drop]
    cancelled: int = 0
    died: bool = False


def chosen(seed: int) -> Expressed:
    """Return the pipeline of a seed, complete, before its observers get other forms."""
    return expressed(plain_scenario_of(seed).pipeline.at_once())


def cancelled_behind(seed: int) -> int:
    """Return the number of micro-batches after which a seed's job is cancelled and resumed; 0: it is not."""
    chance = random.Random(f"replay {seed}")
    return chance.choice((1, 2, 3, 5)) if chance.random() < 0.35 else 0


def dies_behind(seed: int) -> int:
    """Return the number of elements of a stage after which a worker dies, once; 0: none does."""
    chance = random.Random(f"death {seed}")
    return chance.choice((1, 2, 5, 20)) if chance.random() < 0.25 else 0


def ways_to_run(seed: int) -> Iterator[list[str]]:
    """Yield options for each part of a job that must not change its output; a resumed job may change all but fusion.

    Levels of stages are part of a job's shape, and depend on fusion.
    """
    chance = random.Random(f"ways {seed}")
    fusion = ["--no_fusion"] if chance.random() < 0.25 else []
    while True:
        found = list(fusion)
        if chance.random() < 0.25:
            found.append("--disable_optimizations=all")
        if chance.random() < 0.25:
            found.append(f"--bundle_elements={chance.choice((1, 3))}")
        yield found


def replay(seed: int, folder: Path, options: Sequence[str] = ()) -> Replayed:
    """Run the pipeline of a seed, and judge it.

    Args:
        seed: the seed.
        folder: an empty folder for its output.
        options: additional options of the pipeline.

    Raises:
        Broken: the output is wrong.
    """
    what = chosen(seed)
    out = folder / "out"
    out.mkdir()
    behind, mark = cancelled_behind(seed), folder / "died"
    death = Death(str(mark), dies_behind(seed)) if dies_behind(seed) else None
    state = folder / "state"
    ways = ways_to_run(seed)
    given = ["--streaming", f"--shards={what.pipeline.shards}", "--allow_unsafe_triggers", *options]
    if behind:
        given.append(f"--checkpoint_dir={state}")

    def begun() -> Any:
        p = beam.Pipeline(runner=ArcbeamRunner(), options=PipelineOptions([*given, *next(ways)]))
        Builder(p, what.pipeline, death).build(str(out))
        return p.run()

    result = begun()
    if behind and _cancelled(result, state, behind):
        result = begun()
    else:
        behind = 0
    assert result.wait_until_finish() == "DONE"
    outs = written(out)
    return Replayed(what, outs, judge(what.pipeline, outs), behind, mark.exists())


def replay_suspended(seed: int, folder: Path, options: Sequence[str] = (), shards: Sequence[int] = ()) -> int:
    """Like `replay`, but the job is suspended one to five times, and resumed with other numbers of tasks.

    Args:
        seed: the seed.
        folder: an empty folder for its output.
        options: additional options of the pipeline.
        shards: the number of shards for each part of the job, which is suspended that often less one. Empty: that of
            the seed.

    Returns:
        How often it was suspended; at least once.
    """
    for hurried in (False, True):
        run = folder / f"hurried {hurried}"
        if made := _suspended(seed, run, options, shards, hurried=hurried):
            return made
    raise AssertionError("it ended before it could be suspended")


def _suspended(seed: int, folder: Path, options: Sequence[str], shards: Sequence[int], *, hurried: bool) -> int:
    """Return how often the job was suspended before it ended; hurried: at its first micro-batches."""
    what = chosen(seed)
    out, state = folder / "out", folder / "state"
    out.mkdir(parents=True)
    chance = random.Random(f"suspended {seed}")
    ways = ways_to_run(seed)
    given = ["--streaming", "--allow_unsafe_triggers", f"--checkpoint_dir={state}"]
    wanted, made = len(shards) - 1 if shards else chance.randint(1, 5), 0
    while True:
        of_part = f"--shards={shards[made] if shards else what.pipeline.shards}"
        p = beam.Pipeline(runner=ArcbeamRunner(), options=PipelineOptions([*given, of_part, *options, *next(ways)]))
        Builder(p, what.pipeline, None).build(str(out))
        with slots(chance.randint(1, 8 if shards else 4)):
            result = p.run()
            if made < wanted:
                result.wait_until_finish(1 if hurried else int(chance.uniform(200, 1500)))
                with contextlib.suppress(RequestRefusedError):
                    result.suspend(f"savepoint-{made}")
                    made += 1
            ended = result.wait_until_finish()
        if ended != "STOPPED":
            assert ended == "DONE"
            judge(what.pipeline, written(out))
            return made


@contextlib.contextmanager
def slots(count: int) -> Iterator[None]:
    """Make jobs that start in the block see this many slots; a resumed job may have another number."""
    with unittest.mock.patch.object(streamingjob, "default_parallelism", return_value=count):
        yield


def _cancelled(result: Any, state: Path, behind: int) -> bool:
    """Cancel a job after this many micro-batches; return False if it has ended before."""
    blobs = open_blobs(str(state))
    while result.wait_until_finish(10) == "RUNNING":
        head = read_newest(blobs)
        if head is not None and head.micro_batch >= behind:
            break
    result.cancel()
    return bool(result.state == "CANCELLED")
