"""A driver's claim on the local folder of its job (`blobs.claims`)."""

from __future__ import annotations

from arcbeam.store.blobs.claims import LOCK, FolderClaim, sweep
from arcbeam.store.jobtemp.location import JobLocation

__all__ = ["LOCK", "Claim", "sweep"]


class Claim:
    """A driver's claim on the temporary location of its job, until `release` or the driver's end.

    A location that is not a local folder cannot be claimed, and is never swept.

    Args:
        location: of the job; only the driver knows it so far.
    """

    def __init__(self, location: JobLocation) -> None:
        self._of_folder = None if location.folder is None else FolderClaim(location.folder)

    def release(self) -> None:
        """Release the claim. Idempotent."""
        if self._of_folder is not None:
            self._of_folder.release()
