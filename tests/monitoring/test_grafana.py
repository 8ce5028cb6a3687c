"""The dashboard in `examples` asks only for metrics and labels that a job exports."""

from __future__ import annotations

import itertools
import json
import re
from pathlib import Path
from typing import Any

import pytest

from arcbeam.console.progressline import JobProgress
from arcbeam.monitoring.prometheus import FAMILIES, Counter, exposed, name_of
from tests.monitoring.test_prometheus import _STATUS

pytestmark = pytest.mark.contract("OPS-04")

_FILE = Path(__file__).resolve().parents[2] / "examples" / "grafana.json"


@pytest.fixture
def dashboard() -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads(_FILE.read_text(encoding="utf-8"))
    return loaded


def labels_of() -> dict[str, set[str]]:
    """Return the labels of each metric of a job that has all of them."""
    text = exposed("job-1", _STATUS, JobProgress((), 10, 3), [Counter("Parse", "lines", "bad", 7)])
    found: dict[str, set[str]] = {}
    for name, labels in re.findall(r"^(arcbeam_\w+)\{(.*)\} ", text, re.MULTILINE):
        found.setdefault(name, set()).update(re.findall(r'(\w+)="', labels))
    return found


def expressions(dashboard: dict[str, Any]) -> list[tuple[str, str]]:
    return [(target["expr"], target["legendFormat"]) for panel in dashboard["panels"] for target in panel["targets"]]


def test_dashboard_has_exported_metrics_and_labels(dashboard: dict[str, Any]) -> None:
    exported = {name_of(family) for family in FAMILIES}
    known = labels_of()
    for expression, legend in expressions(dashboard):
        (name,) = re.findall(r"arcbeam_\w+", expression)
        assert name in exported
        asked = set(re.findall(r"(\w+)(?:=~|!=|=)", expression)) | set(re.findall(r"\{\{(\w+)\}\}", legend))
        assert "job" in asked
        assert asked <= known.get(name, asked), name


def test_variable_job_has_an_exported_metric(dashboard: dict[str, Any]) -> None:
    variables = {variable["name"]: variable for variable in dashboard["templating"]["list"]}
    assert set(variables) == {"source", "job"}
    name, label = re.fullmatch(r"label_values\((\w+), (\w+)\)", variables["job"]["query"]["query"]).groups()  # type: ignore[union-attr]
    assert label in labels_of()[name]


def test_panels_have_distinct_ids_and_do_not_overlap(dashboard: dict[str, Any]) -> None:
    panels = dashboard["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    for one, two in itertools.combinations([panel["gridPos"] for panel in panels], 2):
        beside = one["x"] + one["w"] <= two["x"] or two["x"] + two["w"] <= one["x"]
        assert beside or one["y"] + one["h"] <= two["y"] or two["y"] + two["h"] <= one["y"]
