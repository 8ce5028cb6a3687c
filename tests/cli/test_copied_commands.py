"""Commands in texts: a user copies them into a shell. They are read as meant, and do what their text says."""

from __future__ import annotations

import re
import shlex
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result

from arcbeam.cli import main
from arcbeam.model.commits import CommitMode
from arcbeam.options import given_as
from arcbeam.store.blobs.errors import LaterMicroBatchesError
from arcbeam.store.blobs.folder import FolderBlobs
from arcbeam.store.log import jobgraphs
from arcbeam.store.log.requests import Answer, AnswerKind, RequestKind, unanswered_remedy
from arcbeam.store.manifest.jobgraphfile import JobGraph
from arcbeam.streaming.status.folder import status_in
from arcbeam.streaming.status.headline import headline
from arcbeam.streaming.status.status import as_record
from tests.cli.test_control import driven
from tests.cli.test_savepoints import Job
from tests.jobs.fakes import Client, Fake
from tests.store.samples import opened

_GOLDEN = Path(__file__).parents[1] / "golden" / "messages"

_QUOTED = r"""'[^']*'|"[^"]*"|[^\s;,'"()]"""
_COMMAND = re.compile(rf"arcbeam (?:{'|'.join(main.main.commands)})\b(?: (?:{_QUOTED})+)*")
"""A command ends before a semicolon, a comma or a bracket, or with its line. A place may be quoted in parts."""


def commands_in(text: str) -> list[str]:
    """Return the command lines in a text, as a user would copy them."""
    return [found[0].rstrip(".") for line in text.splitlines() for found in _COMMAND.finditer(line)]


def _of_golden_texts() -> Iterator[tuple[str, str]]:
    for path in sorted(_GOLDEN.glob("*.txt")):
        for command in commands_in(path.read_text(encoding="utf-8")):
            yield path.stem, command


def as_a_shell(command: str) -> list[str]:
    """Return the words after `arcbeam`, as a shell reads them."""
    script = f'arcbeam() {{ printf "%s\\0" "$@"; }}\n{command}'
    read = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=True, timeout=60)
    assert read.stderr == "", read.stderr
    return read.stdout.split("\0")[:-1]


def test_golden_texts_have_commands() -> None:
    found = {command.split()[1] for _, command in _of_golden_texts()}
    assert {"resume", "status", "savepoints", "savepoint", "jobs", "serve"} <= found


def test_no_text_marks_commands_or_names_a_folder_by_a_word() -> None:
    for path in _GOLDEN.glob("*.txt"):
        text = path.read_text(encoding="utf-8")
        assert "`" not in text, path.name
        assert not re.search(r"(?<!\{)FOLDER", text), path.name


@pytest.mark.parametrize(("text", "command"), list(_of_golden_texts()))
def test_command_of_a_golden_text_is_one(text: str, command: str) -> None:
    # What differs between runs is a path, or an option with the address of a server.
    name, *words = as_a_shell(command.replace("{at}", "--endpoint=h:1").replace("{", "").replace("}", ""))
    # SUBTLE: click keeps a command's help option as its first context has it, so that has the group's settings.
    group = click.Context(main.main, info_name="arcbeam", **main.main.context_settings)
    with main.main.commands[name].make_context(name, words, group) as context:
        assert isinstance(context, click.Context)
    if name == "resume":
        given_as([word for word in words if word.startswith("--") and word != "--force_resume"], "", (), "", "")


PLACES = ["job", "a job", "it's a job", 'say "job"', "-job", "$HOME; true", "job (2)"]


