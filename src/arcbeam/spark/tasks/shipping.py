"""How a job's files and settings reach its Python workers: through Spark's own artifacts, and a prelude.

Owns both ends: `ship` on the driver hands archives to Spark, once per session and content; `WorkerSetup` in the worker
makes what is needed importable, loads the pickled main session, and takes back what another job had put there. Knows
nothing of how archives are made (`artifacts`).
"""

from __future__ import annotations

import importlib
import logging
import os
import sys
import sysconfig
import threading
import weakref
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from arcbeam.errors import EnvironmentMismatchError, SetupError
from arcbeam.harness.encoding.mainmodule import MainClasses
from arcbeam.spark.tasks import workerlog

_LOG = logging.getLogger("arcbeam.shipping")

PACKAGES, FILES, SESSION = "packages", "staged", "session"
"""Folders of an archive: importable packages; the user's files (by Beam's convention); the pickled main session."""


@dataclass(frozen=True, slots=True)
class Archive:
    """A zip file on the driver, named by its content.

    Attributes:
        path: of the zip file.
        platform: `sysconfig.get_platform()` that it needs; "" if it holds no native code.
    """

    path: Path
    platform: str = ""

    @property
    def name(self) -> str:
        """What Spark calls it, and the folder that it is unpacked to."""
        return self.path.name


_HOME = "SEMI_PERSISTENT_DIRECTORY"
"""Environment variable that names, by Beam's convention, the folder above `staged`."""

_shipped: weakref.WeakKeyDictionary[Any, set[str]] = weakref.WeakKeyDictionary()
_lock = threading.Lock()


def ship(spark: Any, archives: tuple[Archive, ...]) -> None:
    """Hands archives to Spark, which unpacks each once per executor; what the session has is not sent again.

    Raises:
        SetupError: Spark does not take them.
    """
    with _lock:
        known = _shipped.setdefault(spark, set())
        for archive in archives:
            if archive.name in known:
                continue
            try:
                spark.addArtifacts(str(archive.path), archive=True)
            except Exception as e:
                raise SetupError(f"Spark does not take the job's files: {type(e).__name__}: {e}") from e
            known.add(archive.name)


@dataclass(frozen=True, slots=True)
class WorkerSetup:
    """What a worker does before it opens a job's first processor. Pickled into the tasks; cheap when repeated.

    Attributes:
        archives: names of the job's archives.
        platform: the platform that their native code needs, "" if there is none.
        pickle_library: what the pipeline's functions were pickled with.
        log_level: of user code's root logger.
        log_levels: levels of other loggers by name, as pairs.
        closed_outputs: names of steps whose output tags are all declared, with the tags.
        paths: folders to import from, of a driver on the same machine.
        main: classes of the user's script.
        folder: where the program is, of a driver on the same machine: relative paths mean the same to its functions.
    """

    archives: tuple[str, ...] = ()
    platform: str = ""
    pickle_library: str = "default"
    log_level: str = "INFO"
    log_levels: tuple[tuple[str, str], ...] = ()
    closed_outputs: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    paths: tuple[str, ...] = ()
    main: MainClasses = field(default_factory=MainClasses)
    folder: str = ""

    def __call__(self) -> None:
        """Sets the worker up.

        Raises:
            EnvironmentMismatchError: an archive did not arrive, or is for another platform.
        """
        workerlog.install(self.log_level, dict(self.log_levels))
        from apache_beam.internal import pickler

        if self.pickle_library != "default" or pickler.desired_pickle_lib is not pickler.cloudpickle_pickler:
            pickler.set_library(self.pickle_library)
        _declare_outputs(self.closed_outputs)
        _go_to(self.folder)
        here = sysconfig.get_platform()
        if self.platform and self.platform != here:
            raise EnvironmentMismatchError(
                f"the driver ({self.platform}) shipped packages with native code, and the worker is {here}",
                "install them on the executors, or submit from the same platform",
            )
        roots = tuple(_arrived(name) for name in self.archives)
        shipped = (root / folder for root in roots for folder in (PACKAGES, FILES))
        _imports.use((*shipped, *map(Path, self.paths)), roots)
        sessions = [path for root in roots if (path := root / SESSION / "pickled_main_session").exists()]
        if not (sessions and self.pickle_library.startswith("dill")):
            # Dill's session holds the whole of `__main__`; its classes would not be the same as these.
            self.main.install()
        for session in sessions:
            if str(session) != _imports.session:
                pickler.load_session(str(session))
                _imports.session = str(session)


_first_folder = ""
"""Where this process was before any job told it where to be."""


def _go_to(folder: str) -> None:
    """Makes a folder the current one; that of the process's beginning if there is no such."""
    global _first_folder
    _first_folder = _first_folder or os.getcwd()
    os.chdir(folder if folder and os.path.isdir(folder) else _first_folder)


def _arrived(name: str) -> Path:
    """Where Spark unpacked an archive in this worker."""
    from pyspark.core.files import SparkFiles

    root = Path(SparkFiles.getRootDirectory(), name)
    if not root.is_dir():
        raise EnvironmentMismatchError(f"the job's files ({name}) did not reach the worker: {root} is not there")
    return root


class _Imports:
    """What `sys.path` holds for the job at hand. Another job's entries, and modules from its archives, go first.

    Invariant: `sys.path` holds `paths`, in order, at `_position` and after; nothing else of ours.
    """

    def __init__(self) -> None:
        self.paths: tuple[Path, ...] = ()
        self.roots: tuple[Path, ...] = ()
        self.session = ""
        self._added: list[str] = []

    def use(self, paths: tuple[Path, ...], roots: tuple[Path, ...]) -> None:
        """Makes `paths` importable: those below `roots` before everything else, the others after everything."""
        if (paths, roots) == (self.paths, self.roots):
            return
        for entry in self._added:
            if entry in sys.path:
                sys.path.remove(entry)
        gone = [str(root) for root in self.roots if root not in roots]
        for name, module in list(sys.modules.items()):
            file = getattr(module, "__file__", None)
            if file and any(file.startswith(root + os.sep) for root in gone):
                del sys.modules[name]
        first = [str(p) for p in paths if any(root in p.parents for root in roots) and p.is_dir()]
        last = [str(p) for p in paths if str(p) not in first and str(p) not in sys.path and p.exists()]
        sys.path[:0] = first
        sys.path.extend(last)
        self._added = first + last
        # User code finds its files where a Beam worker's start-up would put them.
        home = next((root for root in roots if (root / FILES).is_dir()), None)
        if home is not None:
            os.environ[_HOME] = str(home)
        elif self.roots:
            os.environ.pop(_HOME, None)
        self.paths, self.roots, self.session = paths, roots, ""
        importlib.invalidate_caches()


_imports = _Imports()

_closed: Mapping[str, tuple[str, ...]] = {}


def _declare_outputs(closed: Mapping[str, tuple[str, ...]]) -> None:
    """Makes the SDK refuse outputs to tags that a step did not declare; by itself it drops them without a word."""
    global _closed
    _closed = closed
    from apache_beam.runners.worker import operations

    receivers = operations._TaggedReceivers
    dropping = receivers.__missing__
    if getattr(dropping, "refuses", False):
        return

    def refuse(self: Any, tag: Any) -> Any:
        declared = _closed.get(self._step_name)
        if declared is None:
            return dropping(self, tag)
        tags = ", ".join(map(repr, declared)) or "none"
        raise ValueError(f"output tag {tag!r} is not declared (declared: {tags}); add it to with_outputs()")

    refuse.refuses = True  # type: ignore[attr-defined]
    receivers.__missing__ = refuse
