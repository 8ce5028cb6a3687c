"""How a job's files and settings reach its Python workers: through Spark's artifacts, and a worker setup.

Owns both sides. On the driver, `ship` passes archives to Spark, once for each session and content. In the worker,
`WorkerSetup` makes their content importable, loads the pickled main session, and undoes the setup of another job. Must
not know how archives are made (`artifacts`).
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
from arcbeam.harness.encoding.script import mainmodule
from arcbeam.harness.encoding.script.mainmodule import MainModule
from arcbeam.spark.tasks import workerlog

_LOG = logging.getLogger("arcbeam.shipping")

PACKAGES, FILES, SESSION, SDK = "packages", "staged", "session", "sdk"
"""Folders of an archive: importable packages; the user's files (Beam's convention); the pickled main session; the files
of SDK workers, by the SHA-256 of their content."""


@dataclass(frozen=True, slots=True)
class Archive:
    """A zip file on the driver, named by its content.

    Attributes:
        path: the zip file's path.
        platform: the `sysconfig.get_platform()` that it needs; "" if it has no native code.
    """

    path: Path
    platform: str = ""

    @property
    def name(self) -> str:
        """Its name in Spark, and the folder to which it is unpacked."""
        return self.path.name


_HOME = "SEMI_PERSISTENT_DIRECTORY"
"""Environment variable that names, by Beam's convention, the folder that contains `staged`."""

_shipped: weakref.WeakKeyDictionary[Any, set[str]] = weakref.WeakKeyDictionary()
_lock = threading.Lock()


def ship(spark: Any, archives: tuple[Archive, ...]) -> None:
    """Pass archives to Spark, which unpacks each once per executor. What the session already has is not sent again.

    Raises:
        SetupError: Spark rejects an archive.
    """
    with _lock:
        known = _shipped.setdefault(spark, set())
        for archive in archives:
            if archive.name in known:
                continue
            try:
                spark.addArtifacts(str(archive.path), archive=True)
            except Exception as e:
                raise SetupError(f"Spark cannot receive the job's files: {type(e).__name__}: {e}") from e
            known.add(archive.name)


@dataclass(frozen=True, slots=True)
class WorkerSetup:
    """What a worker does before it opens a job's first processor. Pickled into the tasks; cheap when repeated.

    Attributes:
        archives: names of the job's archives.
        platform: the platform that their native code needs; "" if there is none.
        pickle_library: the library that pickled the pipeline's functions.
        log_level: the level of user code's root logger.
        log_levels: pairs of the names and levels of other loggers.
        closed_outputs: the output tags of transforms that declare all their tags, by the transform's name.
        paths: folders to import from, if the driver is on the same machine.
        main: the names of the user's script.
        folder: the program's folder, if the driver is on the same machine, so that relative paths work in functions.
        sdk_options: the pipeline options for SDK workers, as a serialized Struct; not stored with the job.
        restart: how the job continues if its submitter has ended; "" unless SDK workers run there. Not stored.
    """

    archives: tuple[str, ...] = ()
    platform: str = ""
    pickle_library: str = "default"
    log_level: str = "INFO"
    log_levels: tuple[tuple[str, str], ...] = ()
    closed_outputs: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    paths: tuple[str, ...] = ()
    main: MainModule = field(default_factory=MainModule)
    folder: str = ""
    sdk_options: bytes = field(default=b"", repr=False)
    restart: str = ""

    def sdk_folders(self) -> tuple[Path, ...]:
        """Return the folders with files for SDK workers, in a worker that was set up."""
        return tuple(folder for name in self.archives if (folder := _arrived(name) / SDK).is_dir())

    def __call__(self) -> None:
        """Set the worker up.

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
                f"the driver ({self.platform}) sent packages with native code, but the worker is {here}",
                "install them on the executors, or submit from the same platform",
            )
        roots = tuple(_arrived(name) for name in self.archives)
        shipped = (root / folder for root in roots for folder in (PACKAGES, FILES))
        _imports.use((*shipped, *map(Path, self.paths)), roots)
        sessions = [path for root in roots if (path := root / SESSION / "pickled_main_session").exists()]
        is_dill = self.pickle_library.startswith("dill")
        # Dill's session has the whole of `__main__`, and its classes would differ from these.
        main = MainModule(token=self.main.token) if sessions and is_dill else self.main
        is_new = main.install()
        if is_dill:
            mainmodule.load_all()
        for session in sessions:
            if is_new or str(session) != _imports.session:
                pickler.load_session(str(session))
                _imports.session = str(session)


_first_folder = ""
"""The folder of this process before the first job changed it."""


def _go_to(folder: str) -> None:
    """Make a folder the current one; if it does not exist, return to the process's first folder."""
    global _first_folder
    _first_folder = _first_folder or os.getcwd()
    os.chdir(folder if folder and os.path.isdir(folder) else _first_folder)


def _arrived(name: str) -> Path:
    """Return the folder to which Spark unpacked an archive in this worker."""
    from pyspark.core.files import SparkFiles

    root = Path(SparkFiles.getRootDirectory(), name)
    if not root.is_dir():
        raise EnvironmentMismatchError(f"the job's files ({name}) did not reach the worker: {root} does not exist")
    return root


class _Imports:
    """The part of `sys.path` that belongs to the current job. Entries and modules of another job are removed first.

    Invariant: `_added` are the entries that were added to `sys.path`.
    """

    def __init__(self) -> None:
        self.paths: tuple[Path, ...] = ()
        self.roots: tuple[Path, ...] = ()
        self.session = ""
        self._added: list[str] = []

    def use(self, paths: tuple[Path, ...], roots: tuple[Path, ...]) -> None:
        """Make `paths` importable: those below `roots` before everything else, the others after everything."""
        if (paths, roots) == (self.paths, self.roots):
            return
        for entry in self._added:
            if entry in sys.path:
                sys.path.remove(entry)
        removed = [str(root) for root in self.roots if root not in roots]
        for name, module in list(sys.modules.items()):
            file = getattr(module, "__file__", None)
            if file and any(file.startswith(root + os.sep) for root in removed):
                del sys.modules[name]
        first = [str(p) for p in paths if any(root in p.parents for root in roots) and p.is_dir()]
        last = [str(p) for p in paths if str(p) not in first and str(p) not in sys.path and p.exists()]
        sys.path[:0] = first
        sys.path.extend(last)
        self._added = first + last
        # User code finds its files where the start-up of a Beam worker puts them.
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
    """Make the SDK reject outputs to tags that a transform did not declare; by default it drops them silently."""
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
