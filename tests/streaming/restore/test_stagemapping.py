"""Which stages a mapping of names renames."""

from __future__ import annotations

import pytest

from arcbeam.streaming.restore.stagemapping import _each


@pytest.mark.parametrize(
    ("known", "renamed"),
    [
        (["Count"], {"Count": "Total"}),
        (["Count/Group", "Count/Read"], {"Count/Group": "Total/Group", "Count/Read": "Total/Read"}),
        (["Count", "Count/Read"], {"Count": "Total", "Count/Read": "Total/Read"}),
        # Names that only begin alike are other stages.
        (["Count/Group", "Counter", "Counter/Read", "Count2"], {"Count/Group": "Total/Group"}),
        (["Count", "Counter"], {"Count": "Total"}),
        # It was applied before.
        (["Total/Group"], {}),
        # There is neither: the caller refuses it by its name.
        (["Totals/Group", "Totaled"], {"Count": "Total"}),
        ([], {"Count": "Total"}),
    ],
)
def test_transform_stands_for_the_stages_inside_it(known: list[str], renamed: dict[str, str]) -> None:
    assert dict(_each({"Count": "Total"}, known)) == renamed
