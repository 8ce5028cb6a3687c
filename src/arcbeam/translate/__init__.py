"""Pipeline protos in, plan out: the only user of Beam's pipeline protos."""

from arcbeam.translate.lower import translate

__all__ = ["translate"]
