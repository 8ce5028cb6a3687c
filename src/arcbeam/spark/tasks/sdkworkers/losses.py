"""The error of a task whose SDK worker has died: which worker, how, and in which transforms.

Owns both sides: the first such attempt of a task leaves the error to the driver, which needs it only if Spark does not
try the task again. Imports no Spark, because both sides use it.
"""

from __future__ import annotations

import contextlib
import pickle
from typing import Final

from arcbeam.errors import ArcbeamError, WorkerLostError
from arcbeam.fnapi.lost import WorkerAccount
from arcbeam.model import texts
from arcbeam.store.jobtemp.location import JobLocation

_NAMES: Final = 5
_FILE: Final = "lost-sdk-worker"

# In the worker.


def described(account: WorkerAccount, step: str, stage: str) -> WorkerLostError:
    """Return the error.

    Args:
        account: what is known of the worker's end.
        step: the transform that ran, as far as the task knows.
        stage: name of its stage; "" if unknown.
    """
    names = account.transforms or ((step,) if step and step != stage else ())
    shown = [f"'{name}'" for name in names[:_NAMES]]
    shown += [f"{len(names) - _NAMES} more"] if len(names) > _NAMES else []
    running = " or ".join(filter(None, (", ".join(shown[:-1]), *shown[-1:])))
    where = " in ".join(filter(None, (running, f"stage '{stage}'" if stage else "")))
    first = f"{account.why}, while it ran {where}" if where else account.why
    lines = (each.replace("\n", "\n  ") for each in account.last_lines)
    message = texts.fit("\n  ".join((first, *lines)))
    known = names[0] if len(names) == 1 else ""
    return WorkerLostError(message, _remedy(account.how), died=True, step=known, how=account.how)


def _remedy(how: str) -> str:
    if how.startswith("exit status"):
        return "return or raise an error instead of ending the process"
    if "killed" in how or "SIGKILL" in how:
        return (
            "if the system has killed it for its memory, give SDK workers more: reserve it in "
            "spark.executor.memoryOverhead"
        )
    return "look for the cause in the worker's output"


def record_loss(location: JobLocation, run: str, error: WorkerLostError) -> None:
    """Leave the error to the driver. Never raises: Spark's text has the error, too.

    Args:
        location: the job's location.
        run: names the run of the micro-batch.
        error: the error.
    """
    with contextlib.suppress(ArcbeamError, OSError):
        location.put_bytes(_FILE, pickle.dumps((run, error)))


# On the driver.


def left(location: JobLocation, run: str) -> WorkerLostError | None:
    """Return the last such error of a run of a micro-batch; None if there is none."""
    with contextlib.suppress(ArcbeamError, OSError):
        of, error = pickle.loads(location.get_bytes(_FILE))
        if of == run and isinstance(error, WorkerLostError):
            return error
    return None
