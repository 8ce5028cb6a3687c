"""What Spark itself logs in a session that arcbeam makes: its warnings, except those that arcbeam reports better.

Owns the choice of Spark's log configuration. `log4j2.properties` next to this module lists what is dropped, and why. A
session that the user made, and the user's own log4j configuration, are not changed.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path

import pyspark

_CONFIGURATION = Path(__file__).with_name("log4j2.properties")

_DEFAULT_OPTIONS = "spark.driver.defaultJavaOptions"
"""SUBTLE: not `extraJavaOptions`, which follow on Java's command line, so that the user's options there win."""

_STRUCTURED = "spark.log.structuredLogging.enabled"


def settings(chosen: Mapping[str, str], *, local: bool, environ: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return settings that make the log of a session's driver short.

    They are for a session that starts a JVM; in one that already runs they change nothing.

    Args:
        chosen: the user's settings of the session.
        local: whether the executors run on this machine.
        environ: Spark's environment (default: this process's environment).

    Returns:
        Nothing if the user configures Spark's log.
    """
    env = os.environ if environ is None else environ
    if _has_own_configuration(chosen, env):
        return {}
    options = [f"-Dlog4j2.configurationFile={_CONFIGURATION.as_uri()}"]
    if local:
        options.append("-Darcbeam.log.address=DENY")
    return {_DEFAULT_OPTIONS: " ".join([*options, chosen.get(_DEFAULT_OPTIONS, "")]).strip()}


def conf_folder(env: Mapping[str, str]) -> Path:
    """Return the folder in which Spark looks for its configuration."""
    return Path(env.get("SPARK_CONF_DIR") or Path(env.get("SPARK_HOME") or Path(pyspark.__file__).parent, "conf"))


def _has_own_configuration(chosen: Mapping[str, str], env: Mapping[str, str]) -> bool:
    if env.get("LOG4J_CONFIGURATION_FILE") or chosen.get(_STRUCTURED, "").lower() == "true":
        return True
    folder = conf_folder(env)
    if any(folder.glob("log4j2*.*")):
        return True
    try:
        defaults = (folder / "spark-defaults.conf").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return False
    # A setting of a session replaces this one, with all its other options.
    return (
        re.search(rf"^\s*({re.escape(_DEFAULT_OPTIONS)}|{re.escape(_STRUCTURED)})\b", defaults, re.MULTILINE)
        is not None
    )
