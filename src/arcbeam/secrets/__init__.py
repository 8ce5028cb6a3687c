"""Secrets among options: which they are, how they reach the code that needs them, and how texts are shown without them.

Owns the secrets of this process, in memory only. A job's secrets travel to its workers in the functions of its Spark
jobs (with `store.jobtemp.location.JobLocation`), never in a file. Must not know what a secret is for.

Three kinds of values are secret: that of an option with such a name (`--s3_secret_access_key`), that of a Spark setting
with such a name (`--spark_conf spark.x.password=…`), and a URL with credentials in it (`s3://KEY:SECRET@bucket`). Each
has a *name*, by which it is asked for when a job is resumed: the option's, or `spark_conf:` and the setting's.
"""

from arcbeam.secrets.known import install, installed, redacted
from arcbeam.secrets.parting import (
    Parted,
    how_to_give,
    in_environment,
    is_secret,
    joined,
    parted,
    variable,
    without_credentials,
)

__all__ = [
    "Parted",
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
