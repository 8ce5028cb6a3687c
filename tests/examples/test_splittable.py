"""The splittable DoFn: its tracker, its blocks, and each line found once however a file is cut."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

from examples import splittable
from examples.splittable import BLOCK, Blocks, BlocksTracker, lines_of_block, main


def test_cutting_loses_nothing() -> None:
    assert list(Blocks(2, 9).cut(3)) == [Blocks(2, 5), Blocks(5, 8), Blocks(8, 9)]
    assert list(Blocks(0, 0).cut(3)) == []


@pytest.mark.parametrize(("start", "stop"), [(-1, 2), (3, 2)])
def test_invalid_blocks_are_refused(start: int, stop: int) -> None:
    with pytest.raises(ValueError, match=r"\d to \d"):
        Blocks(start, stop)


class TestTracker:
    def test_claims_to_the_end(self) -> None:
        tracker = BlocksTracker(Blocks(2, 4))
        assert [tracker.try_claim(block) for block in (2, 3, 4)] == [True, True, False]
        assert tracker.check_done()

    def test_unclaimed_blocks_are_not_done(self) -> None:
        tracker = BlocksTracker(Blocks(0, 3))
        tracker.try_claim(0)
        with pytest.raises(ValueError, match="1 to 3"):
            tracker.check_done()

    def test_backward_claim_is_refused(self) -> None:
        tracker = BlocksTracker(Blocks(0, 3))
        tracker.try_claim(1)
        with pytest.raises(ValueError, match="claimed"):
            tracker.try_claim(0)

    def test_split_gives_away_unclaimed_blocks(self) -> None:
        tracker = BlocksTracker(Blocks(0, 9))
        tracker.try_claim(0)
        assert tracker.try_split(0.5) == (Blocks(0, 5), Blocks(5, 9))
        assert tracker.current_restriction() == Blocks(0, 5)

    def test_tracker_is_done_after_checkpoint(self) -> None:
        tracker = BlocksTracker(Blocks(0, 9))
        tracker.try_claim(0)
        assert tracker.try_split(0) == (Blocks(0, 1), Blocks(1, 9))
        assert not tracker.try_claim(1)
        assert tracker.check_done()

    def test_nothing_left_to_split(self) -> None:
        tracker = BlocksTracker(Blocks(0, 1))
        tracker.try_claim(0)
        assert tracker.try_split(0) is None

    def test_progress(self) -> None:
        tracker = BlocksTracker(Blocks(4, 8))
        tracker.try_claim(4)
        assert (tracker.current_progress().completed_work, tracker.current_progress().remaining_work) == (1, 3)


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"\n" * (2 * BLOCK),
        b"x" * (BLOCK - 1) + b"\n" + b"y\n",  # a line starts at the very start of a block
        b"x" * BLOCK + b"\ny\n",  # the end of a line is all there is of it in a block
        b"x" * (3 * BLOCK) + b"\nend without its own end",  # blocks in which no line starts
        b"".join(b"%d\n" % number for number in range(10_000)),
    ],
)
def test_every_line_belongs_to_one_block(text: bytes) -> None:
    blocks = -(-len(text) // BLOCK)
    found = [item for block in range(blocks) for item in lines_of_block(io.BytesIO(text), block)]
    lines = io.BytesIO(text).readlines()
    assert [line for _, line in found] == lines
    assert all(text[offset:].startswith(line) for offset, line in found)


@pytest.mark.usefixtures("spark")
def test_notes_of_two_files(tmp_path: Path) -> None:
    filler = "# nothing\n" * (BLOCK // 20)
    (tmp_path / "long.py").write_text("".join(f"{filler}# TODO {number}\n" for number in range(40)))
    (tmp_path / "short.py").write_text("# FIXME this\n# and that\n")
    arguments = ["--input", f"{tmp_path}/*.py", "--output", str(tmp_path / "out")]
    assert main(["--runner=arcbeam.ArcbeamRunner", *arguments]) == 0
    found = [line.split("\t") for file in (tmp_path / "out").glob("found-*.txt") for line in splittable._lines(file)]
    assert sorted(line for _, _, line in found) == sorted([*(f"# TODO {n}" for n in range(40)), "# FIXME this"])
    content = {name: (tmp_path / name).read_text() for name in ("long.py", "short.py")}
    assert all(content[name][int(offset) :].startswith(line + "\n") for name, offset, line in found)
