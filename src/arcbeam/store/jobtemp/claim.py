"""Which local folders of jobs belong to a driver that lives: those that it claims (`blobs.claims`)."""

from __future__ import annotations

from arcbeam.store.blobs.claims import LOCK, FolderClaim, sweep
from arcbeam.store.jobtemp.location import JobLocation

__all__ = ["LOCK", "Claim", "sweep"]


class Claim:
    """A driver's claim on the temporary location of its job, from now until `release` or its own end.

    A location that is no local folder cannot be claimed, and is never swept.

    Args:
        location: of the job; the driver alone knows of it yet.
    """

    def __init__(self, location: JobLocation) -> None:
        self._of_folder = None if location.folder is None else FolderClaim(location.folder)

    def release(self) -> None:
        """Gives the claim up. Idempotent."""
        if self._of_folder is not None:
            self._of_folder.release()
