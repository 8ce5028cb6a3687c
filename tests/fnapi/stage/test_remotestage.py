"""Stages with workers of several environments: what is left if one of them does not start."""

from __future__ import annotations

from dataclasses import replace

import apache_beam as beam
import pytest

from arcbeam.fnapi.environments.workers import StageWorkers, workers_here
from arcbeam.fnapi.lost import SdkWorkerNotStartedError
from arcbeam.fnapi.stage.remotestage import open_with_workers
from arcbeam.harness.operations.taskcontext import TaskSettings
from arcbeam.translate import ParsedPipeline, translate
from arcbeam.translate.proto import pipeline_proto
from tests.fnapi.stage.inworkers import external, worker_service
from tests.fnapi.stage.test_custom_windows import Runs, _timed

pytestmark = pytest.mark.contract("API-08")


def test_first_worker_is_given_back_if_second_does_not_start() -> None:
    p = beam.Pipeline()
    _ = _timed(p, Runs()) | beam.GroupByKey() | beam.Map(print)
    with worker_service() as address:
        proto = pipeline_proto(p)
        for environment in proto.components.environments.values():
            environment.CopyFrom(external(address))
        stages = translate(ParsedPipeline(proto), bounded=False).stages
        (of,) = (stage for stage in stages if stage.merges_in_worker and stage.remote is not None)
        assert of.remote is not None
        nowhere = external("localhost:1").SerializeToString(deterministic=True)
        other = replace(of, remote=replace(of.remote, environment=nowhere))
        with pytest.raises(SdkWorkerNotStartedError, match="localhost:1 cannot be reached"):
            open_with_workers(other, TaskSettings(shards=1), StageWorkers("two"))
        assert not [job for job, _ in workers_here._workers if job == "two"]
