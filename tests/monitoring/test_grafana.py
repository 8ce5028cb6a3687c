"""The dashboard in `examples`, evaluated on what `/metrics` of a running job and of its page serve."""

from __future__ import annotations

import itertools
import json
import re
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import apache_beam as beam
import pytest
from typing_extensions import override

from arcbeam.monitoring.prometheus import Counter, MonitoredJob, exposing, label_of
from arcbeam.page.serving import PageServer, PageSettings
from arcbeam.page.sources import FolderSource
from arcbeam.spark.streaming.streamingjob import StreamRun
from arcbeam.store.blobs.folder import FolderBlobs
from arcbeam.streaming.interfaces import JobListener
from tests.spark.streaming.inprocess import ends_cancelled, run_of, without_spark
from tests.spark.streaming.test_stuck import Remembers, numbers

pytestmark = pytest.mark.contract("OPS-04")

_FILE = Path(__file__).resolve().parents[2] / "examples" / "grafana.json"

Samples = Sequence[Mapping[str, str]]
"""Lines of a page: their labels, with the name of the metric as `__name__`."""


class Scraped(JobListener):
    """Reads both pages of a job once, while it runs, and then ends it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.run: StreamRun
        self.pages: dict[str, str] = {}

    @override
    def streaming(self, line: str) -> None:
        status = self.run.status()
        assert status is not None
        if status.micro_batch < 3 or self.pages:
            return
        label, counters = label_of("words", str(self._folder)), [Counter("Parse", "lines", "bad", 7)]
        blobs = FolderBlobs(self._folder, sync=False)
        with (
            exposing(
                ("127.0.0.1", 0), lambda: [MonitoredJob(label, self.run.status(), self.run.progress(), counters)]
            ) as driver,
            PageServer(FolderSource([blobs]), PageSettings(insecure=True)) as page,
        ):
            assert driver is not None
            for name, port in (("driver", driver[1]), ("page", page.port)):
                with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30) as answer:
                    self.pages[name] = answer.read().decode()
        self.run.interrupt()


def _waits(p: beam.Pipeline) -> None:
    """Build a job that has all that the dashboard shows: a source, state, timers, and a watermark that is held."""
    keyed = numbers(p, "Meter", stalls_at=5) | "Keyed" >> beam.Map(lambda n: (0, n))
    _ = keyed | "Remembers" >> beam.ParDo(Remembers()) | "Written" >> beam.Reshuffle()


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Samples]:
    folder = tmp_path_factory.mktemp("scraped")
    scraped = Scraped(folder / "job")
    with without_spark():
        scraped.run = run_of(_waits, folder, scraped)
        ends_cancelled(scraped.run)
    return {name: samples_of(text) for name, text in scraped.pages.items()}


@pytest.fixture
def dashboard() -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads(_FILE.read_text(encoding="utf-8"))
    return loaded


def samples_of(text: str) -> Samples:
    lines = re.findall(r"^(\w+)\{(.*)\} \S+$", text, re.MULTILINE)
    return [{"__name__": name, **dict(re.findall(r'(\w+)="((?:[^"\\]|\\.)*)"', labels))} for name, labels in lines]


def evaluated(expression: str, samples: Samples, jobs: str) -> Samples:
    """Return the labels of each value of an expression, with `jobs` as the value of the variable; see Prometheus."""
    if match := re.fullmatch(r"sum by \(([\w, ]+)\) \((.*)\)", expression):
        by = match[1].split(", ")
        found = [{name: each[name] for name in by} for each in evaluated(match[2], samples, jobs)]
        return [dict(each) for each in {tuple(each.items()) for each in found}]
    if match := re.fullmatch(r"(?:rate|increase)\((.*)\[[^\]]+\]\)", expression):
        assert match[1].partition("{")[0].endswith("_total"), "it is of a counter"
        return evaluated(match[1], samples, jobs)
    selector = re.fullmatch(r"(\w+)\{(.*)\}", expression)
    assert selector is not None, expression
    conditions = re.findall(r'(\w+)(=~|=)"([^"]*)"', selector[2].replace("$job", jobs))
    return [
        each
        for each in samples
        if each["__name__"] == selector[1]
        and all(re.fullmatch(value if how == "=~" else re.escape(value), each[name]) for name, how, value in conditions)
    ]


@pytest.mark.parametrize("page", ["driver", "page"])
def test_every_query_of_the_dashboard_has_values(dashboard: dict[str, Any], pages: Any, page: str) -> None:
    samples = pages[page]
    variables = {variable["name"]: variable for variable in dashboard["templating"]["list"]}
    assert set(variables) == {"source", "job"}
    requested = re.fullmatch(r"label_values\((\w+), job\)", variables["job"]["query"]["query"])
    assert requested is not None
    jobs = {each["job"] for each in samples if each["__name__"] == requested[1]}
    assert len(jobs) == 1, f"the variable finds no job on the {page}"
    targets = [target for panel in dashboard["panels"] for target in panel["targets"]]
    assert len(targets) >= len(dashboard["panels"])
    for target in targets:
        expression, legend = target["expr"], target["legendFormat"]
        assert '{job=~"$job"' in expression, "it is of the chosen jobs"
        found = evaluated(expression, samples, "|".join(map(re.escape, jobs)))
        assert found, f"{expression} has no value on the {page}"
        labels = set(re.findall(r"\{\{(\w+)\}\}", legend))
        assert "job" in labels
        assert all(labels <= each.keys() for each in found), f"{legend} on the {page}"
        assert len({tuple(each[name] for name in sorted(labels)) for each in found}) == len(found), "one name for two"


def test_label_of_a_job_is_the_same_on_its_page(pages: Any) -> None:
    labels = {name: {each["job"] for each in samples if "job" in each} for name, samples in pages.items()}
    folders = {name: {label.rpartition("(")[2].rstrip(")") for label in found} for name, found in labels.items()}
    assert folders["driver"] == folders["page"]


def test_panels_have_distinct_ids_and_do_not_overlap(dashboard: dict[str, Any]) -> None:
    panels = dashboard["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    for one, two in itertools.combinations([panel["gridPos"] for panel in panels], 2):
        beside = one["x"] + one["w"] <= two["x"] or two["x"] + two["w"] <= one["x"]
        assert beside or one["y"] + one["h"] <= two["y"] or two["y"] + two["h"] <= one["y"]
