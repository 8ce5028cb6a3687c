"""Files and packages: found by the SDK's stager, installed on the driver, sent by Spark, importable in the workers."""

from __future__ import annotations

import os
import sys
import zipfile
from pathlib import Path
from typing import Any

import apache_beam as beam
import pytest
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.testing.util import assert_that, equal_to

from arcbeam import ArcbeamRunner
from arcbeam.errors import EnvironmentMismatchError, InvalidPipelineError, SetupError
from arcbeam.spark.tasks import artifacts, shipping
from arcbeam.spark.tasks.artifacts import StagedArtifact, archives_of, staged_by
from arcbeam.spark.tasks.shipping import WorkerSetup


def wheel(folder: Path, package: str, version: str, body: str) -> Path:
    """Make a wheel with one module, without tools."""
    path = folder / f"{package}-{version}-py3-none-any.whl"
    info = f"{package}-{version}.dist-info"
    files = {
        f"{package}.py": body,
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {package}\nVersion: {version}\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: by hand\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    listing = "".join(f"{name},,\n" for name in [*files, f"{info}/RECORD"])
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in {**files, f"{info}/RECORD": listing}.items():
            archive.writestr(name, content)
    return path


def _names(archive: shipping.Archive) -> set[str]:
    with zipfile.ZipFile(archive.path) as found:
        return set(found.namelist())


def _answers(element: int, package: str) -> tuple[int, int]:
    return element, __import__(package).answer()


def _run(package: str, expected: int, *arguments: str) -> None:
    with beam.Pipeline(runner=ArcbeamRunner(), options=PipelineOptions(list(arguments))) as p:
        found = p | beam.Create([1, 2]) | beam.Reshuffle() | beam.Map(_answers, package)
        assert_that(found, equal_to([(1, expected), (2, expected)]))


def test_archives_of_equal_files_are_equal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = wheel(tmp_path, "arcbeam_same", "1.0", "VALUE = 1\n")
    session = tmp_path / "pickled_main_session"
    session.write_bytes(b"session")
    monkeypatch.setattr(artifacts, "_made", {})
    made: list[list[bytes]] = []
    for at in (1_000_000_000, 1_600_000_000):
        os.utime(session, (at, at))
        artifacts._made.clear()
        archives = archives_of(
            [StagedArtifact(package.name, package, False), StagedArtifact(session.name, session, False)]
        )
        made.append([archive.path.read_bytes() for archive in archives])
        (names,) = [_names(archive) for archive in archives if "packages/arcbeam_same.py" in _names(archive)]
        assert not [name for name in names if name.endswith("direct_url.json")]
    assert made[0] == made[1]


def test_archive_is_found_by_its_name(tmp_path: Path) -> None:
    """A resumed job stores its archives where this process makes others, to ship both alike."""
    words = tmp_path / "words.txt"
    words.write_text("to be")
    (archive,) = archives_of([StagedArtifact(words.name, words, False)])
    assert artifacts.archive_path(archive.path.name) == archive.path


@pytest.mark.contract("API-05")
@pytest.mark.usefixtures("spark")
def test_extra_package_reaches_only_its_jobs_workers(tmp_path: Path) -> None:
    for version, answer in (("1.0", 41), ("2.0", 42)):
        package = wheel(tmp_path, "arcbeam_shipped", version, f"def answer():\n    return {answer}\n")
        _run("arcbeam_shipped", answer, f"--extra_package={package}")
    with pytest.raises(EnvironmentMismatchError, match="'arcbeam_shipped'"):
        _run("arcbeam_shipped", 42)


@pytest.mark.contract("API-05")
@pytest.mark.usefixtures("spark")
def test_requirements_reach_the_workers(tmp_path: Path) -> None:
    wheel(tmp_path, "arcbeam_required", "1.5", "def answer():\n    return 15\n")
    requirements = tmp_path / "needs.txt"
    requirements.write_text(f"--no-index\n--find-links {tmp_path}\narcbeam_required==1.5\n")
    _run("arcbeam_required", 15, f"--requirements_file={requirements}")


def _read_staged(name: str) -> str:
    return Path(os.environ["SEMI_PERSISTENT_DIRECTORY"], "staged", name).read_text()


@pytest.mark.contract("API-05")
@pytest.mark.usefixtures("spark")
def test_staged_files_have_their_place_in_beam_workers(tmp_path: Path) -> None:
    (tmp_path / "words.txt").write_text("to be")
    (tmp_path / "arcbeam_helper.py").write_text("def answer():\n    return 7\n")
    staged = [f"--files_to_stage={tmp_path / name}" for name in ("words.txt", "arcbeam_helper.py")]
    with beam.Pipeline(runner=ArcbeamRunner(), options=PipelineOptions(staged)) as p:
        assert_that(p | beam.Create(["words.txt"]) | beam.Map(_read_staged), equal_to(["to be"]))
    _run("arcbeam_helper", 7, *staged)


class Colour:
    def __init__(self, name: str) -> None:
        self.name = name


class ColourCoder(beam.coders.Coder):
    def encode(self, value: Colour) -> bytes:
        return value.name.encode()

    def decode(self, encoded: bytes) -> Colour:
        return Colour(encoded.decode())

    def is_deterministic(self) -> bool:
        return True


def _coder_of_colours(element: Any) -> str:
    return type(beam.coders.registry.get_coder(Colour)).__name__


@pytest.mark.contract("API-05")
@pytest.mark.usefixtures("spark")
def test_main_session_is_loaded_in_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    # As in a separate program: other tests, also the SDK's, register types whose coders no longer exist.
    known = beam.coders.registry
    there = [t for t in known.custom_types if known._normalize_typehint_type(t) in known._coders]
    monkeypatch.setattr(known, "_coders", dict(known._coders))
    monkeypatch.setattr(known, "custom_types", there)
    known.register_coder(Colour, ColourCoder)
    with beam.Pipeline(runner=ArcbeamRunner(), options=PipelineOptions(["--save_main_session"])) as p:
        assert_that(p | beam.Create([1]) | beam.Map(_coder_of_colours), equal_to(["ColourCoder"]))


@pytest.mark.long
@pytest.mark.contract("API-05")
@pytest.mark.usefixtures("spark")
def test_setup_file_is_built_and_installed(tmp_path: Path) -> None:
    (tmp_path / "setup.py").write_text(
        "from setuptools import setup\nsetup(name='arcbeam_built', version='1', py_modules=['arcbeam_built'])\n"
    )
    (tmp_path / "arcbeam_built.py").write_text("def answer():\n    return 99\n")
    _run("arcbeam_built", 99, f"--setup_file={tmp_path / 'setup.py'}")


@pytest.mark.contract("API-05")
def test_missing_requirement_is_refused(tmp_path: Path) -> None:
    requirements = tmp_path / "requirements.txt"
    requirements.write_text("--no-index\narcbeam-no-such-package==9\n")
    with pytest.raises(SetupError, match=r"(?s)pip.*arcbeam-no-such-package"):
        archives_of([StagedArtifact("requirements.txt", requirements)])


@pytest.mark.parametrize("option", ["--requirements_file", "--extra_package", "--setup_file", "--files_to_stage"])
def test_missing_file_is_refused(tmp_path: Path, option: str) -> None:
    options = PipelineOptions([f"{option}={tmp_path}/no/setup.py"])
    with pytest.raises(InvalidPipelineError, match=r"no/setup\.py"):
        staged_by(options, tmp_path)


def test_nothing_to_stage_costs_nothing(tmp_path: Path) -> None:
    assert staged_by(PipelineOptions([]), tmp_path) == ()
    assert archives_of(()) == ()


def test_staging_does_not_change_options(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("a")
    options = PipelineOptions([f"--files_to_stage={tmp_path}/a.txt"])
    before = options.get_all_options()
    assert [file.name for file in staged_by(options, tmp_path)] == ["a.txt"]
    assert options.get_all_options() == before


def test_archive_is_made_once_for_equal_content(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "a.txt").write_text("same")
    first, second = (archives_of([StagedArtifact("a.txt", tmp_path / name / "a.txt")]) for name in ("one", "two"))
    assert first == second
    (tmp_path / "two" / "a.txt").write_text("other")
    assert archives_of([StagedArtifact("a.txt", tmp_path / "two" / "a.txt")]) != first
    assert _names(first[0]) == {"staged/a.txt"}
    assert first[0].platform == ""


def test_session_does_not_change_packages_archive(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("same")
    (tmp_path / "session").write_bytes(b"1")
    staged = [StagedArtifact("a.txt", tmp_path / "a.txt"), StagedArtifact("pickled_main_session", tmp_path / "session")]
    before = archives_of(staged)
    (tmp_path / "session").write_bytes(b"2")
    after = archives_of(staged)
    assert before[0] == after[0]
    assert before[1] != after[1]


def test_files_sent_to_a_job_server_are_archived(tmp_path: Path) -> None:
    sent = tmp_path / "content-1"
    wheel(tmp_path, "arcbeam_sent", "1.0", "x = 1\n").rename(sent)
    listing = tmp_path / "content-2"
    listing.write_text("arcbeam_sent-1.0-py3-none-any.whl\n")
    files = [StagedArtifact("extra_packages.txt", listing), StagedArtifact("arcbeam_sent-1.0-py3-none-any.whl", sent)]
    (archive,) = archives_of(files)
    assert "packages/arcbeam_sent.py" in _names(archive)
    assert not any(name.startswith("staged/") for name in _names(archive))


def test_packages_of_every_worker_are_not_sent(tmp_path: Path) -> None:
    package = wheel(tmp_path, "lmdb", "0.0.1", "x = 1\n")
    other = wheel(tmp_path, "arcbeam_beside", "1.0", "x = 1\n")
    (archive,) = archives_of([StagedArtifact(package.name, package), StagedArtifact(other.name, other)])
    assert "packages/arcbeam_beside.py" in _names(archive)
    assert not any("lmdb" in name for name in _names(archive))


class _Session:
    """Receives artifacts like a session."""

    def __init__(self) -> None:
        self.taken: list[str] = []

    def addArtifacts(self, path: str, archive: bool) -> None:  # Spark's name
        self.taken.append(path)


def test_archive_is_sent_once_per_session(tmp_path: Path) -> None:
    archive = shipping.Archive(tmp_path / "a.zip")
    one, other = _Session(), _Session()
    for session in (one, one, other):
        shipping.ship(session, (archive,))
    assert len(one.taken) == len(other.taken) == 1


def test_native_code_for_another_platform_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shipping.workerlog, "install", lambda *_: None)
    with pytest.raises(EnvironmentMismatchError, match=r"solaris-1"):
        WorkerSetup(platform="solaris-1")()


def test_imports_of_another_job_are_removed(tmp_path: Path) -> None:
    imports, before = shipping._Imports(), list(sys.path)
    for job in ("one", "two"):
        (tmp_path / job / "packages").mkdir(parents=True)
        (tmp_path / job / "packages" / "arcbeam_of_job.py").write_text(f"name = {job!r}\n")
    for job in ("one", "two", "two"):
        imports.use((tmp_path / job / "packages",), (tmp_path / job,))
        assert __import__("arcbeam_of_job").name == job
    imports.use((), ())
    assert sys.path == before
    with pytest.raises(ModuleNotFoundError):
        __import__("arcbeam_of_job")


@pytest.mark.contract("API-05")
@pytest.mark.usefixtures("spark")
def test_relative_path_is_read_from_programs_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("one", "other"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "words.txt").write_text(name)
        monkeypatch.chdir(tmp_path / name)
        with beam.Pipeline(runner=ArcbeamRunner()) as p:
            read = p | beam.io.ReadFromText("words.txt")
            opened = p | beam.Create(["words.txt"]) | beam.Map(lambda path: Path(path).read_text())
            assert_that(read, equal_to([name]), label="read")
            assert_that(opened, equal_to([name]), label="opened")
