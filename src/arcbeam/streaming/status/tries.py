"""Texts about failed tries of a micro-batch, while it is retried.

Owns the texts. Must not know where they are shown, nor whether there is another try.
"""

from __future__ import annotations


def failed_try(number: int, most: int, why: str) -> str:
    """Return a line about a failed try.

    Args:
        number: the number of the try, from 1.
        most: the number of tries after which the job fails.
        why: the error, whose first line is taken.
    """
    return f"try {number} of {most} failed: {why.partition(chr(10))[0]}"


def deadly_try(number: int, most: int, transform: str, how: str) -> str:
    """Return a line about a try in which a worker died.

    Args:
        number: the number of the try, from 1.
        most: the number of tries after which the job fails.
        transform: the transform that ran last in the worker; "" if unknown.
        how: how it died: an exit code, a signal; "" if unknown.
    """
    in_transform = f"in transform '{transform}'" if transform else ""
    return ", ".join(filter(None, (f"a worker died in try {number} of {most}", in_transform, how)))
