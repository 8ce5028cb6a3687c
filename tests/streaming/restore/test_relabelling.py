"""Transforms whose labels got other random parts are matched if that is the only way in which they differ."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from arcbeam.model.fingerprint import Fingerprint, changes
from arcbeam.streaming.restore.relabelling import Relabelling, has_random_labels, relabelling

pytestmark = pytest.mark.contract("STORE-05")


def graph(*lines: str) -> dict[str, Fingerprint]:
    """Return transforms, each as `name <- input, input: code`."""
    found = {}
    for line in lines:
        whole, _, content = line.rpartition(": ")
        name, _, inputs = whole.partition(" <- ")
        found[name] = Fingerprint("ParDo", tuple(sorted(filter(None, inputs.split(", ")))), content)
    return found


def detector(part: str) -> dict[str, Fingerprint]:
    return graph(
        "Read: read",
        f"Detect/Score (Z-{part})/ParDo <- Read: score",
        f"Detect/Threshold (Z-{part})/ParDo <- Detect/Score (Z-{part})/ParDo: threshold",
        f"Write <- Detect/Threshold (Z-{part})/ParDo: write",
    )


def test_transforms_are_matched_by_label_code_and_place() -> None:
    found = relabelling(detector("54a7b9"), detector("0c3d1e"))
    assert found == Relabelling(
        {
            "Detect/Score (Z-54a7b9)/ParDo": "Detect/Score (Z-0c3d1e)/ParDo",
            "Detect/Threshold (Z-54a7b9)/ParDo": "Detect/Threshold (Z-0c3d1e)/ParDo",
        },
        {
            "Detect/Score (Z-54a7b9)": "Detect/Score (Z-0c3d1e)",
            "Detect/Threshold (Z-54a7b9)": "Detect/Threshold (Z-0c3d1e)",
        },
    )
    stages = ["Read", "Detect/Score (Z-54a7b9)/ParDo", "Detect/Score (Z-54a7b9)/Group/Read"]
    assert found.renamed(stages) == {
        "Detect/Score (Z-54a7b9)/ParDo": "Detect/Score (Z-0c3d1e)/ParDo",
        "Detect/Score (Z-54a7b9)/Group/Read": "Detect/Score (Z-0c3d1e)/Group/Read",
    }
    assert not list(changes(detector("54a7b9"), detector("0c3d1e"), found.transforms, compares_code=True))


def test_same_labels_need_no_match() -> None:
    assert relabelling(detector("54a7b9"), detector("54a7b9")) == Relabelling()


def test_random_labels_on_one_side_are_not_matched() -> None:
    chosen = graph("Read: read", "Count <- Read: count")
    assert relabelling(detector("54a7b9"), chosen) == Relabelling()
    assert relabelling(chosen, detector("54a7b9")) == Relabelling()


@pytest.mark.parametrize(
    ("old", "new"),
    [("Count", "Total"), ("Part 1", "Part 2"), ("Take 123456789x", "Take 987654321x"), ("Effaced!", "Facades!")],
)
def test_chosen_labels_are_not_matched(old: str, new: str) -> None:
    assert relabelling(graph(f"{old}: a"), graph(f"{new}: a")) == Relabelling()
    assert not has_random_labels([old, new])


def test_uuid_is_random() -> None:
    old, new = "Run 8f14e45f-ceea-467a-9575-1c2d3e4f5a6b", "Run 0cc175b9-c0f1-46b6-831c-399e26977266"
    assert relabelling(graph(f"{old}: a"), graph(f"{new}: a")).labels == {old: new}


SIBLINGS = ("Read: read", "A ({0}) <- Read: same", "A ({1}) <- Read: same")


def _with(lines: tuple[str, ...], *parts: str) -> dict[str, Fingerprint]:
    return graph(*(line.format(*parts) for line in lines))


def test_alike_siblings_are_ambiguous() -> None:
    found = relabelling(_with(SIBLINGS, "aaaaaa", "bbbbbb"), _with(SIBLINGS, "cccccc", "dddddd"))
    assert not found.labels
    assert (
        found.unclear == "'A (aaaaaa)', 'A (bbbbbb)' and 'A (cccccc)', 'A (dddddd)' are alike apart from their labels"
    )
    # Also if another transform of the pipeline could be matched.
    more = (*SIBLINGS, "B ({0}) <- Read: other")
    assert not relabelling(_with(more, "aaaaaa", "bbbbbb"), _with(more, "cccccc", "dddddd")).transforms


def test_siblings_with_different_readers_are_matched() -> None:
    lines = (*SIBLINGS, "Alert <- A ({0}): write", "Archive <- A ({1}): write")
    found = relabelling(_with(lines, "aaaaaa", "bbbbbb"), _with(lines, "dddddd", "cccccc"))
    assert found.labels == {"A (aaaaaa)": "A (dddddd)", "A (bbbbbb)": "A (cccccc)"}


def test_siblings_with_different_readers_far_away_are_matched() -> None:
    def made(*parts: str) -> dict[str, Fingerprint]:
        lines = ["Read: read"]
        for part, end in zip(parts, ("Alert", "Archive"), strict=True):
            before = "Read"
            for n in range(5):
                lines.append(f"C{n} ({part}) <- {before}: same")
                before = f"C{n} ({part})"
            lines.append(f"{end} <- {before}: write")
        return graph(*lines)

    found = relabelling(made("aaaaaa", "bbbbbb"), made("dddddd", "cccccc"))
    pairs = (("aaaaaa", "dddddd"), ("bbbbbb", "cccccc"))
    assert found.labels == {f"C{n} ({old})": f"C{n} ({new})" for n in range(5) for old, new in pairs}


def test_outputs_distinguish_siblings() -> None:
    lines = ("Read: read", "A ({0}) <- Read (good): same", "A ({1}) <- Read (bad): same")
    found = relabelling(_with(lines, "aaaaaa", "bbbbbb"), _with(lines, "dddddd", "cccccc"))
    assert found.labels == {"A (aaaaaa)": "A (dddddd)", "A (bbbbbb)": "A (cccccc)"}


def test_outputs_of_relabelled_transforms_are_followed() -> None:
    lines = ("A ({0}): tags", "B <- A ({0}) (good): b", "C ({0}) <- A ({0}) (bad): c")
    found = relabelling(_with(lines, "aaaaaa"), _with(lines, "bbbbbb"))
    assert found.labels == {"A (aaaaaa)": "A (bbbbbb)", "C (aaaaaa)": "C (bbbbbb)"}


@pytest.mark.parametrize(
    "now",
    [
        graph("Read: read", "A (bbbbbb) <- Read: other code"),
        graph("Read: read", "Other: read", "A (bbbbbb) <- Other: same"),
        graph("Read: read", "B (bbbbbb) <- Read: same"),
        graph("Read: read", "A (bbbbbb) <- Read: same", "New <- A (bbbbbb): more"),
    ],
)
def test_other_code_or_place_is_not_matched(now: Mapping[str, Fingerprint]) -> None:
    found = relabelling(graph("Read: read", "A (aaaaaa) <- Read: same"), now)
    assert not found.labels
    assert found.unclear == "nothing has the code and the place of 'A (aaaaaa)'"


def test_additional_relabelled_transform_is_not_matched() -> None:
    had, now = graph("A (aaaaaa): same"), graph("A (bbbbbb): same", "B (cccccc): b")
    assert relabelling(had, now).unclear == "'B (cccccc)' has the code and the place of nothing before"
