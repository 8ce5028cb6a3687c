"""Secrets in options: which options are secret, how code gets their values, and how to remove them from texts.

Owns the secrets of this process, in memory only. A job's secrets travel to its workers in the functions of its Spark
jobs (with `store.jobtemp.location.JobLocation`), never in a file. Must not know what a secret is for.

Three kinds of values are secret: that of an option with such a name (`--s3_secret_access_key`), that of a Spark setting
with such a name (`--spark_conf spark.x.password=…`) or for a variable that a transform has declared, and a URL with
credentials (`s3://KEY:SECRET@bucket`). Each has a *name*, which identifies it when a job is resumed: that of the
option, or `spark_conf:` and the setting's.
"""

from arcbeam.secrets.known import MASK, install, installed, redacted
from arcbeam.secrets.parting import (
    Parted,
    declare,
    declare_settings,
    declared,
    how_to_give,
    in_environment,
    is_secret,
    joined,
    parted,
    variable,
    without_credentials,
)

__all__ = [
    "MASK",
    "Parted",
    "declare",
    "declare_settings",
    "declared",
    "how_to_give",
    "in_environment",
    "install",
    "installed",
    "is_secret",
    "joined",
    "parted",
    "redacted",
    "variable",
    "without_credentials",
]
