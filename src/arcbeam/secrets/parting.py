"""Separates secret options from others.

Owns the patterns of names and URLs. Must not know what a secret is for.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

_SECRET = re.compile(
    r"secret|passw|passphrase|token|credential|private[._-]?key|api[._-]?key|connection[._-]?string|sas[._-]?key"
    r"|access[._-]?key(?![._-]?id)|account[._-]?key",
    re.IGNORECASE,
)
"""Part of the name of a secret option or setting; covers more than Spark's own `spark.redaction.regex`."""

USER = re.compile(r"(\b[a-z][a-z0-9+.-]*://)[^\s/@:'\"]*:[^\s/@'\"]*@", re.IGNORECASE)
PARAMETER = re.compile(
    r"([?&;](?:sig|[a-z0-9_.-]*(?:secret|passw|token|signature)[a-z0-9_.-]*)=)[^\s&;'\"]*", re.IGNORECASE
)

_CONF = "spark_conf"
_VARIABLE = re.compile(r"\bspark\..*Env\.(\w+)$")
"""A Spark setting that gives processes an environment variable, as `spark.executorEnv.NAME`."""
_variables: set[str] = set()
"""The environment variables that transforms of this process use as secrets."""
ENVIRONMENT = "ARCBEAM_SECRET_"
"""Prefix of environment variables that contain secrets."""


@dataclass(frozen=True, slots=True)
class Parted:
    """Options without secrets, and the secrets.

    Attributes:
        options: may be stored; URLs have no credentials.
        secrets: the removed values, by name.
    """

    options: dict[str, Any]
    secrets: dict[str, str] = field(repr=False)


def is_secret(name: str) -> bool:
    """Return whether the value of an option or setting of this name is a secret."""
    gives = _VARIABLE.search(name)
    return _SECRET.search(name) is not None or (gives is not None and gives[1] in _variables)


def declare(variables: Iterable[str]) -> None:
    """Make the Spark settings of environment variables secret, in this process, whatever the variables are called."""
    _variables.update(variables)


def declared() -> tuple[str, ...]:
    """Return the variables that were declared in this process, sorted."""
    return tuple(sorted(_variables))


def declare_settings(names: Iterable[str]) -> None:
    """Do the same for the settings among the names of a stored job's secrets."""
    declare(gives[1] for name in names if (gives := _VARIABLE.search(name)))


def without_credentials(url: str) -> str:
    """Return a URL, or a text with URLs, without users' names, passwords, and secret parameters."""
    return PARAMETER.sub(r"\1", USER.sub(r"\1", url))


def parted(options: Mapping[str, Any], also: Collection[str] = ()) -> Parted:
    """Separate the secrets from options.

    Args:
        options: by plain names, as in `PipelineOptions.get_all_options`.
        also: names whose values are always secret: those of an earlier run of the job.
    """
    kept: dict[str, Any] = {}
    secrets: dict[str, str] = {}
    for name, value in options.items():
        if name == _CONF and isinstance(value, list | tuple):
            kept[name] = [text for text in value if not _conf_secret(str(text), secrets, also)]
        elif (is_secret(name) or name in also) and isinstance(value, str) and value:
            secrets[name] = value
        else:
            kept[name] = _without(value)
            if kept[name] != value:
                secrets[name] = value if isinstance(value, str) else "\n".join(map(str, value))
    return Parted(kept, secrets)


def _conf_secret(text: str, secrets: dict[str, str], also: Collection[str]) -> bool:
    key, _, value = text.partition("=")
    known = is_secret(key) or f"{_CONF}:{key.strip()}" in also
    found = bool(value) and (known or without_credentials(value) != value)
    if found:
        secrets[f"{_CONF}:{key.strip()}"] = value
    return found


def _without(value: Any) -> Any:
    if isinstance(value, str):
        return without_credentials(value)
    if isinstance(value, list | tuple):
        return [_without(each) for each in value]
    return value


def joined(options: Mapping[str, Any], secrets: Mapping[str, str]) -> dict[str, Any]:
    """Return options with their secrets again."""
    found = dict(options)
    for name, value in secrets.items():
        if name.startswith(f"{_CONF}:"):
            found[_CONF] = [*(found.get(_CONF) or ()), f"{name.partition(':')[2]}={value}"]
        else:
            found[name] = value.split("\n") if isinstance(found.get(name), list) else value
    return found


def variable(name: str) -> str:
    """Return the environment variable for the secret of a name."""
    return ENVIRONMENT + re.sub(r"[^A-Z0-9]", "_", name.upper())


def in_environment(names: Iterable[str], environ: Mapping[str, str]) -> dict[str, str]:
    """Return the secrets that the environment has, by name."""
    return {name: environ[variable(name)] for name in names if environ.get(variable(name))}


def how_to_give(names: Collection[str]) -> str:
    """Return the remedy for missing secrets, for people."""
    ways = []
    for name in sorted(names):
        option = f"--{_CONF} {name.partition(':')[2]}=…" if name.startswith(f"{_CONF}:") else f"--{name}=…"
        ways.append(f"{variable(name)} or {option}")
    return f"set an environment variable, or give the option, for each: {'; '.join(ways)}"