@pytest.fixture(params=PLACES)
def job(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Job:
    """A job whose folder has a name that a shell, or a command, could misread."""
    monkeypatch.chdir(tmp_path)
    found = Job(Path())
    (tmp_path / "job").rename(tmp_path / request.param)
    found.path, found.blobs = request.param, FolderBlobs(Path(request.param), sync=False)
    return found


def run(command: str) -> Result:
    result = CliRunner().invoke(main.main, as_a_shell(command))
    assert result.exit_code == 0, (command, result.output)
    return result


_FOLDER = re.compile(r"memory://|memory\b|\{tmp\}/job|\{folder\}(?:/state)?|'/data/it'\"'\"'s a job'")
"""A job's folder in a golden text."""


@pytest.mark.parametrize(("text", "command"), list(_of_golden_texts()))
def test_command_of_a_golden_text_does_what_it_says(
    text: str, command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, client: Client, fake: Fake
) -> None:
    """As it is, but for the places of this run: the folder of a job, or a server."""
    monkeypatch.chdir(tmp_path)
    job = Job(tmp_path)
    folder = tmp_path / PLACES[len(text) % len(PLACES)]
    (tmp_path / "job").rename(folder)
    job.path, job.blobs = str(folder), FolderBlobs(folder, sync=False)
    _named(job)
    job.micro_batch(pin="before")
    head = job.micro_batch().head
    served, at = "", ""
    if "{at}" in command:
        fake.behave = fake.until_cancelled
        at = f"--endpoint={client.prepare().artifact_staging_endpoint.url}"
        served = client.run()
        fake.status = as_record(status_in(job.blobs))
    command = _FOLDER.sub(lambda _: shlex.quote(str(folder)), command).replace("{at}", at).replace("{job}", served)
    name, *words = as_a_shell(command)
    if name == "resume":
        # Spark is not needed to see which job it is, and from where it continues.
        resumed: list[str] = []
        monkeypatch.setattr("arcbeam.runner.resume.resume", lambda path, *_, savepoint, **more: resumed.append(path))
        CliRunner().invoke(main.main, [name, *words])
        assert resumed == [str(folder)]
        assert status_in(FolderBlobs(Path(resumed[0]))).micro_batch == head.micro_batch
    elif name in ("savepoint", "suspend"):
        kind = {"savepoint": RequestKind.SAVEPOINT, "suspend": RequestKind.SUSPEND}[name]
        mode = CommitMode.SUSPENDED if name == "suspend" else None
        with driven(job.log, Answer(AnswerKind.DONE, "done", head.micro_batch), mode=mode) as seen:
            output = run(command).output
        assert [request.what for request in seen] == [kind]
        assert f"{folder}/savepoints/" in output
    elif name == "status":
        assert "job 'words' in" in run(command).output
    elif name == "jobs":
        assert served in run(command).output
    elif name == "savepoints":
        assert "as a separate job" in run(command).output
        assert (tmp_path / "TARGET").is_dir()
    else:
        assert (name, words) == ("serve", []), "tests.jobs has the tests of the server"


def _named(job: Job) -> None:
    job.log = opened(job.blobs, job_graph=partial(jobgraphs.keep, job.blobs, JobGraph("words", b"proto"), {}))


def place(words: list[str]) -> str:
    """Return the folder in a command's words."""
    return words[1].removeprefix("./")


def test_headline_resumes_the_job_in_its_folder(job: Job) -> None:
    _named(job)
    (command,) = commands_in(headline(replace(status_in(job.blobs), mode=CommitMode.SUSPENDED)).line)
    words = as_a_shell(command)
    assert (words[0], place(words), words[2:]) == ("resume", str(job.blobs), [])


def test_unanswered_request_names_the_status(job: Job) -> None:
    _named(job)
    status, resume = commands_in(unanswered_remedy(job.blobs, job.path))
    assert job.path in run(status).output
    assert place(as_a_shell(resume)) == job.path


def test_savepoint_is_checked_and_resumed_by_its_description(job: Job) -> None:
    _named(job)
    job.micro_batch(pin="late")
    job.micro_batch()
    described = run(shlex.join(["arcbeam", "savepoints", f"./{job.path}", "describe", "late"])).output
    resume, check = commands_in(described)
    assert "complete and readable" in run(check).output
    words = as_a_shell(resume)
    assert (words[0], place(words)) == ("resume", f"{job.path}/savepoints/late")
    assert words[2:] == ["--discard_later_micro_batches"], "there is a later micro-batch"
    (again,) = commands_in(run(f"arcbeam inspect {shlex.quote(f'./{job.path}')}").output)
    assert Path(place(as_a_shell(again))).name == job.path


def test_refused_return_copies_the_savepoint(job: Job, tmp_path: Path) -> None:
    _named(job)
    with pytest.raises(LaterMicroBatchesError) as caught:
        opened(job.blobs, savepoint="early", discard=False)
    resume, copy = commands_in(caught.value.remedy)
    assert place(as_a_shell(resume)) == str(job.blobs)
    assert "as a separate job" in run(copy).output
    assert (tmp_path / "TARGET").is_dir()
