"""A run of a plan, as those see it who tell it to end."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from arcbeam.errors import RequestRefusedError
from arcbeam.job import Job
from arcbeam.jobs.termination import OnSigterm
from arcbeam.steps.requests import settled
from arcbeam.store.log.requests import Answer, Said


@pytest.mark.contract("END-02")
def test_who_tells_a_job_to_end_is_told_when_its_drain_is_refused() -> None:
    refused = settled(Answer(Said.REFUSED, "the job is suspending already"))
    run = SimpleNamespace(draining=lambda: None, ask=lambda what, name: refused)
    job = SimpleNamespace(on_sigterm=OnSigterm.DRAIN, _begun_run=lambda what: run)
    with pytest.raises(RequestRefusedError, match="nothing came of 'drain': the job is suspending already"):
        Job.ask_to_end(cast(Any, job))
