"""Submission of a pipeline of this process to a job server, with what the SDK's own submitters leave out.

Owns the file that accompanies such a pipeline: the names and types of its script, and the outputs that its transforms
declare. Without it, workers find no function or class of the script by its name.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from apache_beam.options.pipeline_options import PipelineOptions, PortableOptions, SetupOptions
from apache_beam.portability import common_urns, python_urns
from apache_beam.portability.api import beam_runner_api_pb2 as runner_pb
from apache_beam.runners.portability.portable_runner import PortableRunner
from apache_beam.transforms.environments import Environment

from arcbeam.errors import InvalidPipelineError
from arcbeam.harness.encoding.script.mainmodule import MainModule
from arcbeam.jobs.environments import EMBEDDED_TYPE
from arcbeam.jobs.execution import StagedFileKind, Submission
from arcbeam.spark.tasks.shipping import WorkerSetup
from arcbeam.spark.tasks.storedsetup import record_of, worker_setup_of
from arcbeam.store.blobs.claims import work_folder
from arcbeam.store.blobs.private import open_new


def environment_of(options: PipelineOptions) -> Any:
    """Return the SDK's environment that the options name; without a name, the one of Spark's Python workers."""
    portable = options.view_as(PortableOptions)
    portable.environment_type = portable.environment_type or EMBEDDED_TYPE
    setup = options.view_as(SetupOptions)
    if setup.sdk_location == "default":
        setup.sdk_location = "container"  # as the SDK's submitter: the workers have the SDK
    return Environment.from_options(portable)


def submit(proto: Any, options: PipelineOptions, main: MainModule, closed_outputs: dict[str, tuple[str, ...]]) -> Any:
    """Submit a pipeline to the job server of `--job_endpoint`.

    Args:
        proto: the pipeline; its environments of Spark's Python workers get a file more.
        options: its options.
        main: the script.
        closed_outputs: see `WorkerSetup`.

    Returns:
        The SDK's result of a portable pipeline.
    """
    with work_folder("staging") as folder:
        file = folder / StagedFileKind.SCRIPT.value
        with open_new(file) as written:
            written.write(json.dumps(record_of(WorkerSetup(main=main, closed_outputs=closed_outputs))).encode())
        for environment in proto.components.environments.values():
            if environment.urn == python_urns.EMBEDDED_PYTHON:
                environment.dependencies.append(_artifact(file))
        return PortableRunner().run_portable_pipeline(proto, options)


def _artifact(file: Path) -> Any:
    role = runner_pb.ArtifactStagingToRolePayload(staged_name=file.name)
    return runner_pb.ArtifactInformation(
        type_urn=common_urns.artifact_types.FILE.urn,
        type_payload=runner_pb.ArtifactFilePayload(path=str(file)).SerializeToString(),
        role_urn=common_urns.artifact_roles.STAGING_TO.urn,
        role_payload=role.SerializeToString(),
    )


def script_of(submission: Submission) -> WorkerSetup | None:
    """Return the script and the declared outputs that came with a submission; None if they did not.

    Raises:
        InvalidPipelineError: the file is malformed.
    """
    files = submission.artifacts.files if submission.artifacts is not None else ()
    for file in files:
        if file.kind is StagedFileKind.SCRIPT:
            try:
                return worker_setup_of(json.loads(file.path.read_bytes()), local=False)
            except (ValueError, TypeError, AttributeError) as e:
                raise InvalidPipelineError(f"the submitted file '{file.name}' is malformed: {e}") from e
    return None
