"""The output of commands: text for people, JSON for programs, each on its stream."""

from __future__ import annotations

import io
import json
from typing import Any

import pytest

from arcbeam.console.output import CommandOutput, JsonOutput, TextOutput
from arcbeam.errors import ArcbeamError


class Stream(io.StringIO):
    """What has left the process; with `terminal`, it is one."""

    def __init__(self, terminal: bool = False) -> None:
        super().__init__()
        self._terminal = terminal
        self.flushed = ""

    def isatty(self) -> bool:
        return self._terminal

    def flush(self) -> None:
        super().flush()
        self.flushed = self.getvalue()


def documents(stream: io.StringIO) -> list[Any]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_table_aligns_columns_but_pads_no_line() -> None:
    out = Stream()
    TextOutput(out, Stream()).table(["name", "n"], [{"name": "a-long-one", "n": 1}, {"n": 22, "other": 3}])
    assert out.getvalue() == "name        n\na-long-one  1\n            22\n"


def test_record_aligns_values() -> None:
    out = Stream()
    TextOutput(out, Stream()).record({"a": 1, "longer": "two"})
    assert out.getvalue() == "a:      1\nlonger: two\n"


def test_results_and_errors_have_their_streams() -> None:
    out, err = Stream(), Stream()
    output = TextOutput(out, err)
    output.text("done", jobs=1)
    output.error(ValueError("bad"))
    assert (out.getvalue(), err.getvalue()) == ("done\n", "error: bad\n")


@pytest.mark.parametrize("kind", [TextOutput, JsonOutput])
def test_default_streams_are_those_of_the_process(
    kind: type[CommandOutput], capsys: pytest.CaptureFixture[str]
) -> None:
    output = kind()
    output.text("result")
    output.error(ValueError("bad"))
    out, err = capsys.readouterr()
    assert ("result" in out, "bad" in out) == (True, False)
    assert ("result" in err, "bad" in err) == (False, True)


def test_progress_overwrites_itself_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "11")
    out, err = Stream(), Stream(terminal=True)
    output = TextOutput(out, err)
    for text in ("a progress", "a progress too long", "short"):
        output.progress(text)
        assert err.flushed == err.getvalue(), "it is seen at once"
    assert err.getvalue() == "\ra progress\ra progress\rshort     "


@pytest.mark.parametrize("end", ["table", "record", "text", "error"])
def test_result_begins_on_a_line_after_progress(end: str) -> None:
    err = Stream(terminal=True)
    output = TextOutput(Stream(), err)
    ends = {
        "table": lambda: output.table([], []),
        "record": lambda: output.record({}),
        "text": lambda: output.text("done"),
        "error": lambda: output.error(ValueError("bad")),
    }
    reported = "error: bad\n" if end == "error" else ""
    ends[end]()
    assert err.getvalue() == reported, "no progress was shown"
    output.progress("half")
    ends[end]()
    ends[end]()
    assert err.getvalue() == f"{reported}\rhalf\n{reported}{reported}"


def test_progress_without_terminal_is_a_line_each() -> None:
    err = Stream()
    output = TextOutput(Stream(), err)
    for text in ("one", "two"):
        output.progress(text)
        assert err.flushed == err.getvalue(), "it is seen at once"
    output.text("done")
    assert err.getvalue() == "one\ntwo\n"


def test_json_has_one_document_a_line() -> None:
    out, err = Stream(), Stream()
    output = JsonOutput(out, err)
    output.table(["a"], [{"a": 1, "more": 2}])
    output.record({"path": io})
    output.text("done")
    output.text("done", jobs=3)
    assert out.flushed == out.getvalue(), "a program that reads a pipe sees it at once"
    assert documents(out) == [[{"a": 1, "more": 2}], {"path": str(io)}, {"message": "done"}, {"jobs": 3}]
    output.progress("half")
    output.progress("half", done=1)
    assert documents(err) == [{"progress": {"message": "half"}}, {"progress": {"done": 1}}]


@pytest.mark.parametrize(
    ("error", "body"),
    [
        (ValueError("bad"), {"type": "ValueError", "message": "bad", "remedy": ""}),
        (ArcbeamError("bad", "do"), {"type": "ArcbeamError", "message": "bad", "remedy": "do"}),
    ],
)
def test_json_error_has_type_message_and_remedy(error: Exception, body: dict[str, str]) -> None:
    err = Stream()
    JsonOutput(Stream(), err).error(error)
    assert documents(err) == [{"error": body}]
