"""Going on with a job from its folder alone: the pipeline, its options and files are what the job has kept.

Part of the composition root, beside `runner`. Owns what may be other than when the job was submitted.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from apache_beam.options.pipeline_options import PipelineOptions

from arcbeam.errors import InvalidPipelineError
from arcbeam.job import Job, session_options
from arcbeam.options import OF_THE_RUN, ArcbeamOptions
from arcbeam.program import KeptProgram, restored_prelude, stored_program
from arcbeam.result import ArcbeamResult
from arcbeam.spark.session.sessions import open_session, unheeded
from arcbeam.spark.tasks.artifacts import archive_path
from arcbeam.store.blobs.backends import open_blobs
from arcbeam.store.jobtemp.location import JobLocation
from arcbeam.store.log.savepoints import split_path
from arcbeam.translate.proto import parsed, plan_of

_LOG = logging.getLogger("arcbeam")


def resume(path: str, options: Sequence[str] = (), *, name: str = "", savepoint: str = "") -> ArcbeamResult:
    """Goes on with the job in a folder. What it was submitted with is in the folder; the script is not needed.

    Args:
        path: the job's folder or URL, or the path of a savepoint of it.
        options: pipeline options, as on a command line: they take the place of those that the job was submitted with.
        name: what the job is called from here on; "": as before.
        savepoint: go on from this savepoint, and leave behind what came later; "": from where the job is.

    Raises:
        StoreError: there is no such job or savepoint, or the job kept no program.
        EnvironmentMismatchError: it was submitted with another version of Python or Beam.
        SubmissionError: an option is none, or cannot be meant.
        SetupError: there is no Spark to run it on.
    """
    folder, of_path = split_path(path)
    if of_path and savepoint not in ("", of_path):
        raise InvalidPipelineError(f"'{path}' is savepoint '{of_path}', and '{savepoint}' is asked for", "name one")
    url, savepoint = JobLocation(folder).url, savepoint or of_path
    blobs = open_blobs(url)
    program = stored_program(blobs, savepoint)
    wanted = {**program.options, **_given(options), "streaming": True, "checkpoint_dir": url}
    if savepoint:
        wanted["from_savepoint"] = savepoint
    ours = PipelineOptions.from_dictionary(wanted).view_as(ArcbeamOptions)
    name = name or program.name
    plan = plan_of(parsed(program.pipeline), ours, name=name)
    spark = open_session(session_options(ours))
    if ignored := unheeded(spark, session_options(ours)):
        _LOG.warning("running on the active Spark session, which does not have %s", ", ".join(ignored))
    prelude = restored_prelude(spark, blobs, program)
    kept = replace(
        program, name=name, options={option: value for option, value in wanted.items() if option not in OF_THE_RUN}
    )
    files = {file.name: archive_path(file.name) for file in program.files}
    return ArcbeamResult(plan, Job(plan, ours, prelude, program=KeptProgram(kept, files)))


def _given(options: Sequence[str]) -> dict[str, Any]:
    """Options of a command line by plain names.

    Raises:
        InvalidPipelineError: there are some that nobody knows, or that have no place here.
    """
    view = PipelineOptions(list(options)).view_as(ArcbeamOptions)
    found: dict[str, Any] = view.get_all_options(drop_default=True)
    every = view.get_all_options(drop_default=True, retain_unknown_options=True)
    unknown = sorted(every.keys() - found.keys())
    if unknown:
        raise InvalidPipelineError(
            f"no such pipeline options: {', '.join(f'--{name}' for name in unknown)}",
            "the pipeline is the one that the job has kept: options of its own cannot be given any more",
        )
    misplaced = sorted(found.keys() & {"checkpoint_dir", "runner"})
    if misplaced:
        raise InvalidPipelineError(
            f"not for a job that is resumed from its folder: {', '.join(f'--{name}' for name in misplaced)}",
            "leave it out",
        )
    return found
