"""The identity of a transform, and the differences between the pipelines of two submissions.

A leaf: plain values, as stored in a job's folder. Must not know where a fingerprint comes from.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

_LAMBDA = re.compile(r"<lambda at [^>]*>")


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """A primitive transform.

    Attributes:
        urn: the kind of the transform.
        inputs: the transforms whose output it reads, by full name, including side inputs; sorted. If a transform has
            several outputs, the name includes the output.
        content: a digest of its code, arguments and windowing.
    """

    urn: str
    inputs: tuple[str, ...]
    content: str


def plain(name: str) -> str:
    """Return a transform's name without the file and line of a lambda, which change with unrelated lines."""
    return _LAMBDA.sub("<lambda>", name)


def changes(
    had: Mapping[str, Fingerprint], now: Mapping[str, Fingerprint], renamed: Mapping[str, str], *, compares_code: bool
) -> Iterator[str]:
    """Yield the differences between two pipelines, one text for each transform; none if they are the same.

    Args:
        had: the transforms that a job ran, by full name.
        now: the transforms of the submitted pipeline.
        renamed: new names, by old ones, of transforms or of composites that contain them.
        compares_code: their contents are comparable: the same versions made them.
    """
    before = with_names(had, renamed)
    for name in sorted(before.keys() | now.keys()):
        was, of = before.get(name), now.get(name)
        if was is None:
            yield f"'{name}' is new"
        elif of is None:
            yield f"'{name}' is missing"
        elif of.urn != was.urn:
            yield f"'{name}' is a {of.urn} (was: {was.urn})"
        elif of.inputs != was.inputs:
            yield f"'{name}' reads {_listed(of.inputs)} (was: {_listed(was.inputs)})"
        elif compares_code and of.content != was.content:
            yield f"'{name}' has other code, arguments or windows"


def with_names(had: Mapping[str, Fingerprint], renamed: Mapping[str, str]) -> dict[str, Fingerprint]:
    """Return the transforms under their new names, by old ones, of transforms or of composites that contain them."""
    names = {plain(old): plain(new) for old, new in renamed.items()}
    return {
        _renamed(name, names): replace(of, inputs=tuple(sorted(_renamed(each, names) for each in of.inputs)))
        for name, of in had.items()
    }


def _renamed(name: str, names: Mapping[str, str]) -> str:
    """Return the name of a transform or output, with the new name of the transform or of a composite around it."""
    for old, new in names.items():
        if name == old or name.startswith((f"{old}/", f"{old} (")):
            return new + name.removeprefix(old)
    return name


def _listed(names: tuple[str, ...]) -> str:
    return ", ".join(map(repr, names)) or "nothing"
