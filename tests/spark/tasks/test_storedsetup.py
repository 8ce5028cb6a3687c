"""The worker setup that a job stores."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from arcbeam.documents import NewerDocumentError
from arcbeam.harness.encoding.registered import Registered
from arcbeam.harness.encoding.script.mainmodule import MainModule
from arcbeam.harness.encoding.script.names import MainName, MainNames
from arcbeam.spark.tasks.shipping import WorkerSetup
from arcbeam.spark.tasks.storedsetup import record_of, worker_setup_of

pytestmark = pytest.mark.contract("STORE-05", "API-05")

PRELUDE = WorkerSetup(
    archives=("arcbeam-1.zip",),
    platform="linux-x86_64",
    pickle_library="cloudpickle",
    log_level="DEBUG",
    log_levels=(("words", "INFO"),),
    closed_outputs={"Split": ("a", "b")},
    main=MainModule(
        MainNames(
            (MainName("twice", b"\x00code", ("math",)), MainName("Word", b"1", (), "id")), (("log", "a file"),), ("n",)
        ),
        Registered((("id", b"1"),), (("s", b"2"),), (("urn", b"3"),), (("c", b"4"),)),
    ),
)


def test_setup_round_trips_through_json() -> None:
    record = json.loads(json.dumps(record_of(PRELUDE)))
    assert worker_setup_of(record, local=False) == PRELUDE


def test_folders_count_only_on_local_workers(tmp_path: Path) -> None:
    kept = replace(PRELUDE, paths=(str(tmp_path), "/no/such/folder"), folder=str(tmp_path))
    record = record_of(kept)
    local = worker_setup_of(record, local=True)
    assert local.paths[0] == str(tmp_path)
    assert set(local.paths[1:]) <= set(sys.path)
    assert local.folder == str(tmp_path)
    elsewhere = worker_setup_of(record, local=False)
    assert (elsewhere.paths, elsewhere.folder) == ((), "")


def test_record_of_newer_version_is_refused() -> None:
    with pytest.raises(NewerDocumentError, match="workers has format 2; this version of arcbeam reads up to 1"):
        worker_setup_of({**record_of(PRELUDE), "version": 2}, local=False)
    with pytest.raises(ValueError, match="it is not the setup of workers"):
        worker_setup_of({}, local=False)
