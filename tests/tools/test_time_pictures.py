"""The pictures of docs/explanation/time.md are up to date."""

from __future__ import annotations

import shutil
from pathlib import Path

import matplotlib

from tools.time_pictures import PICTURES, differing, main


def test_outdated_pictures_of_this_matplotlib_are_named(tmp_path: Path) -> None:
    assert main(["--check"]) == 0
    for picture in PICTURES.glob("*.svg"):
        shutil.copy(picture, tmp_path)
    picture = tmp_path / "join.svg"
    text = picture.read_text()
    this = f"Matplotlib v{matplotlib.__version__},"
    picture.write_text(text.replace(this, "Matplotlib v0.0,").replace("</svg>", " </svg>"))
    assert "join.svg" not in differing(tmp_path)
    picture.write_text(this + text)
    assert "join.svg" in differing(tmp_path)
    picture.unlink()
    assert "join.svg" in differing(tmp_path)
