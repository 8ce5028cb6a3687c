"""Sizes that results must not depend on, and the switch that makes all of them small for tests."""

from arcbeam.sizes.declaring import by_identity, cache_size, memo, remembered, threshold

__all__ = ["by_identity", "cache_size", "memo", "remembered", "threshold"]
