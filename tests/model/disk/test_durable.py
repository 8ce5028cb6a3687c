"""Names of folders are synced once, also if another process made them."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from arcbeam.model.disk import durable


@pytest.fixture
def synced(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[str]:
    """The folders below `tmp_path` that were synced."""
    found: list[str] = []

    def fsync(number: int) -> None:
        path = os.readlink(f"/proc/self/fd/{number}")
        if path.startswith(str(tmp_path)):
            found.append(path.removeprefix(str(tmp_path)))

    monkeypatch.setattr(os, "fsync", fsync)
    return found


def test_name_of_folder_is_synced_up_to_the_root_once(tmp_path: Path, synced: list[str]) -> None:
    (tmp_path / "a" / "b").mkdir(parents=True)
    durable.make_durable(tmp_path / "a" / "b")
    assert synced == ["/a", ""]
    durable.make_durable(tmp_path / "a" / "b")
    assert synced == ["/a", ""]
    (tmp_path / "a" / "c").mkdir()
    durable.make_durable(tmp_path / "a" / "c")
    assert synced == ["/a", "", "/a"]


def test_forgotten_folder_is_synced_again(tmp_path: Path, synced: list[str]) -> None:
    (tmp_path / "a" / "b").mkdir(parents=True)
    durable.make_durable(tmp_path / "a" / "b")
    durable.forget(tmp_path / "a")
    durable.make_durable(tmp_path / "a" / "b")
    assert synced == ["/a", "", "/a", ""]


def test_folder_whose_name_begins_alike_is_not_forgotten(tmp_path: Path, synced: list[str]) -> None:
    for name in ("a", "ab"):
        (tmp_path / name).mkdir()
        durable.make_durable(tmp_path / name)
    before = list(synced)
    durable.forget(tmp_path / "a")
    durable.make_durable(tmp_path / "ab")
    assert synced == before


@pytest.mark.parametrize("code", [errno.EIO, errno.EINVAL])
def test_only_missing_support_is_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    def fsync(number: int) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "fsync", fsync)
    if code == errno.EINVAL:
        durable.sync_folder(tmp_path)
    else:
        with pytest.raises(OSError, match=os.strerror(code)):
            durable.sync_folder(tmp_path)


def test_renamed_files_have_durable_names(tmp_path: Path, synced: list[str]) -> None:
    for name in "ab":
        (tmp_path / name).write_text(name)
        (tmp_path / f"to {name}").mkdir()
    durable.rename([(tmp_path / name, tmp_path / f"to {name}" / name) for name in "ab"])
    assert [(tmp_path / f"to {name}" / name).read_text() for name in "ab"] == ["a", "b"]
    assert {"/to a", "/to b", ""} <= set(synced)


def test_missing_file_is_an_error_unless_it_was_renamed_before(tmp_path: Path, synced: list[str]) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "b").write_text("b")
    move = tmp_path / "a", tmp_path / "folder" / "b"
    with pytest.raises(FileNotFoundError):
        durable.rename([move])
    assert synced == []
    durable.rename([move], repeated=True)
    assert synced[0] == "/folder", "the process that renamed it may have died before its name was durable"
    with pytest.raises(FileNotFoundError) as caught:
        durable.rename([(move[0], tmp_path / "folder" / "c")], repeated=True)
    assert (caught.value.filename, caught.value.filename2) == (str(move[0]), str(tmp_path / "folder" / "c"))


def test_failed_disk_differs_from_failed_rename(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fsync(number: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "fsync", fsync)
    (tmp_path / "a").write_text("a")
    with pytest.raises(durable.NotSyncedError) as caught:
        durable.rename([(tmp_path / "a", tmp_path / "b")])
    assert caught.value.errno == errno.EIO
    assert (tmp_path / "b").read_text() == "a"
