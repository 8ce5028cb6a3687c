"""Errors of stored files, by type.

Owns the store's exceptions. All callers depend on this distinction: after a `DeterminateError` the operation certainly
did nothing; after an `IndeterminateError` its outcome is unknown, and only another read shows it.
"""

from __future__ import annotations

from arcbeam.errors import ArcbeamError


class StoreError(ArcbeamError):
    """A stored file is missing, damaged, too new, or cannot be reached. The message names it."""


class LostFileError(StoreError):
    """A stored file is missing or damaged: trying again does not help."""


class MissingFileError(LostFileError):
    """There is no file of that name."""


class AwayError(MissingFileError):
    """The whole folder is missing, and with it the file. Its disk may be mounted again later."""


class DamagedFileError(LostFileError):
    """A file is cut off, changed, or not one of arcbeam's."""


class NewerFormatError(StoreError):
    """A newer version of arcbeam wrote a file; the file itself is intact."""


class DeterminateError(StoreError):
    """The store refused, and certainly did nothing: no permission, no such bucket, no space."""


class IndeterminateError(StoreError):
    """The store gave no clear answer: the operation may have happened, or may happen later."""


class FencedError(StoreError):
    """Another driver took over the job. This one must end; it has committed nothing since."""


class JobEndedError(StoreError):
    """The job is done or drained: it has no next micro-batch."""


class LaterMicroBatchesError(StoreError):
    """To resume from a savepoint would discard committed micro-batches, and that was not allowed."""


class DecidedCommitError(StoreError):
    """A task came too late: its micro-batch was decided without it. Its results do not count."""


class InvalidManifestError(StoreError):
    """A micro-batch's manifest contradicts the head that it would follow; nothing was written. Usually a bug."""


class IncompatibleStateError(StoreError):
    """A job's state does not fit the pipeline or options with which to resume it. The message has all differences."""
