"""The page of supported features is what the contracts and the tests' markers say."""

from __future__ import annotations

import pytest

from tools import features

TABLE = """
refused = ["Streams."]

[[area]]
title = "First"
[area.contracts.ONE-01]
text = "It holds."
[area.contracts.ONE-02]
text = "It holds in part."
missing = "the second half"

[[area]]
title = "Second"
[area.contracts.TWO-01]
text = "Not built."
planned = true
"""

SOURCE = """
import pytest
pytestmark = [pytest.mark.contract("ONE-01"), pytest.mark.spark]

def test_plain(): ...

@pytest.mark.contract("ONE-02")
class TestInherits(Base):
    pass

class TestOwn:
    @pytest.mark.xfail(reason="no " "stream", strict=True)
    @pytest.mark.contract("ONE-02", "ONE-01")
    def test_two(self): ...

    def helper(self): ...
"""

SUITES = """
_TEST = "Test"
_WHY = "needs a stream"
GAPS = {f"{_TEST}.test_a": _WHY, "Test.test_b": ("holds " "all")}
GAPS_WITHOUT_FUSION = {"Test.test_c": "holds less"}
NOT_RUN = {"Test.test_d": "needs a cloud"}
OTHER = {"x": Expectation(probe=True)}
"""

ONE = features.Shown("ONE-01", "tests/spark/batch/test_a.py::t")
TWO = features.Shown("ONE-02", "tests/spark/streaming/test_b.py::t", "no stream")


def test_read_gives_contracts_in_order() -> None:
    assert [(c.id, c.area, c.text, c.missing, c.planned) for c in features.read(TABLE).contracts] == [
        ("ONE-01", "First", "It holds.", "", False),
        ("ONE-02", "First", "It holds in part.", "the second half", False),
        ("TWO-01", "Second", "Not built.", "", True),
    ]


@pytest.mark.parametrize(
    ("old", "new", "named"),
    [
        ("TWO-01", "ONE-01", "ONE-01"),  # in another area: TOML itself refuses two in one
        ("ONE-02", "ONE-01", "ONE-01"),
        ("TWO-01", "two-1", "two-1"),
        ("planned", "plan", "plan"),
        ("refused", "refuse", "refused"),
    ],
)
def test_malformed_file_of_contracts_is_refused(old: str, new: str, named: str) -> None:
    with pytest.raises(features.ContractError) as caught:
        features.read(TABLE.replace(old, new))
    assert named in str(caught.value)


def test_markers_of_modules_classes_and_functions() -> None:
    assert list(features.shown("tests/test_x.py", SOURCE)) == [
        features.Shown("ONE-01", "tests/test_x.py::test_plain"),
        features.Shown("ONE-01", "tests/test_x.py::TestInherits"),
        features.Shown("ONE-02", "tests/test_x.py::TestInherits"),
        features.Shown("ONE-01", "tests/test_x.py::TestOwn::test_two", "no stream"),
        features.Shown("ONE-02", "tests/test_x.py::TestOwn::test_two", "no stream"),
    ]


def test_an_id_must_be_literal() -> None:
    with pytest.raises(features.ContractError, match="literal"):
        list(features.shown("t.py", "@pytest.mark.contract(ID)\ndef test_x(): ..."))


def test_each_contract_but_planned_ones_has_a_test() -> None:
    table = features.read(TABLE)
    features.check(table, [ONE, TWO])
    with pytest.raises(features.ContractError, match="ONE-02"):
        features.check(table, [ONE])
    with pytest.raises(features.ContractError, match="TWO-01"):
        features.check(table, [ONE, TWO, features.Shown("TWO-01", "tests/a.py::t")])
    with pytest.raises(features.ContractError, match=r"tests/a\.py::t.*NO-99"):
        features.check(table, [ONE, TWO, features.Shown("NO-99", "tests/a.py::t")])


def test_missing_part_has_reasons_of_expected_failures() -> None:
    one, two, _ = features.read(TABLE).contracts
    assert features.missing(one, [ONE]) == ""
    assert features.missing(two, [TWO, TWO]) == "the second half; expected failure: no stream"


def test_page_for_users() -> None:
    streaming = features.Shown("ONE-01", "tests/conformance/test_fn_api.py::FnApiStreaming")
    page = features.page(features.read(TABLE), [ONE, streaming, TWO], SUITES)
    assert [line for line in page.splitlines() if line.startswith(("## ", "| ONE", "- "))] == [
        "## First",
        "| ONE-01 | It holds. | both |  |",
        "| ONE-02 | It holds in part. |  | the second half; expected failure: no stream |",
        "## Refused",
        "- Streams.",
        "## Beam's own tests",
        "## Planned",
        "- Not built. (TWO-01)",
    ]
    assert "2 of them fail, 1 more fail with `--no_fusion`, and 1 are not run." in page


def test_list_by_test_names_every_test() -> None:
    assert features.by_test(features.read(TABLE), [ONE, TWO]).splitlines() == [
        "ONE-01 It holds.",
        "    tests/spark/batch/test_a.py::t",
        "ONE-02 It holds in part.",
        "    tests/spark/streaming/test_b.py::t",
        "TWO-01 Not built.",
        "    planned",
    ]
