"""The worker setup as a record that outlives this version, from which a job resumes.

Owns the record's form: JSON values, with pickled values as base64.
"""

from __future__ import annotations

import base64
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from arcbeam import documents
from arcbeam.harness.encoding.registered import Pickled, Registered
from arcbeam.harness.encoding.script.mainmodule import MainModule
from arcbeam.harness.encoding.script.names import MainName, MainNames
from arcbeam.spark.tasks.shipping import WorkerSetup

VERSION: Final = 1
"""Of the record."""


def record_of(worker_setup: WorkerSetup) -> dict[str, Any]:
    """Return a worker setup as a record."""
    known = worker_setup.main.registered
    return {
        "version": VERSION,
        "archives": list(worker_setup.archives),
        "platform": worker_setup.platform,
        "pickle_library": worker_setup.pickle_library,
        "log_level": worker_setup.log_level,
        "log_levels": [list(pair) for pair in worker_setup.log_levels],
        "closed_outputs": {step: list(tags) for step, tags in worker_setup.closed_outputs.items()},
        "paths": list(worker_setup.paths),
        "folder": worker_setup.folder,
        "names": [
            [of.name, base64.b64encode(of.data).decode(), list(of.uses), of.class_id]
            for of in worker_setup.main.names.sent
        ],
        "unsent": [list(pair) for pair in worker_setup.main.names.unsent],
        "assigned": list(worker_setup.main.names.assigned),
        "script_known": worker_setup.main.is_known,
        "classes": _texts(known.classes),
        "schemas": _texts(known.schemas),
        "logical_types": _texts(known.logical_types),
        "coders": _texts(known.coders),
    }


def worker_setup_of(record: Mapping[str, Any], *, local: bool) -> WorkerSetup:
    """Return the worker setup of a record.

    Args:
        record: see `record_of`.
        local: whether the workers run on this machine. They then import from the existing folders from which the
            program imported, and from those of this process.
    """
    record = documents.checked(record, VERSION, "the setup of workers")
    registered = Registered(
        _bytes(record["classes"]),
        _bytes(record["schemas"]),
        _bytes(record["logical_types"]),
        _bytes(record["coders"]),
    )
    paths = dict.fromkeys([*record["paths"], *sys.path]) if local else {}
    return WorkerSetup(
        archives=tuple(record["archives"]),
        platform=record["platform"],
        pickle_library=record["pickle_library"],
        log_level=record["log_level"],
        log_levels=tuple((name, level) for name, level in record["log_levels"]),
        closed_outputs={step: tuple(tags) for step, tags in record["closed_outputs"].items()},
        paths=tuple(path for path in paths if path and Path(path).is_dir()),
        main=MainModule(_names(record), registered, is_known=record["script_known"]),
        folder=record["folder"] if local else "",
    )


def _names(record: Mapping[str, Any]) -> MainNames:
    return MainNames(
        tuple(
            MainName(name, base64.b64decode(data), tuple(uses), class_id)
            for name, data, uses, class_id in record["names"]
        ),
        tuple((name, reason) for name, reason in record["unsent"]),
        tuple(record["assigned"]),
    )


def _texts(named: Pickled) -> list[list[str]]:
    return [[name, base64.b64encode(data).decode()] for name, data in named]


def _bytes(named: Any) -> Pickled:
    return tuple((name, base64.b64decode(data)) for name, data in named)
