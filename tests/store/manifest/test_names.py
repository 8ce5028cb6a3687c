"""Names of manifests give their micro-batch again."""

from __future__ import annotations

import pytest

from arcbeam.store.manifest.names import manifest_micro_batch, manifest_name


@pytest.mark.parametrize("micro_batch", [0, 1, 999_999_999_999])
def test_name_of_manifest_gives_its_micro_batch(micro_batch: int) -> None:
    assert manifest_micro_batch(manifest_name(micro_batch)) == micro_batch


@pytest.mark.parametrize(
    "name",
    ["manifests/", "manifests/1", "manifests/00000000000x", "000000000001", "manifests/x/000000000001", "history"],
)
def test_other_names_are_no_manifests(name: str) -> None:
    assert manifest_micro_batch(name) is None
