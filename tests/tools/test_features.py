"""The document of supported features is what the markers say."""

from __future__ import annotations

import pytest

from tools import features

TABLE = """
## ONE: first
| id | contract |
|---|---|
| ONE-01 | It holds. |
| ONE-02 | It is known not to. |

## TWO: second
| id | contract |
|---|---|
| TWO-01 | Nobody tried. |
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


def test_two_rows_with_one_id_are_refused() -> None:
    row = next(line for line in TABLE.splitlines() if features.contracts(TABLE)[0].id in line)
    with pytest.raises(features.UnknownContractError) as caught:
        features.contracts(TABLE + "\n" + row + "\n")
    assert features.contracts(TABLE)[0].id in str(caught.value)


def test_contracts_of_a_table() -> None:
    assert [(c.id, c.section, c.text) for c in features.contracts(TABLE)] == [
        ("ONE-01", "ONE: first", "It holds."),
        ("ONE-02", "ONE: first", "It is known not to."),
        ("TWO-01", "TWO: second", "Nobody tried."),
    ]


def test_markers_of_modules_classes_and_functions() -> None:
    assert list(features.shown("tests/test_x.py", SOURCE)) == [
        features.Shown("ONE-01", "tests/test_x.py::test_plain"),
        features.Shown("ONE-01", "tests/test_x.py::TestInherits"),
        features.Shown("ONE-02", "tests/test_x.py::TestInherits"),
        features.Shown("ONE-01", "tests/test_x.py::TestOwn::test_two", "no stream"),
        features.Shown("ONE-02", "tests/test_x.py::TestOwn::test_two", "no stream"),
    ]


def test_status() -> None:
    passes, fails = features.Shown("ONE-01", "a"), features.Shown("ONE-01", "b", "no stream")
    assert features.status([]) == "not yet"
    assert features.status([passes]) == "shown"
    assert features.status([fails]) == "xfail (no stream)"
    assert features.status([passes, fails]) == "in part: xfail (no stream)"


def test_document() -> None:
    document = features.render(
        features.contracts(TABLE),
        [
            features.Shown("ONE-01", "tests/spark/batch/test_a.py::t"),
            features.Shown("ONE-01", "tests/conformance/test_fn_api.py::FnApiStreaming"),
            features.Shown("ONE-02", "tests/spark/steps/test_b.py::t", "no stream"),
        ],
    )
    assert "1 of 3 contracts shown, 0 in part, 1 expected failures, 1 not yet." in document
    names = "`tests/conformance/test_fn_api.py::FnApiStreaming`<br>`tests/spark/batch/test_a.py::t`"
    assert f"| ONE-01 | It holds. | shown | batch, streaming | {names} |" in document
    assert "| ONE-02 | It is known not to. | xfail (no stream) |  | `tests/spark/steps/test_b.py::t` |" in document
    assert "| TWO-01 | Nobody tried. | not yet |  |  |" in document


def test_unknown_contract_is_refused() -> None:
    with pytest.raises(features.UnknownContractError, match=r"tests/a\.py::t: there is no contract NO-99"):
        features.render(features.contracts(TABLE), [features.Shown("NO-99", "tests/a.py::t")])


def test_an_id_must_be_literal() -> None:
    with pytest.raises(features.UnknownContractError, match="literal"):
        list(features.shown("t.py", "@pytest.mark.contract(ID)\ndef test_x(): ..."))


def test_what_is_missing_of_a_contract_is_told() -> None:
    missing = features.missing_parts("## Shown in part\n- ONE-01: the second half.\n")
    assert missing == {"ONE-01": "the second half."}
    found = [features.Shown("ONE-01", "tests/test_a.py::test_a")]
    document = features.render([features.Contract("ONE-01", "ONE: first", "Both halves.")], found, missing)
    assert "0 of 1 contracts shown, 1 in part" in document
    assert "| ONE-01 | Both halves. | in part: the second half |" in document


NOTES = """
## Refused
- Streams.

## Different from other runners
- Colours.

## Shown in part
- ONE-02: the second half.
- TWO-01: in the engine and in simulated jobs.
"""

SUITES = """
_TEST = "Test"
_WHY = "needs a stream"
GAPS = {f"{_TEST}.test_a": _WHY, "Test.test_b": ("holds " "all")}
GAPS_WITHOUT_FUSION = {"Test.test_c": "holds less"}
NOT_RUN = {"Test.test_d": "needs a cloud"}
OTHER = {"x": Expectation(probe=True)}
"""


def test_the_page_for_users() -> None:
    found = [features.Shown(id, f"tests/{id}.py::t") for id in ("ONE-01", "ONE-02", "TWO-01")]
    page = features.for_users(features.contracts(TABLE), found, TABLE + NOTES, SUITES)
    assert "tests/" not in page
    assert [line for line in page.splitlines() if line.startswith(("## ", "- ", "| It", "TWO"))] == [
        "## Works",
        "- It holds. (ONE-01)",
        "## Works in part",
        "| It is known not to. (ONE-02) |  | the second half |",
        "## Refused",
        "- Streams.",
        "- `Test.test_a`: needs a stream",
        "- `Test.test_b`: holds all",
        "- `Test.test_c`: holds less",
        "- `Test.test_d`: needs a cloud",
        "## Differs from other runners",
        "- Colours.",
        "## Not shown yet",
        "TWO-01.",
    ]


def test_a_section_that_is_missing_is_told() -> None:
    with pytest.raises(features.UnknownContractError, match="no section 'Refused'"):
        features.for_users(features.contracts(TABLE), [], TABLE, SUITES)
