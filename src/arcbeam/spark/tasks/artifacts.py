"""What a pipeline needs in addition to its proto: requirements, packages, files, the pickled main session.

Owns how staged files become archives on the driver. Packages are installed into a folder with pip, so that workers need
neither pip nor the network. The archive is named after the content that it was made from, and made once per process.
Names follow the SDK's own staging, so files that a job server receives are treated in the same way. Must not know how
archives are sent (`shipping`).
"""

from __future__ import annotations

import atexit
import functools
import hashlib
import json
import logging
import re
import shutil
import subprocess
import sys
import sysconfig
import threading
import zipfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from apache_beam.options.pipeline_options import PipelineOptions, SetupOptions, WorkerOptions
from apache_beam.runners.portability import stager
from packaging import utils
from packaging.requirements import InvalidRequirement, Requirement

from arcbeam.errors import InvalidPipelineError, SetupError
from arcbeam.harness.encoding.script.mainmodule import MainModule
from arcbeam.sizes import remembered
from arcbeam.spark.session.sessions import is_local
from arcbeam.spark.tasks.shipping import FILES, PACKAGES, SDK, SESSION, Archive, WorkerSetup, ship
from arcbeam.store.blobs.claims import WorkFolder, work_folder
from arcbeam.store.blobs.private import open_new

_LOG = logging.getLogger("arcbeam.artifacts")

_REQUIREMENTS = stager.REQUIREMENTS_FILE
_SETUP_PACKAGE = stager.WORKFLOW_TARBALL_FILE
_PACKAGES_LIST = stager.EXTRA_PACKAGES_FILE
_ENVIRONMENT = stager.SUBMISSION_ENV_DEPENDENCIES_FILE
_MAIN_SESSION = "pickled_main_session"

_CORE = ("arcbeam", "apache-beam", "pyspark", "pyarrow", "pandas", "lmdb", "click")
"""Packages that every worker has, with all their dependencies."""


@dataclass(frozen=True, slots=True)
class StagedArtifact:
    """One staged file.

    Attributes:
        name: its staged name, which decides its use, as in the SDK's own worker start-up.
        path: its path.
        requirements: whether it contains PyPI requirements, independent of its name.
        sha256: of its content, if it is for SDK workers, which get it as it is; "" for Spark's Python workers.
    """

    name: str
    path: Path
    requirements: bool = False
    sha256: str = ""


def worker_setup_for(
    spark: Any,
    options: PipelineOptions,
    files: Sequence[StagedArtifact],
    closed_outputs: Mapping[str, tuple[str, ...]] | None = None,
    main: MainModule | None = None,
    sdk_options: bytes = b"",
) -> WorkerSetup:
    """Send files to the session's workers, and return what the workers must do before user code runs.

    Args:
        spark: the session.
        options: the pipeline's options.
        files: staged files; see `staged_by`.
        closed_outputs: the output tags of transforms that declare all their tags, by the transform's name.
        main: the script that made the pipeline; None if its submitter has not sent it.
        sdk_options: the options for SDK workers, as a serialized Struct.

    Raises:
        SetupError: packages cannot be installed, or Spark rejects the files.
    """
    archives = archives_of(files)
    ship(spark, archives)
    local = is_local(spark)
    workers = options.view_as(WorkerOptions)
    return WorkerSetup(
        archives=tuple(archive.name for archive in archives),
        platform=next((archive.platform for archive in archives if archive.platform), ""),
        pickle_library=options.view_as(SetupOptions).pickle_library,
        log_level=_level(workers.default_sdk_harness_log_level or "INFO"),
        log_levels=_levels(workers.sdk_harness_log_level_overrides),
        closed_outputs=closed_outputs or {},
        # On one machine, the workers can import from the driver's folders.
        paths=tuple(p for p in sys.path if p and Path(p).is_dir()) if local else (),
        main=main or MainModule(is_known=False),
        folder=_current_folder() if local else "",
        sdk_options=sdk_options,
    )


def _current_folder() -> str:
    try:
        return str(Path.cwd())
    except FileNotFoundError:
        return ""


