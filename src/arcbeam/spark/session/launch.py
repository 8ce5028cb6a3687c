"""How a process that already has threads starts Spark's JVM.

Owns the process that PySpark starts as its gateway, and that process's command line. Must not know sessions.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from pyspark import java_gateway

from arcbeam.secrets import is_secret, without_credentials
from arcbeam.store.blobs.claims import work_folder

_FIRST_LINES = 20
"""Lines of Java's output that are checked for Java's own warning."""

# The process is what PySpark expects: it becomes Java, ignores Ctrl-C, and ends with its standard input.
_SCRIPT = f"""
trap '' INT
exec "$@" 2> >(
  for ((n = 0; n < {_FIRST_LINES}; n++)); do
    IFS= read -r line || {{ printf %s "$line" >&2; exit; }}
    [[ $line == "WARNING: Using incubator modules: jdk.incubator.vector" ]] && break
    printf '%s\\n' "$line" >&2
  done
  exec cat >&2
)
"""

_ASKING = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""Options of the Java that Spark first runs briefly, to get the command line of the permanent one."""

_lock = threading.Lock()


@contextlib.contextmanager
def launching(environ: Mapping[str, str] = {}) -> Iterator[None]:
    """While the block runs, PySpark starts Java without a fork of this process and without Java's warning of a module.

    Args:
        environ: variables that Java gets in addition to those of this process.
    """
    gateway: Any = java_gateway
    with _lock, contextlib.ExitStack() as leaving:
        before = gateway.Popen

        def spawn(command: list[str], *, preexec_fn: Any = None, **kwargs: Any) -> Any:
            env = {**(kwargs.pop("env", None) or os.environ), **environ}
            # PySpark waits until Java has read its settings.
            command = without_secrets(command, leaving.enter_context(work_folder("spark")))
            if preexec_fn is None:  # as on Windows, which has neither fork nor bash
                return before(command, env=env, **kwargs)
            # SUBTLE: a process forks here only because of PySpark's `preexec_fn`, which makes Java ignore Ctrl-C;
            # without it, vfork is used. In a fork, gRPC's handlers run. If gRPC is in use, as in a job server, they
            # kill the child one time in three.
            env = {"SPARK_LAUNCHER_OPTS": _ASKING, **env}
            return before(["bash", "-c", _SCRIPT, "spark", *command], env=env, **kwargs)

        gateway.Popen = spawn
        try:
            yield
        finally:
            gateway.Popen = before


def without_secrets(command: Sequence[str], folder: Path) -> list[str]:
    """Move the secret settings in a command line of `spark-submit` to a file that only this user can read.

    Every user of a host can read the command line of every process.

    Args:
        command: `spark-submit` and its arguments.
        folder: the folder for the file; only this user can read it.
    """
    kept, secrets = list(command[:1]), []
    arguments = iter(command[1:])
    for argument in arguments:
        setting = next(arguments, None) if argument == "--conf" else None
        if setting is not None and _is_secret(setting):
            secrets.append(setting)
        else:
            kept += [argument] if setting is None else [argument, setting]
    # SUBTLE: of two such files Spark reads only the last. In that case PySpark sets the secrets when it makes the
    # context.
    if secrets and "--properties-file" not in kept:
        file = folder / "secrets.properties"
        with open(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="ascii") as out:
            out.writelines(f"{_escaped(name)}={_escaped(value)}\n" for name, _, value in map(_parted, secrets))
        kept[1:1] = ["--properties-file", str(file), "--load-spark-defaults"]
    return kept


def _is_secret(setting: str) -> bool:
    name, _, value = _parted(setting)
    return is_secret(name) or without_credentials(value) != value


def _parted(setting: str) -> tuple[str, str, str]:
    return setting.partition("=")


def _escaped(text: str) -> str:
    """Escape a text for a Java properties file."""
    units = text.encode("utf-16-be")
    codes = (int.from_bytes(units[at : at + 2]) for at in range(0, len(units), 2))
    return "".join(chr(code) if chr(code).isascii() and chr(code).isalnum() else f"\\u{code:04x}" for code in codes)
