"""The heap of a local session that arcbeam makes."""

from __future__ import annotations

from pathlib import Path

import pytest

from arcbeam.spark.session import heap


def _limited(root: Path, name: str, limit: str) -> Path:
    (root / name).parent.mkdir(parents=True)
    (root / name).write_text(limit)
    return root


@pytest.mark.parametrize("name", heap._LIMITS)
def test_heap_is_a_quarter_of_container_memory(tmp_path: Path, name: str) -> None:
    limit = min(heap.available(tmp_path), 6 << 30)
    root = _limited(tmp_path, name, f"{limit}\n")
    assert heap.available(root) == limit
    assert heap.settings({}, {}, root) == {"spark.driver.memory": f"{max(1024, limit >> 22)}m"}


def test_heap_is_at_least_sparks_default(tmp_path: Path) -> None:
    root = _limited(tmp_path, heap._LIMITS[0], str(512 << 20))
    assert heap.settings({}, {}, root) == {"spark.driver.memory": "1024m"}


def test_unlimited_container_has_machine_memory(tmp_path: Path) -> None:
    assert heap.available(_limited(tmp_path, heap._LIMITS[0], "max\n")) == heap.available(tmp_path / "nowhere")


def test_heap_setting_of_the_user_wins(tmp_path: Path) -> None:
    (tmp_path / "spark-defaults.conf").write_text("spark.driver.memory 3g\n")
    assert heap.settings({"spark.driver.memory": "2g"}, {}) == {}
    assert heap.settings({}, {"SPARK_DRIVER_MEMORY": "2g"}) == {}
    assert heap.settings({}, {"PYSPARK_SUBMIT_ARGS": "--driver-memory 2g pyspark-shell"}) == {}
    assert heap.settings({}, {"SPARK_CONF_DIR": str(tmp_path)}) == {}