def staged_by(options: PipelineOptions, folder: Path) -> tuple[StagedArtifact, ...]:
    """Return the files that a pipeline's options stage, found or built by the SDK's own stager.

    Args:
        options: the pipeline's options; not changed.
        folder: the folder for built files. The caller removes it once the archives are made.

    Raises:
        InvalidPipelineError: a file is missing, or a package cannot be built.
    """
    setup = options.view_as(SetupOptions)
    wanted = (setup.requirements_file, setup.setup_file, setup.extra_packages, setup.files_to_stage)
    if not any(wanted) and not setup.save_main_session:
        return ()
    before = setup.requirements_cache, setup.extra_packages
    setup.requirements_cache = stager.SKIP_REQUIREMENTS_CACHE  # pip downloads them once, in `archives_of`
    try:
        resources = stager.Stager.create_job_resources(options, str(folder), log_submission_env_dependencies=False)
    except Exception as e:
        raise InvalidPipelineError(f"cannot stage the pipeline's files: {e}") from e
    finally:
        setup.requirements_cache, setup.extra_packages = before
    found = tuple(
        StagedArtifact(name, Path(path)) for path, name, _ in stager.Stager.extract_staging_tuple_iter(resources)
    )
    missing = [str(file.path) for file in found if not file.path.is_file()]
    if missing:
        raise InvalidPipelineError(f"cannot stage files that do not exist: {', '.join(missing)}")
    return found


def _level(value: Any) -> str:
    return value if isinstance(value, str) and not value.isdigit() else logging.getLevelName(int(value))


def _levels(overrides: Any) -> tuple[tuple[str, str], ...]:
    """Return loggers' levels from the SDK's option: a mapping, or JSON texts of mappings."""
    levels: dict[str, str] = {}
    for item in overrides if isinstance(overrides, list) else [overrides]:
        levels.update(json.loads(item) if isinstance(item, str) else item or {})
    return tuple(sorted((name, _level(level)) for name, level in levels.items()))


_ORIGIN = "direct_url.json"
_NO_TIME = (1980, 1, 1, 0, 0, 0)
"""The earliest time that a zip file can have."""

_made: dict[str, Archive] = {}
_lock = threading.Lock()


@functools.cache
def _folder() -> Path:
    """Return the folder of this process's archives, which stays: a classic session serves them to executors from it."""
    folder = WorkFolder("archives")
    atexit.register(folder.remove)
    return folder.path


def archive_path(name: str) -> Path:
    """Return the path of an archive of that name in this process."""
    return _folder() / name


def archives_of(files: Sequence[StagedArtifact]) -> tuple[Archive, ...]:
    """Make the archives for `files`; reuse those that were made from the same content before.

    Raises:
        SetupError: pip cannot install a package or requirement.
    """
    whole = [file for file in files if file.sha256]
    files = [file for file in files if not file.sha256]
    sessions = [file for file in files if file.name == _MAIN_SESSION]
    others = [file for file in files if file.name not in (_MAIN_SESSION, _ENVIRONMENT)]
    parts = ((others, _fill), (sessions, _fill_session), (whole, _fill_whole))
    with _lock:
        return tuple(_archive(part, fill) for part, fill in parts if part)


def _archive(files: Sequence[StagedArtifact], fill: Any) -> Archive:
    digest = hashlib.sha256(f"{sys.version_info[:2]} {sysconfig.get_platform()}".encode())
    for file in sorted(files, key=lambda f: f.name):
        content = hashlib.sha256(file.path.read_bytes()).hexdigest()
        digest.update(f"{file.name}\0{content}\0{file.requirements}\n".encode())
        digest.update(b"sdk" if file.sha256 else b"")
    key = digest.hexdigest()[:20]
    known = _made.get(key)
    if known is None:
        with work_folder("build") as root:
            fill(files, root)
            path = _folder() / f"arcbeam-{key}.zip"
            _zip(root, path)
            native = any(p.suffix in (".so", ".pyd", ".dylib") for p in root.rglob("*") if fill is not _fill_whole)
        known = _made[key] = Archive(path, sysconfig.get_platform() if native else "")
    return known


def _fill_session(files: Sequence[StagedArtifact], root: Path) -> None:
    (root / SESSION).mkdir()
    shutil.copy(files[0].path, root / SESSION / _MAIN_SESSION)


def _fill_whole(files: Sequence[StagedArtifact], root: Path) -> None:
    (root / SDK).mkdir()
    for file in files:
        shutil.copy(file.path, root / SDK / file.sha256)


def _fill(files: Sequence[StagedArtifact], root: Path) -> None:
    """Install packages, and copy the other files."""
    by_name = {file.name: file for file in files}
    listing = by_name.get(_PACKAGES_LIST)
    listed = listing.path.read_text(encoding="utf-8").split("\n") if listing else []
    extra = [by_name[name] for name in dict.fromkeys(map(str.strip, listed)) if name in by_name]
    requirements = [f for f in files if f.requirements or f.name == _REQUIREMENTS]
    setup = [f for f in files if f.name == _SETUP_PACKAGE]
    handled = {f.name for f in (*extra, *requirements, *setup)} | {_PACKAGES_LIST}
    rest = [f for f in files if f.name not in handled]
    cached = [f for f in rest if requirements and _is_distribution(f.name)]
    wheels = [f for f in rest if f not in cached and f.name.endswith(".whl")]
    target = root / PACKAGES
    for folder in dict.fromkeys(f.path.parent for f in cached):
        _LOG.debug("requirements may come from %s", folder)
    links = [part for f in dict.fromkeys(f.path.parent for f in cached) for part in ("--find-links", str(f))]
    if requirements:
        _pip([*links, *(part for f in requirements for part in ("-r", str(f.path)))], target)
    packages = [*extra, *wheels, *setup]
    if packages:
        with work_folder("build") as named:
            _pip([*links, *(str(_under_its_name(f, named)) for f in packages)], target)
    if target.is_dir():
        _leave_out_core(target)
        _leave_out_origins(target)
    for file in rest:
        if file not in cached and file not in wheels:
            place = root / FILES / file.name
            place.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(file.path, place)


