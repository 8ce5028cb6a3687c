"""The machine's settings from the job's.

Owns the conversion of their units.
"""

from __future__ import annotations

from arcbeam.engine.coordinator import CoordinatorSettings as MachineSettings
from arcbeam.engine.coordinator import paced
from arcbeam.harness.operations.taskcontext import TaskSettings
from arcbeam.model.timestamps import Duration


def machine_settings(settings: TaskSettings) -> MachineSettings:
    """Return the settings of the machine of a job with these settings."""
    grace, target, behind = (
        Duration(round(seconds * 1e6))
        for seconds in (settings.shutdown_seconds, settings.micro_batch_seconds, settings.backlog_micro_batch_seconds)
    )
    budget, pace = paced(target, behind)
    return MachineSettings(budget, pace, grace=grace)
