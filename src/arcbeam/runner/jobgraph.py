"""What a streaming job stores so that another process can resume it without its script.

Owns the content of a job graph: the pipeline's proto, the options, the user's files as archives, and the setup of
workers. `store.log.jobgraphs` stores it.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from arcbeam.errors import EnvironmentMismatchError
from arcbeam.options import OF_THE_START
from arcbeam.secrets import parted
from arcbeam.spark.session.sessions import is_local
from arcbeam.spark.session.versions import Versions
from arcbeam.spark.tasks.artifacts import archive_path
from arcbeam.spark.tasks.shipping import Archive, WorkerSetup, ship
from arcbeam.spark.tasks.storedsetup import record_of, worker_setup_of
from arcbeam.store.blobs.durable import DurableBlobs
from arcbeam.store.blobs.errors import StoreError
from arcbeam.store.blobs.private import open_new
from arcbeam.store.log import jobgraphs
from arcbeam.store.log.chain import known, read_manifest, read_newest
from arcbeam.store.log.jobname import job_label, kept_name
from arcbeam.store.log.opening import no_savepoint
from arcbeam.store.manifest.jobgraphfile import JobGraph
from arcbeam.translate import ParsedPipeline
from arcbeam.translate.identifying.fingerprints import fingerprints
from arcbeam.translate.proto import parsed


@dataclass(frozen=True, slots=True)
class StoredJobGraph:
    """A job graph, and the paths of its files, by name."""

    job_graph: JobGraph
    files: Mapping[str, Path]


def job_graph_to_store(
    name: str, pipeline: bytes, options: Mapping[str, Any], worker_setup: WorkerSetup
) -> StoredJobGraph:
    """Return what a job stores.

    Args:
        name: of the job.
        pipeline: its serialized proto, as it was translated.
        options: of the job, by plain names. Values that JSON cannot hold are omitted: they came from no command line.
            Secrets are omitted, too; their names are stored.
        worker_setup: of its workers.
    """
    files = {name: archive_path(name) for name in worker_setup.archives}
    kept = parted({name: value for name, value in options.items() if name not in OF_THE_START and _is_json(value)})
    described = tuple(jobgraphs.described(name, path) for name, path in files.items())
    transforms = fingerprints(ParsedPipeline(parsed(pipeline)), time.time())
    here, secrets = asdict(Versions.here()), tuple(sorted(kept.secrets))
    job_graph = JobGraph(name, pipeline, kept.options, record_of(worker_setup), described, here, transforms, secrets)
    return StoredJobGraph(job_graph, files)


def _is_json(value: Any) -> bool:
    try:
        json.dumps(value)
    except (TypeError, ValueError):
        return False
    return True


def stored_job_graph(blobs: DurableBlobs, savepoint: str = "") -> JobGraph:
    """Return the job graph of the job in a folder.

    Args:
        blobs: the folder.
        savepoint: return the job graph of this savepoint; "": the newest.

    Raises:
        StoreError: there is no job, no such savepoint, or no job graph; or it cannot be read.
        EnvironmentMismatchError: another version of Python or Beam pickled it.
    """
    newest = read_newest(blobs)
    if newest is None:
        raise StoreError(f"there is no job in '{blobs}'", "give the folder of the job (its --checkpoint_dir)")
    head = known(newest)
    if savepoint:
        pin = head.pin(savepoint)
        if pin is None:
            raise no_savepoint(blobs, savepoint, head)
        head = head if pin.micro_batch == head.micro_batch else read_manifest(blobs, pin.micro_batch)
    if not head.job_graph:
        raise StoreError(
            f"the job in '{blobs}' has no job graph, so it cannot be resumed without its script",
            "submit the pipeline's script again, with this folder as --checkpoint_dir",
        )
    job_graph = jobgraphs.read(blobs, head.job_graph)
    here = Versions.here()
    if (job_graph.versions.get("python"), job_graph.versions.get("beam")) != (here.python, here.beam):
        raise EnvironmentMismatchError(
            f"{job_label(job_graph.name, blobs)} was submitted with Python {job_graph.versions.get('python')} and Beam "
            f"{job_graph.versions.get('beam')}; this is Python {here.python} and Beam {here.beam}",
            "use these versions of Python and Beam, or submit the pipeline's script again",
        )
    return job_graph


def newest_name(blobs: DurableBlobs) -> str:
    """Return the newest name of the job in a folder; "" if it has none.

    A savepoint has the job graph, and so the name, of its time. Going back to it does not rename the job.
    """
    newest = read_newest(blobs)
    return "" if newest is None else kept_name(blobs, known(newest))


def restored_worker_setup(spark: Any, blobs: DurableBlobs, job_graph: JobGraph) -> WorkerSetup:
    """Ship a job graph's files to the session's workers, and return the setup of the workers.

    Raises:
        StoreError: a file is missing or damaged.
        SetupError: Spark does not take the files.
    """
    worker_setup = worker_setup_of(job_graph.worker, local=is_local(spark))
    for file in job_graph.files:
        path = archive_path(file.name)
        if not path.exists():
            partial = path.with_suffix(".fetched")
            partial.unlink(missing_ok=True)
            with open_new(partial) as target:
                jobgraphs.fetch(blobs, file, target.write)
            partial.rename(path)
    ship(spark, tuple(Archive(archive_path(name), worker_setup.platform) for name in worker_setup.archives))
    return worker_setup