def _is_distribution(name: str) -> bool:
    for parse in (utils.parse_wheel_filename, utils.parse_sdist_filename):
        try:
            parse(name)
        except (utils.InvalidWheelFilename, utils.InvalidSdistFilename, ValueError):
            continue
        return True
    return False


def _under_its_name(file: StagedArtifact, folder: Path) -> Path:
    """Return the file under its staged name: pip reads the properties of a wheel from its name."""
    if file.path.name == file.name:
        return file.path
    place = folder / file.name
    place.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(file.path, place)
    return place


def _pip(arguments: list[str], target: Path) -> None:
    command = [sys.executable, "-m", "pip", "install", "--disable-pip-version-check", "--no-input", "--quiet"]
    command += ["--no-compile", "--upgrade", "--target", str(target), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        lines = [line for line in (done.stderr + done.stdout).splitlines() if line.strip()]
        output = "\n".join(lines[-8:])
        raise SetupError(
            f"cannot install the workers' packages with pip ({' '.join(arguments)}):\n{output}",
            "make sure that this pip works here, or install them on the executors and omit the option",
        )


def _leave_out_core(target: Path) -> None:
    """Remove packages that every worker has: a second Beam or numpy found before the first would break both."""
    core = _core()
    for found in list(metadata.distributions(path=[str(target)])):
        name = utils.canonicalize_name(found.metadata["Name"])
        if name not in core:
            continue
        if found.version != core[name]:
            _LOG.warning(
                "workers keep their own %s %s; the requested version %s is ignored", name, core[name], found.version
            )
        for file in found.files or ():
            path = Path(str(found.locate_file(file))).resolve()
            if target.resolve() in path.parents:
                path.unlink(missing_ok=True)
    for folder in sorted((p for p in target.rglob("*") if p.is_dir()), reverse=True):
        if not any(folder.iterdir()):
            folder.rmdir()


def _leave_out_origins(target: Path) -> None:
    """Remove the records of the folder from which a package was installed: that folder differs each time."""
    for origin in list(target.glob(f"*.dist-info/{_ORIGIN}")):
        record = origin.with_name("RECORD")
        if record.exists():
            named = f"{origin.parent.name}/{_ORIGIN},"
            lines = record.read_text(encoding="utf-8").splitlines(keepends=True)
            record.write_text("".join(line for line in lines if not line.startswith(named)), encoding="utf-8")
        origin.unlink()


@remembered()
def _core() -> dict[str, str]:
    """Return versions by name of arcbeam's packages and all their dependencies."""
    found: dict[str, str] = {}
    waiting = list(_CORE)
    while waiting:
        name = utils.canonicalize_name(waiting.pop())
        if name in found:
            continue
        try:
            distribution = metadata.distribution(name)
        except metadata.PackageNotFoundError:
            continue
        found[name] = distribution.version
        waiting.extend(_needed(distribution.requires or ()))
    return found


def _needed(requires: Iterable[str]) -> Iterable[str]:
    for text in requires:
        try:
            requirement = Requirement(text)
        except InvalidRequirement:
            continue
        if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
            yield requirement.name


def _zip(root: Path, path: Path) -> None:
    """Write a zip file atomically. The same files give the same bytes, whenever they were made.

    SUBTLE: a streaming job keeps its archives by their content. With the files' times in them, each start of the same
    pipeline would leave another archive in the job's folder.
    """
    partial = path.with_suffix(".partial")
    with open_new(partial) as file_of_archive, zipfile.ZipFile(file_of_archive, "w") as archive:
        for file in sorted(p for p in root.rglob("*") if p.is_file()):
            name = re.sub(r"\\", "/", str(file.relative_to(root)))
            info = zipfile.ZipInfo(name, _NO_TIME)
            info.external_attr, info.compress_type = file.stat().st_mode << 16, zipfile.ZIP_DEFLATED
            archive.writestr(info, file.read_bytes(), compresslevel=1)
    partial.rename(path)
