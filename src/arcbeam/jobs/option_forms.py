"""Pipeline options in the form of the Job API, and the description of arcbeam's options.

Owns the translation between a Struct of `beam:option:<name>:v1` and plain names, and the secrets of options, which are
not stored. Must not know what an option does.
"""

from __future__ import annotations

import argparse
import threading
import uuid
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

from apache_beam.portability.api import beam_job_api_pb2 as job_pb
from google.protobuf import json_format, struct_pb2

from arcbeam import secrets
from arcbeam.options import WITHHELD, ArcbeamOptions
from arcbeam.sizes import remembered

_PREFIX, _SUFFIX = "beam:option:", ":v1"


def plain(options: Any) -> dict[str, Any]:
    """Return the options of a Struct by plain names. Whole numbers become integers: a Struct has only floats."""
    found = {_plain(name): _whole(value) for name, value in json_format.MessageToDict(options).items()}
    return {**_of_go(found), **found}


_GO = "go_options"
_JAVA = "default_environment_type"
"""Java's name of the option `environment_type`."""
_FLAGS: Mapping[Any, Any] = {"true": True, "false": False}


def _without_secrets(value: Any, found: dict[str, str]) -> Any:
    """Return the options of a Go program without secrets, which are added to `found`."""
    if not isinstance(value, dict) or not isinstance(value.get("options"), dict):
        return value
    kept = secrets.parted({_plain(name): each for name, each in value["options"].items()})
    found |= kept.secrets
    return {**value, "options": kept.options}


def _of_go(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return arcbeam's options among those that a Go program has set with `beam.PipelineOptions.Set`: all are texts."""
    given = options.get(_GO)
    texts = given.get("options") if isinstance(given, dict) else None
    known = {_plain(name): value for name, value in texts.items()} if isinstance(texts, dict) else {}
    return {name: _FLAGS.get(value, value) for name, value in known.items() if name in _names()}


def _plain(name: str) -> str:
    """Return an option's plain name. A submitter that does not know arcbeam's options passes hyphens on."""
    name = name.removeprefix(_PREFIX).removesuffix(_SUFFIX)
    return underscored if (underscored := name.replace("-", "_")) in _names() else name


@remembered()
def _names() -> frozenset[str]:
    return frozenset(option.name for option in described())


def struct_of(options: Mapping[str, Any]) -> bytes:
    """Return options by plain names as a serialized Struct, as SDK workers get them."""
    found = struct_pb2.Struct()
    found.update({f"{_PREFIX}{name}{_SUFFIX}": value for name, value in options.items()})
    serialized: bytes = found.SerializeToString()
    return serialized


def environment_type(options: Mapping[str, Any]) -> str:
    """Return the option `environment_type` of any SDK, in capitals; "" if it is not set."""
    of_go = options.get(_GO)
    texts = of_go.get("options") if isinstance(of_go, dict) else None
    in_go = texts.get("environment_type") if isinstance(texts, dict) else None
    return str(options.get("environment_type") or options.get(_JAVA) or in_go or "").upper()


_VAULTS_MAX = 10_000
_vault: OrderedDict[str, dict[str, str]] = OrderedDict()
"""The secrets of stored options, by token. They are kept in this process's memory only."""
_vault_lock = threading.Lock()


def stored(options: Any) -> bytes:
    """Return a serialized Struct without its secrets. `plain_of_bytes` in this process restores them."""
    without, found = struct_pb2.Struct(), dict[str, str]()
    for key, value in json_format.MessageToDict(options).items():
        if _plain(key) == _GO:
            value = _without_secrets(value, found)
        kept = secrets.parted({_plain(key): value})
        found |= kept.secrets
        for left in kept.options.values():
            without.update({key: left})
    if found:
        token = uuid.uuid4().hex
        without.update({f"{_PREFIX}{WITHHELD}{_SUFFIX}": [token, *sorted(found)]})
        with _vault_lock:
            _vault[token] = found
            while len(_vault) > _VAULTS_MAX:
                _vault.popitem(last=False)
    serialized: bytes = without.SerializeToString()
    return serialized


def plain_of_bytes(raw: bytes) -> dict[str, Any]:
    """Return the options of a serialized Struct by plain names, with the secrets that `stored` removed.

    If another process stored them, they have the option `WITHHELD` instead: a list of a token and the secrets' names.
    """
    found = plain(struct_pb2.Struct.FromString(raw))
    withheld = found.pop(WITHHELD, None)
    if not withheld:
        return found
    with _vault_lock:
        known = _vault.get(withheld[0])
    return {**found, WITHHELD: withheld} if known is None else secrets.joined(found, known)


def shown_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return options for people: without the values of secrets, also of those that another process stored."""
    known = dict(options)
    _, *withheld = known.pop(WITHHELD, None) or [""]
    kept = secrets.parted(known)
    return {**kept.options, **dict.fromkeys((*kept.secrets, *withheld), secrets.MASK)}


def _whole(value: Any) -> Any:
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, list):
        return [_whole(each) for each in value]
    if isinstance(value, dict):
        return {key: _whole(each) for key, each in value.items()}
    return value


def described() -> list[Any]:
    """Return a PipelineOptionDescriptor for each of arcbeam's options: SDKs then pass them on."""
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
