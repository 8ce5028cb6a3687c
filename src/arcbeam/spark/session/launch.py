"""How Spark's JVM is started by a process that has threads already.

Owns the process that PySpark starts as its gateway. Must not know sessions.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator
from typing import Any

from pyspark import java_gateway

_FIRST_LINES = 20
"""Of what Java says; what it has to say of itself is among them."""

# It stays what PySpark wants: the process is Java in the end, does not hear Ctrl-C, and ends with its standard input.
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
"""For the Java that Spark runs first, for a moment: it says the command line of the one that stays."""

_lock = threading.Lock()


@contextlib.contextmanager
def launching() -> Iterator[None]:
    """Inside, PySpark starts Java without a fork of this process, and without Java's word on a module of its own."""
    gateway: Any = java_gateway
    with _lock:
        before = gateway.Popen

        def spawn(command: list[str], *, preexec_fn: Any = None, **kwargs: Any) -> Any:
            if preexec_fn is None:  # as on Windows: there is no fork, and no bash
                return before(command, **kwargs)
            # SUBTLE: PySpark's `preexec_fn`, which only makes Java deaf to Ctrl-C, is why a process forks here at all;
            # without it, it does not (vfork). In a fork, gRPC's handlers run: where gRPC is at work, as in a job
            # server, the child dies of them, one time in three.
            env = {"SPARK_LAUNCHER_OPTS": _ASKING, **(kwargs.pop("env", None) or os.environ)}
            return before(["bash", "-c", _SCRIPT, "spark", *command], env=env, **kwargs)

        gateway.Popen = spawn
        try:
            yield
        finally:
            gateway.Popen = before
