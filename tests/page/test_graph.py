"""The graph on a job's page: its figures are those of the status, and no text of a user leaves its place."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest
from starlette.testclient import TestClient

from arcbeam.engine.protocol.reports import Counts
from arcbeam.model.timestamps import Timestamp
from arcbeam.page.app import app_of
from arcbeam.page.graph import busy_shares, graph_of
from arcbeam.page.sources import FolderSource, Listed
from arcbeam.page.stagepage import stage_of
from arcbeam.page.views import gap
from arcbeam.store.blobs.folder import FolderBlobs
from arcbeam.store.log.endnote import EndNote
from arcbeam.store.log.planfile import record_plan
from arcbeam.streaming.status.reasons import CauseKind
from arcbeam.streaming.status.snapshot import Since
from tests.page import samples
from tests.page.test_app import BASE, EVIL, OURS, job

pytestmark = pytest.mark.contract("PAGE-10")
__all__ = ["job"]


def texts(svg: str) -> dict[str, str]:
    return dict(re.findall(r'id="g-([^"]*(?:live|more))"[^>]*>([^<]*)<', svg))


def test_graph_shows_figures_of_stages_and_edges() -> None:
    status = samples.status(4, samples.now())
    late, (out, *_) = Timestamp(status.time - 3_000_000), status.stages[0].outputs
    more = {"input": late, "outputs": (replace(out, watermark=late),), "read_rate": 12.0, "restrictions": 2}
    status = samples.with_stage(status, 0, backlog=35_625_800.0, state_bytes=2_000, **more)
    svg, _ = graph_of(samples.plan_of(4), {}).shown(status)
    found = texts(svg)
    assert found["s0-live"] == "waits · 12/s · 3.0 s behind"
    assert found["s0-more"].startswith("backlog 35,625,800 · state 2 kB")
    large = {"backlog": 9_876_543_210_123.0, "state_bytes": 271_000, "total": Counts(late=1_234_567)}
    status = samples.with_stage(status, 0, **large)
    svg, _ = graph_of(samples.plan_of(4), {}).shown(status)
    assert texts(svg)["s0-more"] == "backlog 9.88T · state 271 kB · 1.23M late"
    assert re.fullmatch(r"[\d,]+/s · .* \S+", found["c0-live"])
    assert 'class="live warning" id="g-s0-live"' in svg


def test_stages_are_coloured_by_their_share_of_the_time() -> None:
    status = samples.status(4, samples.now())
    names = [stage.stage for stage in status.stages]
    for number, level in enumerate((0, 1, 1, 2)):
        status = samples.with_stage(status, number, level=level)
    seconds = ([0.1, 0.2, 0.3], [0.1, 0.1, 0.5], [0.1, 0.1, 0.6])
    tasks = {"stages": {name: {"seconds": of} for name, of in zip(names, seconds, strict=False)}}
    # The two stages of a level ran in the same tasks; the fourth stage did not run.
    assert busy_shares(status, tasks) == pytest.approx(dict(zip(names, (1 / 3, 2 / 3, 2 / 3), strict=False)))
    svg, figures = graph_of(samples.plan_of(4), {}).shown(status, tasks)
    assert [texts(svg)[f"s{at}-more"].startswith(f"busy {share}%") for at, share in enumerate((33, 67, 67))] == [
        True
    ] * 3
    assert [re.findall(r"busy-\d", figures[f"g-s{at}-more"]) for at in range(4)] == [
        ["busy-1"],
        ["busy-3"],
        ["busy-3"],
        [],
    ]
    assert busy_shares(status, None) == busy_shares(status, {"stages": {}}) == {}
    assert all(len(text) <= 42 for text in texts(svg).values())


def test_source_shows_what_it_emits_and_how_far_its_output_is() -> None:
    status = samples.status(4, samples.now())
    (out, *_), late = status.stages[0].outputs, Timestamp(status.time - 50_000_000)
    counts = {"micro_batch": Counts(written=3, made=3), "total": Counts(made=40), "read_rate": 0.0, "made_rate": 3.0}
    status = samples.with_stage(status, 0, input=status.time, outputs=(replace(out, watermark=late),), **counts)
    assert texts(graph_of(samples.plan_of(4), {}).shown(status)[0])["s0-live"] == "waits · 3/s · 50.0 s behind"
    figures = {name: cell.text for name, cell in stage_of(status, None, 0).figures}
    assert figures["input watermark"] == "0.0 s behind"
    assert figures["held output"] == "50.0 s behind"
    assert figures["emitted by its source"] == "3 elements, 3/s"


@pytest.mark.parametrize("inside", ["", "/ParDo(Divide)"])
@pytest.mark.parametrize("over", [True, False])
def test_stage_of_a_failure_is_named_and_marked(over: bool, inside: str) -> None:
    status, plan = samples.status(4, samples.now()), samples.plan_of(4)
    stage = plan["stages"][2]
    name = f"{stage['transforms'][0]['name']}{inside}"
    if over:
        note = EndNote(0, "FAILED", f"KeyError: 'user' [while running '{name}']\nTraceback")
        status = replace(status, ended=note)
    else:
        status = samples.with_cause(status, kind=CauseKind.FAILURE, stage=name)
    source = samples.Jobs(Listed("a", "/a", status), plans={"a": plan})
    text = TestClient(app_of(source), base_url=BASE).get("/job/a").text
    assert f'It fails in stage \'{stage["uid"]}\'. <a id="blocked" href="#g-s2-live"' in text
    assert texts(text)["s2-live"].startswith("fails")
    assert 'class="live error" id="g-s2-live"' in text


def test_stage_whose_watermark_has_just_moved_does_not_wait() -> None:
    status = samples.with_cause(samples.status(4), since=Since(1, Timestamp(samples.NOW)))
    assert texts(graph_of(samples.plan_of(4), {}).shown(status)[0])["s0-live"].startswith("waits")
    status = samples.with_cause(status, since=Since(1, Timestamp(samples.now())))
    assert "waits" not in texts(graph_of(samples.plan_of(4), {}).shown(status)[0])["s0-live"]


def test_watermark_ahead_of_the_clock_is_shown_only_if_far() -> None:
    status = samples.status(4, scripted=True)
    assert gap(status, status.time + 1_000_000).text == "0.0 s behind"
    assert gap(status, status.time + 3_600_000_000).text == "60 min ahead"
    assert gap(status, 1_370_080_800_000_000).text == "at 2013-06-01 10:00", "the data is old"


def test_stages_of_another_plan_stay_empty() -> None:
    status = samples.status(4)
    stages = tuple(replace(stage, stage=f"other {stage.stage}") for stage in status.stages)
    status = replace(status, stages=stages)
    svg, _ = graph_of(samples.plan_of(4), {}).shown(status)
    assert set(texts(svg).values()) == {""}


def test_graph_is_the_same_for_equal_records() -> None:
    first, second = (graph_of(samples.plan_of(9), {}).shown(samples.status(9)) for _ in range(2))
    assert first == second


def test_folder_alone_shows_the_graph(job: FolderBlobs) -> None:
    page = TestClient(app_of(FolderSource([job])), base_url=BASE)
    (listed,) = FolderSource([job]).jobs()
    assert "No graph: the job's folder has no plan" in page.get(f"/job/{listed.id}").text
    assert '<span class="quiet">s' not in page.get(f"/job/{listed.id}").text
    record_plan(job, samples.plan_of(3))
    assert '<svg xmlns="http://www.w3.org/2000/svg" class="plan"' in page.get(f"/job/{listed.id}").text


def test_table_has_the_ids_of_the_graph() -> None:
    jobs = samples.Jobs(Listed("a", "/a", samples.status(3)), plans={"a": samples.plan_of(3)})
    text = TestClient(app_of(jobs), base_url=BASE).get("/job/a").text
    rows = re.findall(r'<th scope="row"><span class="quiet">(s\d)</span> <a [^>]*>(.*?)</a>', text)
    rows = [(id, name.replace("<wbr>", "")) for id, name in rows]
    assert rows == [(f"s{at}", stage["name"]) for at, stage in enumerate(samples.plan_of(3)["stages"])]


def test_unreadable_plan_hides_nothing_else() -> None:
    jobs = samples.Jobs(Listed("a", "/a", samples.status(3)), plans={"a": {"stages": 3}})
    page = TestClient(app_of(jobs), base_url=BASE)
    assert "No graph" in page.get("/job/a").text
    assert page.get("/job/a/stage/0").status_code == 200


def evil_of(value: Any) -> Any:
    """Replace every name in a plan."""
    if isinstance(value, dict):
        return {
            name: EVIL if name in ("name", "urn", "coder", "windowing", "state", "uid") else evil_of(of)
            for name, of in value.items()
        }
    return [evil_of(of) for of in value] if isinstance(value, list) else value


@pytest.mark.contract("PAGE-02")
def test_names_in_a_plan_are_inert() -> None:
    plan = evil_of(samples.plan_of(3))
    status = samples.with_stage(samples.status(3), 0, stage=EVIL)
    page = TestClient(app_of(samples.Jobs(Listed("a", "/a", status), plans={"a": plan})), base_url=BASE)
    for path in ("/job/a", "/job/a/stage/0", "/job/a/events?version=x"):
        assert "<script" not in OURS.sub("", page.get(path).text)
    assert page.get("/job/a").text.count("&lt;script&gt;") > 5
