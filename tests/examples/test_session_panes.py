"""The last pane of each session has all of its clicks, also the late ones."""

from __future__ import annotations

from pathlib import Path

import pytest

from examples.session_panes import CLICKS, GAP, main


def sessions() -> set[tuple[str, ...]]:
    """Return the sessions, as user and pages in order of time."""
    found: set[tuple[str, ...]] = set()
    for user in {user for _, user, _ in CLICKS}:
        together: list[tuple[int, str]] = []
        for at, page in sorted((at, page) for at, name, page in CLICKS if name == user):
            if together and at - together[-1][0] >= GAP:
                found.add((user, *(page for _, page in together)))
                together = []
            together.append((at, page))
        found.add((user, *(page for _, page in together)))
    return found


@pytest.mark.contract("API-01", "ENG-11")
@pytest.mark.usefixtures("spark")
def test_last_panes_are_complete(tmp_path: Path) -> None:
    assert main(["--runner=arcbeam.ArcbeamRunner", "--streaming", f"--output={tmp_path}"]) == 0
    last: dict[tuple[str, ...], tuple[int, list[str]]] = {}
    for file in tmp_path.iterdir():
        user, begin, _, number = file.stem.split("-")
        pages = file.read_text().split()[2:]
        last[user, begin] = max(last.get((user, begin), (-1, [])), (len(pages), pages))
        assert int(number) >= 0
    found = {(user, *pages) for (user, _), (_, pages) in last.items()}
    assert sessions() <= found
