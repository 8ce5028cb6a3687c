"""Names of folders are synced once, whoever made them."""

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
