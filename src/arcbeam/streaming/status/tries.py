"""What is shown of a try of a micro-batch that failed, while it is tried again.

Owns the words. Must not know where they are shown, nor decide whether there is another try.
"""

from __future__ import annotations


def failed_try(number: int, most: int, why: str) -> str:
    """Return that a try failed, in a line.

    Args:
        number: of the try, from 1.
        most: tries after which the job fails.
        why: of its error, whose first line is taken.
    """
    return f"try {number} of {most} failed: {why.partition(chr(10))[0]}"


def deadly_try(number: int, most: int, transform: str, how: str) -> str:
    """Return that a worker died in a try, in a line.

    Args:
        number: of the try, from 1.
        most: tries after which the job fails.
        transform: that ran last in the worker; "" if unknown.
        how: it died: an exit code, a signal; "" if unknown.
    """
    in_transform = f"in transform '{transform}'" if transform else ""
    return ", ".join(filter(None, (f"a worker died in try {number} of {most}", in_transform, how)))
