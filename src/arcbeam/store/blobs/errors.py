"""What can go wrong with files of ours, by type.

Owns the store's exceptions. The distinction that everything else leans on: after a `DeterminateError` the operation
certainly did nothing; after an `IndeterminateError` nobody knows, and only reading again tells.
"""

from __future__ import annotations

from arcbeam.errors import ArcbeamError


class StoreError(ArcbeamError):
    """A file of ours is missing, damaged, too new, or cannot be reached. The message names it."""


class LostFileError(StoreError):
    """A file of ours is missing or damaged: trying again does not help."""


class MissingFileError(LostFileError):
    """There is no file of that name."""


class AwayError(MissingFileError):
    """The whole folder is not there, and with it no file: the disk that it is on may be there again in a while."""


class DamagedFileError(LostFileError):
    """A file is cut off, changed, or not one of ours."""


class NewerFormatError(StoreError):
    """A file was written by a newer version of arcbeam; nothing is wrong with it."""


class DeterminateError(StoreError):
    """The store refused, and certainly did nothing: no permission, no such bucket, no room."""


class IndeterminateError(StoreError):
    """The store did not answer, or not clearly: what was asked may have happened, or may yet happen."""


class FencedError(StoreError):
    """Another driver has taken over the job; this one must end, and has committed nothing since."""


class JobEndedError(StoreError):
    """The job is done or was drained: it has no next micro-batch."""


class DecidedCommitError(StoreError):
    """A task came too late: its micro-batch was decided without it. What it does counts for nothing."""


class InvalidManifestError(StoreError):
    """A micro-batch's manifest contradicts the head that it would follow; nothing was written. A bug, if not a
    fault.
    """


class IncompatibleStateError(StoreError):
    """A job's state does not fit what is to be resumed with it. Every difference is in the message."""
