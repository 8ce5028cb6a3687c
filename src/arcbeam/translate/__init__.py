"""Pipeline protos in, plan out: the only user of Beam's pipeline protos."""

from arcbeam.translate.lower import translate
from arcbeam.translate.validate import validate

__all__ = ["translate", "validate"]
