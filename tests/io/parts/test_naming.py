"""Names of part files: uniqueness, and refused names."""

from __future__ import annotations

from typing import Any

import pytest
from apache_beam.transforms import window

from arcbeam.io.parts.naming import GLOBAL, Span, Template, check_destination, span_of_other, success_name
from arcbeam.io.parts.spans import check_template, span_of

DAY = 86_400_000_000
SPAN = Span(DAY + 1_500_000, 2 * DAY)


def template(text: str, destinations: bool = False, shards: int | None = None) -> Template:
    return Template(text, destinations=destinations, shards=shards)


def test_fields_of_names() -> None:
    made = template("{destination}/{start:%Y/%m}/{end}-{shard:02d}-{part}{suffix}", destinations=True)
    assert made.name(SPAN, "a/b", (3,), 12, ".txt") == "a/b/1970/01/19700103T000000Z-03-00012.txt"
    assert made.name(SPAN, "d", (2, 0, 17), 0, "") == "d/1970/01/19700103T000000Z-02-00-17-00000"
    assert (
        template("{window}{shard}{part}").name(SPAN, "", (0,), 0, "") == "19700102T000001.5Z-19700103T000000Z0000000000"
    )
    assert template("{window}-{shard}-{part}").name(GLOBAL, "", (0,), 0, "") == "global-00000-00000"


def test_default_template() -> None:
    assert Template.usual(destinations=False, windows=False) == "part-{shard}-{part}{suffix}"
    assert Template.usual(destinations=True, windows=True) == "{destination}/part-{window}-{shard}-{part}{suffix}"


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("{shard}", r"'\{shard\}': .*\{part\}"),
        ("{part}", r"'\{part\}': .*\{shard\}"),
        ("{shard}{part}{x}", r"unknown field \{x\}"),
        ("{shard}{part}{}", r"unknown field \{\}"),
        ("{shard}{part", "expected '}'"),
        ("{shard}{part:s}", "format code"),
        ("{shard}-{part:.0f}/..", "leads out"),
        ("../{shard}-{part}", "leads out"),
        ("/x/{shard}-{part}", "absolute"),
        (".arcbeam/{shard}-{part}", "staged"),
        ("{shard}-{part}/", "empty part"),
        ("{destination}{shard}{part}", r"\{destination\}, but .* no destination"),
    ],
)
def test_invalid_template_is_refused(text: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        template(text)


def test_single_shard_needs_no_field() -> None:
    template("{part}", shards=1)
    with pytest.raises(ValueError, match=r"'\{shard\}\{part\}': .* \{destination\}"):
        template("{shard}{part}", destinations=True)


@pytest.mark.parametrize(
    ("text", "windowfn"),
    [
        ("{part}{shard}", window.GlobalWindows()),
        ("{window}{part}{shard}", window.GlobalWindows()),
        ("{start}{part}{shard}", window.FixedWindows(60)),
        ("{start:%Y%m%d%H}-{part}{shard}", window.FixedWindows(3600)),
        ("{end}{part}{shard}", window.SlidingWindows(60, 10)),
        ("{start}{end}{part}{shard}", window.Sessions(10)),
        ("{window}{part}{shard}", window.Sessions(10)),
    ],
)
def test_template_with_unique_windows_is_accepted(text: str, windowfn: Any) -> None:
    check_template(template(text), windowfn)


@pytest.mark.parametrize(
    ("text", "windowfn", "why"),
    [
        ("{start}{part}{shard}", window.GlobalWindows(), "neither"),
        ("{part}{shard}", window.FixedWindows(60), r": add \{window\}, \{start\} or \{end\}"),
        (
            "{start:%H%M}{part}{shard}",
            window.FixedWindows(60),
            "1970-01-01T00:00:00Z.* and 1970-01-02T00:00:00Z.* the same name",
        ),
        (
            "{start:%Y%m%d%H}{part}{shard}",
            window.FixedWindows(60),
            "1970-01-01T00:00:00Z.* and 1970-01-01T00:01:00Z.* the same name",
        ),
        (
            "{start:%m%d}{part}{shard}",
            window.FixedWindows(86_400),
            "1970-01-01T00:00:00Z.* and 1971-01-01T00:00:00Z.* the same name",
        ),
        ("{start}{part}{shard}", window.Sessions(10), r": add \{window\}$"),
    ],
)
def test_template_with_ambiguous_windows_is_refused(text: str, windowfn: Any, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        check_template(template(text), windowfn)


def test_windows_in_names() -> None:
    coder = window.FixedWindows(1).get_window_coder()
    assert span_of(window.IntervalWindow(1, 2), coder) == Span(1_000_000, 2_000_000)
    assert span_of(window.GlobalWindow(), window.GlobalWindows().get_window_coder()) == GLOBAL
    assert span_of_other(5, b"a") != span_of_other(5, b"b")
    assert str(Span(0, DAY)) == "1970-01-01T00:00:00Z/1970-01-02T00:00:00Z"
    assert str(GLOBAL) == "global"
    assert success_name("_SUCCESS", "a", GLOBAL) == "a/_SUCCESS"
    assert success_name("_SUCCESS", "", Span(0, DAY)) == "_SUCCESS-19700101T000000Z-19700102T000000Z"


@pytest.mark.parametrize("name", ["", "/a", "a//b", "../a", "a/..", ".", "a/.arcbeam/b", 7, None, "a\0b"])
def test_destination_outside_of_path_is_refused(name: Any) -> None:
    with pytest.raises(ValueError, match="the destination"):
        check_destination(name)


def test_destination_may_have_several_folders() -> None:
    assert check_destination("a/b c/é") == "a/b c/é"
