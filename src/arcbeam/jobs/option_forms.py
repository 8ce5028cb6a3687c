"""Pipeline options as the Job API carries them, and the description of ours.

Owns the translation between a Struct of `beam:option:<name>:v1` and plain names. Must not know what an option does.
"""

from __future__ import annotations

import argparse
from typing import Any

from apache_beam.portability.api import beam_job_api_pb2 as job_pb
from google.protobuf import json_format, struct_pb2

from arcbeam.options import ArcbeamOptions

_PREFIX, _SUFFIX = "beam:option:", ":v1"


def plain(options: Any) -> dict[str, Any]:
    """The options of a Struct by their plain names; whole numbers are integers again (a Struct has only floats)."""
    found = json_format.MessageToDict(options)
    return {name.removeprefix(_PREFIX).removesuffix(_SUFFIX): _whole(value) for name, value in found.items()}


def plain_of_bytes(raw: bytes) -> dict[str, Any]:
    """The same of a serialized Struct."""
    return plain(struct_pb2.Struct.FromString(raw))


def _whole(value: Any) -> Any:
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, list):
        return [_whole(each) for each in value]
    if isinstance(value, dict):
        return {key: _whole(each) for key, each in value.items()}
    return value


def described() -> list[Any]:
    """A PipelineOptionDescriptor for every option of ours, so that SDKs that do not know them let them through."""
    parser = argparse.ArgumentParser(add_help=False, argument_default=argparse.SUPPRESS)
    ArcbeamOptions._add_argparse_args(parser)
    return [
        job_pb.PipelineOptionDescriptor(
            name=action.dest,
            type=_type(action),
            description=action.help or "",
            default_value="" if action.default in (None, argparse.SUPPRESS, False) else str(action.default),
            group="arcbeam",
        )
        for action in parser._actions
        if action.option_strings
    ]


def _type(action: argparse.Action) -> Any:
    types = job_pb.PipelineOptionType
    if isinstance(action, argparse._StoreTrueAction):
        return types.BOOLEAN
    if isinstance(action, argparse._AppendAction):
        return types.ARRAY
    if action.type is int:
        return types.INTEGER
    return types.NUMBER if action.type is float else types.STRING
