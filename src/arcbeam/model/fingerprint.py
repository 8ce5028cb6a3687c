"""What identifies a transform, and how the pipelines of two submissions differ by that.

A leaf: plain values, as a job's folder keeps them. Must not know where a fingerprint comes from.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

_LAMBDA = re.compile(r"<lambda at [^>]*>")


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """One transform that consists of no others.

    Attributes:
        urn: what kind of transform it is.
        inputs: the transforms whose output it reads, by full name, side inputs included; sorted. Of a transform with
            several outputs also which one.
        content: a digest of its code, arguments and windowing.
    """

    urn: str
    inputs: tuple[str, ...]
    content: str


def plain(name: str) -> str:
    """A transform's name without the file and line of a lambda, which change with lines that do not matter."""
    return _LAMBDA.sub("<lambda>", name)


def changes(
    had: Mapping[str, Fingerprint], now: Mapping[str, Fingerprint], renamed: Mapping[str, str], *, compares_code: bool
) -> Iterator[str]:
    """How a pipeline differs from another one, one text for each transform; none if it is the same.

    Args:
        had: the transforms that a job ran, by full name.
        now: those of the pipeline that was submitted.
        renamed: new names, by old ones, of transforms or of transforms around them.
        compares_code: their content is comparable: the same versions made it.
    """
    names = {plain(old): plain(new) for old, new in renamed.items()}
    before = {
        _renamed(name, names): replace(of, inputs=tuple(sorted(_renamed(each, names) for each in of.inputs)))
        for name, of in had.items()
    }
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


def _renamed(name: str, names: Mapping[str, str]) -> str:
    """A transform's name, or that of one of its outputs, under the new name of the transform or of one around it."""
    for old, new in names.items():
        if name == old or name.startswith((f"{old}/", f"{old} (")):
            return new + name.removeprefix(old)
    return name


def _listed(names: tuple[str, ...]) -> str:
    return ", ".join(map(repr, names)) or "nothing"
