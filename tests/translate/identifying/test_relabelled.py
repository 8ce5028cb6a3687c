"""Beam's transforms with random labels are recognized in a second submission."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import apache_beam as beam
import pytest
from apache_beam.ml.anomaly.detectors.zscore import ZScore
from apache_beam.ml.anomaly.transforms import AnomalyDetection
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.transforms.periodicsequence import PeriodicImpulse

from arcbeam.model.fingerprint import Fingerprint
from arcbeam.options import ArcbeamOptions
from arcbeam.streaming.restore.relabelling import relabelling
from arcbeam.translate import ParsedPipeline
from arcbeam.translate.identifying.fingerprints import fingerprints
from arcbeam.translate.proto import pipeline_proto, plan_of

pytestmark = pytest.mark.contract("STORE-05")


def _submitted(features: tuple[str, ...]) -> tuple[Mapping[str, Fingerprint], list[str]]:
    """Return the transforms and the stages of a script that looks for anomalies, once per feature."""
    p = beam.Pipeline()
    rows = p | PeriodicImpulse(fire_interval=1) | beam.Map(lambda time: ("all", beam.Row(x=time, y=-time)))
    for number, feature in enumerate(features):
        detected = rows | f"Detect {number}" >> AnomalyDetection(ZScore(features=[feature]))
        _ = detected | f"Show {number}" >> beam.Map(print)
    proto: Any = pipeline_proto(p)
    plan = plan_of(ParsedPipeline(proto), PipelineOptions().view_as(ArcbeamOptions), name="job")
    return fingerprints(ParsedPipeline(proto), time.time()), [stage.uid for stage in plan.stages]


def test_detectors_are_recognized() -> None:
    had, before = _submitted(("x", "x"))
    now, after = _submitted(("x", "x"))
    assert before != after, "the labels are random"
    found = relabelling(had, now)
    assert not found.unclear
    names = found.renamed(before)
    assert [names.get(stage, stage) for stage in before] == after


def test_other_detector_is_not_recognized() -> None:
    found = relabelling(_submitted(("x", "y"))[0], _submitted(("x", "x"))[0])
    assert found.unclear
    assert not found.labels
