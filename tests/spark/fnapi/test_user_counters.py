"""User counters of random pipelines in SDK workers: each stands under its step and is exact."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.spark.countedpipelines import CountedPipeline

pytestmark = pytest.mark.usefixtures("spark")


@pytest.mark.contract("API-06")
@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.long) for seed in range(1, 10))])
@pytest.mark.parametrize("options", [[], ["--streaming"]], ids=" ".join)
def test_counters_equal_what_user_code_noted(
    pipeline: Callable[..., Any], options: list[str], seed: int, tmp_path: Path
) -> None:
    counted = CountedPipeline(seed, tmp_path)
    submitted = pipeline("--shards=3", *options)
    counted.build(submitted)
    result = submitted.run()
    result.wait_until_finish()
    counted.check(result)
