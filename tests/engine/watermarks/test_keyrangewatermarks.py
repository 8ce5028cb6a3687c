"""Key ranges are those of the keys that both numbers of shards have in common."""

from __future__ import annotations

import pytest

from arcbeam.engine.watermarks.keyrangewatermarks import KeyRangeWatermark
from arcbeam.model.timestamps import Timestamp

TIME = Timestamp(7)


@pytest.mark.parametrize("before", [1, 2, 3, 4, 6])
@pytest.mark.parametrize("after", [1, 2, 3, 4, 6])
def test_floor_within_a_shard_is_that_of_common_keys(before: int, after: int) -> None:
    for old in range(before):
        for new in range(after):
            common = {hashed for hashed in range(72) if hashed % before == old and hashed % after == new}
            floor = KeyRangeWatermark(before, old, TIME).within(after, new)
            found = set() if floor is None else {key for key in range(72) if key % floor.shards == floor.shard}
            assert found == common
            assert floor is None or floor.time == TIME


def test_floor_of_more_shards_than_hashes_is_of_one_hash() -> None:
    many = 65_537  # times 65,536 this is more than 2³², and both have no common divisor
    hashed = 123_456_789
    floor = KeyRangeWatermark(many, hashed % many, TIME).within(65_536, hashed % 65_536)
    assert floor == KeyRangeWatermark(1 << 32, hashed, TIME)
    missing = (1 << 32) + 5  # no key has such a hash
    assert KeyRangeWatermark(many, missing % many, TIME).within(65_536, missing % 65_536) is None
