"""What is new in a step comes to its tasks without a plan of its own, unless it is large."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from arcbeam.harness.operations.taskcontext import Settings
from arcbeam.model.files import FileKind, Shard, ShardFile
from arcbeam.spark.session.versions import Versions
from arcbeam.spark.steps.finalizing import Confirmed
from arcbeam.spark.steps.leveltask import Given, StepJob, property_of
from arcbeam.spark.steps.stepframes import StepFrames
from arcbeam.steps.order import StepOrder
from arcbeam.store.jobtemp.location import JobLocation
from tests.steps.jobs import plan
from tests.steps.test_placing import at


@pytest.mark.contract("STORE-02")
def test_a_plan_is_built_once_and_each_step_says_what_is_new_or_has_one_of_its_own(
    spark: SparkSession, tmp_path: Path
) -> None:
    job = StepJob("job", at(), Settings(), JobLocation(str(tmp_path)), "", Versions.here())
    frames, said = StepFrames(spark, job), spark.sparkContext.getLocalProperty
    file = ShardFile("x" * 300, FileKind.DELTA, 1, 0, 1, 0, b"", b"", 1, 1)
    order = StepOrder(plan(2, 1), 1, "store", (), (Shard(1, 0, (file,)), Shard(2, 1, (file,))))
    confirmed = (Confirmed(1, (b"token",)),)
    one, other = frames.of(order, confirmed), frames.of(replace(order, epoch=2), confirmed)
    assert one.sameSemantics(other)
    for level in range(3):
        own = replace(order, epoch=2).of_level(
            level, {placed.name for placed in job.placing.layout.at(level)}, job.placing.sides_of[level]
        )
        assert said(property_of(level)) == Given(own, confirmed).encoded()
    # A name that does not compress.
    large = replace(order, shards=(Shard(1, 0, (replace(file, name=random.Random(1).randbytes(1 << 18).hex()),)),))
    assert not frames.of(large, confirmed).sameSemantics(one)
    assert [said(property_of(level)) for level in range(3)] == [None] * 3
