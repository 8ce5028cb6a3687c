"""The user's script, in the workers. What pickles by its name, as `__main__.Name`, is found there.

Owns the worker's side: a module for each job, which takes the place of `__main__` while the job's tasks run. It makes
the script's objects from their pickles when they are first looked up, and each only once. The script itself never runs
in a worker. Must not know how the names are sent (`shipping`), nor how they are pickled (`names`).
"""

from __future__ import annotations

import types
import uuid
from collections import OrderedDict
from dataclasses import dataclass, field

from arcbeam.harness.encoding.registered import LoadedTypes, Registered
from arcbeam.harness.encoding.script import space
from arcbeam.harness.encoding.script.names import MainNames, names_of_script

_JOBS_MAX = 16
"""Jobs whose modules a worker keeps; more than the jobs of which it keeps stages open."""


@dataclass(frozen=True, slots=True)
class MainModule:
    """The names of a driver's `__main__`, and the driver's type registries.

    Attributes:
        names: the names with their values.
        registered: the SDK's type registries, for this and other modules.
        token: identifies the submission. Jobs share no objects, because user code may change them.
        is_known: whether the submitter sent its script; the SDK's own submitters to a job server do not.
    """

    names: MainNames = field(default_factory=MainNames)
    registered: Registered = field(default_factory=Registered)
    token: str = field(default_factory=lambda: uuid.uuid4().hex, compare=False, repr=False)
    is_known: bool = True

    @staticmethod
    def here(words: frozenset[str] | None = None) -> MainModule:
        """Collect the names of this process; see `names_of_script`."""
        names = names_of_script(words)
        return MainModule(names, registered=Registered.here(frozenset(of.class_id for of in names.sent)))

    def install(self) -> bool:
        """Make this the process's `__main__` and its registries, in place of those of another job.

        Returns:
            Whether this is the first time in this process.
        """
        entered = space.current()
        if entered is not None and entered.token == self.token:
            return False
        known = _jobs.pop(self.token, None)
        job = known or _Job(space.Space(self.token, self.names), self.is_known)
        _jobs[self.token] = job
        while len(_jobs) > _JOBS_MAX:
            _jobs.popitem(last=False)
        # SUBTLE: imported late, in workers only: it hooks into the SDK's unpickler.
        from arcbeam.harness.encoding.script import objects

        job.space.enter()
        objects.install()
        if known is None:
            job.types = self.registered.loaded()
        job.types.install()
        return known is None


@dataclass(slots=True)
class _Job:
    """A job in this worker.

    Attributes:
        space: its script.
        is_known: see `MainModule`.
        types: its registered types.
    """

    space: space.Space
    is_known: bool
    types: LoadedTypes = field(default_factory=LoadedTypes)


_jobs: OrderedDict[str, _Job] = OrderedDict()
"""By token, the last used at the end."""


def load_all() -> None:
    """Make all objects of the current script: dill's functions read its globals without looking them up by name."""
    script = space.current()
    if script is not None:
        for name in script.names:
            script.try_load(name)


def reason_missing(name: str) -> str:
    """Return why a name of the script is not in this worker; "" if that is unknown."""
    script = space.current()
    return script.unsent.get(name, "") if script is not None else ""


def reason_copied(name: str) -> str:
    """Return why transforms have copies of a function of the script, as a predicate of its name."""
    script = space.current()
    found = script.globals.get(name) if script is not None else None
    if isinstance(found, types.FunctionType):
        if found.__closure__:
            return "was made by another function, such as a decorator"
        if vars(found):
            return "has attributes, which may change"
    return "uses values that may change"


def is_script_known() -> bool:
    """Return whether the submitter of the current job sent its script."""
    script = space.current()
    return script is None or _jobs[script.token].is_known
