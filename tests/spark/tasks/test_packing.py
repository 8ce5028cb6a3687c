from __future__ import annotations

import random

import pytest

from arcbeam.spark.tasks.packing import BLOB_BYTES_MIN, Packer, unpacked

SAME = b"the same again. " * 1000


def chance(size: int) -> bytes:
    return random.Random(size).randbytes(size)


@pytest.mark.parametrize("blob", [b"", b"x", SAME, SAME[: BLOB_BYTES_MIN - 1], chance(50_000), chance(5_000) + SAME])
def test_unpacking_returns_the_original(blob: bytes) -> None:
    assert unpacked(*Packer().pack(blob)) == blob


def test_repetitive_blob_is_packed() -> None:
    packed, size = Packer().pack(SAME)
    assert size == len(SAME)
    assert len(packed) < len(SAME) / 10


@pytest.mark.parametrize("blob", [SAME[: BLOB_BYTES_MIN - 1], chance(50_000)])
def test_blob_that_gains_little_is_not_packed(blob: bytes) -> None:
    assert Packer().pack(blob) == (blob, 0)


def test_after_no_gain_few_blobs_are_tried() -> None:
    packer = Packer()
    blobs = [chance(5_000), *[SAME] * 20]
    sizes = [packer.pack(blob)[1] for blob in blobs]
    assert sizes == [0] * 16 + [len(SAME)] * 5


def test_packing_can_be_switched_off() -> None:
    assert Packer(on=False).pack(SAME) == (SAME, 0)
