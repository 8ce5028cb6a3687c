"""The fake job server of `tests.jobs`, for the commands that need one."""

from __future__ import annotations

from tests.jobs.conftest import client, fake, open_jobs

__all__ = ["client", "fake", "open_jobs"]
