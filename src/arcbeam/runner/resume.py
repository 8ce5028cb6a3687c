"""Resumes a job from its folder alone, with the stored pipeline, options and files.

Part of the composition root, like `runner`. Owns what may differ from the submission of the job.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from apache_beam.options.pipeline_options import PipelineOptions

from arcbeam.jobs.option_forms import environment_type, struct_of
from arcbeam.options import ADDRESSES, OF_THE_START, ArcbeamOptions, completed, given_as
from arcbeam.runner.job import Job, session_options
from arcbeam.runner.jobgraph import StoredJobGraph, newest_name, restored_worker_setup, stored_job_graph
from arcbeam.runner.result import ArcbeamResult
from arcbeam.runner.sdkworkers import check_startable, how_to_restart
from arcbeam.secrets import declare_settings, parted
from arcbeam.spark.session.remote import is_connect
from arcbeam.spark.session.sessions import is_local, open_session, unheeded
from arcbeam.spark.tasks.artifacts import archive_path
from arcbeam.store.blobs.backends import check_owner, open_blobs, shown
from arcbeam.store.jobtemp.location import JobLocation
from arcbeam.store.log.savepoints import place_of
from arcbeam.translate import ParsedPipeline
from arcbeam.translate.proto import parsed, plan_of

_LOG = logging.getLogger("arcbeam")

_SAMPLES: Final = "page_samples"

_STORED: Final = (
    *("environment_type", "environment_config", "environment_options"),
    *("requirements_file", "setup_file", "extra_packages", "files_to_stage", "save_main_session", "pickle_library"),
)
"""Options whose effect is part of the stored pipeline and its files: without its script they have none."""


def resume(path: str, options: Sequence[str] = (), *, name: str = "", savepoint: str = "") -> ArcbeamResult:
    """Resume the job in a folder. The folder contains the pipeline, its options and files; the script is not needed.

    Args:
        path: the job's folder or URL, or the path of one of its savepoints.
        options: pipeline options, as on a command line; they replace those of the submission.
        name: the job's new name; "": the option `job_name` if `options` has it, else the job's newest name.
        savepoint: the savepoint to resume from; with the option `discard_later_micro_batches` also if there are later
            micro-batches. "": resume from the newest micro-batch.

    Raises:
        StoreError: there is no such job or savepoint, or the job has no job graph.
        EnvironmentMismatchError: it was submitted with another version of Python or Beam.
        SubmissionError: an option is unknown or invalid.
        SetupError: there is no Spark to run it on.
    """
    folder, savepoint = place_of(path, savepoint)
    url = JobLocation(folder).url
    check_owner(url)
    more = given_as(
        options,
        "the pipeline is the stored one, so options of its script cannot be given; remove them, or correct their "
        "spelling",
        ("checkpoint_dir", "runner", "from_savepoint", *_STORED),
        "invalid options of a job that is resumed from its folder",
        "omit them; name a savepoint with --from-savepoint, or by its path; for other SDK workers or packages, submit "
        "the pipeline's script again, with this folder as --checkpoint_dir",
    )
    ended = {option for option in ADDRESSES if more.get(option) == ""}
    more = {option: value for option, value in more.items() if option not in ended}
    PipelineOptions.from_dictionary({**more, "checkpoint_dir": url}).view_as(ArcbeamOptions).check()
    blobs = open_blobs(url)
    job_graph = stored_job_graph(blobs, savepoint)
    declare_settings(job_graph.secrets)
    # The job may have been rescaled since: it keeps its number of shards unless another one is given now. Who allows
    # samples, which show data, does so at each start.
    allowed = job_graph.options.get(_SAMPLES, False)
    unset = {"shards", _SAMPLES, *ended}
    stored = {option: value for option, value in job_graph.options.items() if option not in unset}
    if allowed and _SAMPLES not in more:
        _LOG.warning("%s: no samples can be taken now: give --page_samples again to allow them", shown(url))
    names = [name for name in job_graph.secrets if name not in ended]
    wanted = {**completed(stored, names, more), "streaming": True, "checkpoint_dir": url}
    if savepoint:
        wanted["from_savepoint"] = savepoint
    ours = PipelineOptions.from_dictionary(wanted).view_as(ArcbeamOptions)
    name = name or str(more.get("job_name") or "") or newest_name(blobs) or job_graph.name
    if "job_name" in wanted:
        wanted["job_name"] = name
    pipeline = ParsedPipeline(parsed(job_graph.pipeline))
    plan = plan_of(pipeline, ours, name=name)
    spark = open_session(session_options(ours))
    if ignored := unheeded(spark, session_options(ours)):
        _LOG.warning("running on the active Spark session, which does not have %s", ", ".join(ignored))
    check_startable(
        pipeline.proto, environment_type(stored), local=is_local(spark), inherits=not is_connect(spark), folder=url
    )
    worker_setup = restored_worker_setup(spark, blobs, job_graph)
    if pipeline.any_workers:
        restart = how_to_restart(environment_type(stored), url)
        worker_setup = replace(worker_setup, sdk_options=struct_of(wanted), restart=restart)
    # A later start is reminded, too.
    ones = {_SAMPLES: True, **wanted} if allowed else wanted
    kept = parted({option: value for option, value in ones.items() if option not in OF_THE_START}, names)
    again = replace(job_graph, name=name, options=kept.options, secrets=tuple(sorted({*names, *kept.secrets})))
    files = {file.name: archive_path(file.name) for file in job_graph.files}
    return ArcbeamResult(plan, Job(plan, ours, worker_setup, job_graph=StoredJobGraph(again, files)))
