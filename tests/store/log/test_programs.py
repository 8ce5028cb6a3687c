"""What runs a job is kept beside its state, whole, and goes with a savepoint's copy."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from arcbeam.model.timestamps import Timestamp
from arcbeam.store.blobs.durable import DurableBlobs
from arcbeam.store.blobs.errors import DamagedFileError, NewerFormatError
from arcbeam.store.blobs.fileheader import file_header
from arcbeam.store.blobs.folder import FolderBlobs
from arcbeam.store.log import programs
from arcbeam.store.log.inspection import inspect
from arcbeam.store.log.savepoints import copy_savepoint, path_of, pinned, split_path
from arcbeam.store.manifest.programfile import Program, ProgramFile, decode, encode
from tests.store.samples import opened

pytestmark = pytest.mark.contract("STORE-05")

GOLDEN = Path(__file__).parents[1] / "manifest" / "golden" / "program-1"
"""Written by `encode(PROGRAM)` when the format had version 1. It must never be written anew."""

PROGRAM = Program(
    "words",
    b"\x00proto\xff",
    {"shards": 3, "spark_conf": ["a=b"]},
    {"archives": ["x.zip"]},
    (ProgramFile("x.zip", "ab" * 32, 9),),
    {"python": "3.11", "beam": "2.77.0", "arcbeam": "0.1"},
)


def test_a_program_comes_back_and_is_called_by_its_content() -> None:
    name, data = encode(PROGRAM)
    assert decode(data, name, "here") == PROGRAM
    assert encode(PROGRAM) == (name, data)
    assert name.startswith("programs/")


def test_version_1_is_read() -> None:
    assert decode(GOLDEN.read_bytes(), "p", "here") == PROGRAM


def test_damage_and_newer_formats_are_told() -> None:
    name, data = encode(PROGRAM)
    for at in range(len(data)):
        with pytest.raises(DamagedFileError, match=f"program '{name}' in 's3://x' is damaged"):
            decode(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :], name, "s3://x")
        with pytest.raises(DamagedFileError, match="is damaged"):
            decode(data[:at], name, "here")
    with pytest.raises(NewerFormatError, match="has format 2; this version of arcbeam reads up to 1"):
        decode(file_header(b"arcprogr", 2) + struct.pack("<I", 0), name, "here")


@pytest.mark.contract("STORE-07")
def test_a_program_and_its_files_are_kept_once_and_go_with_a_copy(blobs: DurableBlobs, tmp_path: Path) -> None:
    path, empty = tmp_path / "x.zip", tmp_path / "nothing"
    path.write_bytes(b"zip" * 5)
    empty.write_bytes(b"")
    files = {"x.zip": path, "nothing": empty}
    described = tuple(programs.described(name, file) for name, file in files.items())
    program = Program("words", b"proto", files=described)
    name = programs.keep(blobs, program, files)
    path.unlink()
    assert programs.keep(blobs, program, files) == name, "what is there is not written again"
    log = opened(blobs, program=lambda: name)
    log.propose(pinned(log.draft(Timestamp(1)), "safe"))
    assert opened(blobs).head.program == name, "who does not know better leaves it"
    target = FolderBlobs(tmp_path / "copy", sync=False)
    copy_savepoint(blobs, log.head, "safe", target, tmp_path / "scratch")
    assert programs.read(target, opened(target).head.program) == program
    got: list[bytes] = []
    programs.fetch(target, described[0], got.append)
    assert b"".join(got) == b"zip" * 5
    assert inspect(target, check=True).problems == ()
    target.put(f"programs/files/{described[0].sha256}", b"other")
    with pytest.raises(DamagedFileError, match=r"is not what it was: the program's file 'x\.zip'"):
        programs.fetch(target, described[0], got.append)
    problems = inspect(target, check=True).problems
    assert problems is not None
    assert [problem for problem in problems if "x.zip" in problem]


@pytest.mark.contract("STORE-07")
def test_who_submits_a_script_again_mends_its_program(blobs: DurableBlobs, tmp_path: Path) -> None:
    path = tmp_path / "x.zip"
    path.write_bytes(b"zip" * 5)
    program = Program("words", b"proto", files=(programs.described("x.zip", path),))
    name = programs.keep(blobs, program, {"x.zip": path})
    file = f"programs/files/{program.files[0].sha256}"
    for damage in (b"", b"ZIP" * 5, b"zip" * 6, None):
        for each in (name, file):
            blobs.delete(each) if damage is None else blobs.put(each, damage)
        assert programs.keep(blobs, program, {"x.zip": path}) == name
        assert programs.read(blobs, name) == program
        assert blobs.get(file) == b"zip" * 5


def test_the_path_of_a_savepoint() -> None:
    for url, path in (
        ("/data/job", "/data/job/savepoints/a-1"),
        ("s3://k:s@b/job?region=x", "s3://k:s@b/job/savepoints/a-1?region=x"),
    ):
        assert path_of(url, "a-1") == path
        assert split_path(path) == (url, "a-1")
        assert split_path(url) == (url, "")
    assert split_path("/data/savepoints/a b") == ("/data/savepoints/a b", "")
