"""Pipeline protos in, plan out: the only user of Beam's pipeline protos."""

from arcbeam.translate.lower import translate
from arcbeam.translate.parsing.parsedpipeline import ParsedPipeline
from arcbeam.translate.validate import validated

__all__ = ["ParsedPipeline", "translate", "validated"]
