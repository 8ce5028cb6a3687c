"""Without Maven or Java, the broker says what is missing."""

from __future__ import annotations

import pytest

from tools.kafka import broker


def test_missing_names_maven_without_it(monkeypatch: pytest.MonkeyPatch, tmp_path: object) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(broker.shutil, "which", lambda program: None if program == "mvn" else program)
    assert "mvn" in broker.missing()


def test_missing_names_java_without_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(broker.shutil, "which", lambda _: None)
    assert "Java 17" in broker.missing()
