"""Transforms whose labels got other random parts: which one of a submission is which one that a job ran.

Some transforms put a part of a UUID into their label, which then differs in each submission (Beam's
`AnomalyDetection`). Owns when two transforms are the same one. Never guesses: state that went to another transform
would be silently wrong. Must not know how state is stored.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from hashlib import sha256

from arcbeam.model.fingerprint import Fingerprint

_RANDOM = re.compile(r"(?<![0-9A-Za-z])(?:[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}|[0-9a-f]{6,})(?![0-9A-Za-z])")
"""A UUID, or at least six hexadecimal digits of one, as a word of a label."""


@dataclass(frozen=True, slots=True)
class Relabelling:
    """Transforms that have another label, and are the same otherwise.

    Attributes:
        transforms: new names of transforms, by the names that the job knows.
        labels: the same for the transforms or composites with the other label.
        unclear: why nothing is matched, for people; "" if everything is matched, or no label has a random part.
    """

    transforms: Mapping[str, str] = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)
    unclear: str = ""

    def renamed(self, names: Iterable[str]) -> dict[str, str]:
        """Return those of the names that change, each with its new name: of stages, transforms or composites."""
        found = {}
        for name in sorted(names, key=len):
            inside = [label for label in self.labels if name == label or name.startswith(f"{label}/")]
            if inside:
                label = max(inside, key=len)
                found[name] = self.labels[label] + name.removeprefix(label)
        return found


def has_random_labels(transforms: Iterable[str]) -> bool:
    """Return whether a label in these names has a part that looks random."""
    return any(_RANDOM.search(name) for name in transforms)


def relabelling(had: Mapping[str, Fingerprint], now: Mapping[str, Fingerprint]) -> Relabelling:
    """Match the transforms whose labels differ only in random parts, by their kind, code, and place in the graph.

    Either all are matched or none. A transform is matched if it is the only one of its kind, code and place: what it
    reads, and what reads it.

    Args:
        had: the transforms that a job ran, by full name.
        now: those of the submitted pipeline, made by the same versions of Python and Beam.
    """
    old = {name for name in had.keys() - now.keys() if _RANDOM.search(name)}
    new = {name for name in now.keys() - had.keys() if _RANDOM.search(name)}
    if not old or not new:
        return Relabelling()
    rounds = max(len(old), len(new))
    before, after = _by_place(had, old, rounds), _by_place(now, new, rounds)
    pairs: dict[str, str] = {}
    for place, names in sorted(before.items(), key=lambda item: min(item[1])):
        others = after.get(place, [])
        if len(names) > 1 or len(others) > 1:
            return Relabelling(unclear=f"{_listed(names)} and {_listed(others)} are alike apart from their labels")
        if not others:
            return Relabelling(unclear=f"nothing has the code and the place of '{names[0]}'")
        pairs[names[0]] = others[0]
    if unmatched := sorted(new - set(pairs.values())):
        return Relabelling(unclear=f"'{unmatched[0]}' has the code and the place of nothing before")
    assert all(_fits(had[name], now[other], pairs) for name, other in pairs.items())
    labels = dict(_label(name, other) for name, other in pairs.items())
    found = Relabelling(pairs, labels)
    if found.renamed(pairs) != pairs or len(set(labels.values())) < len(labels):
        return Relabelling(unclear=f"'{min(pairs)}' has several new labels")
    return found


def _by_place(transforms: Mapping[str, Fingerprint], relabelled: set[str], rounds: int) -> dict[str, list[str]]:
    """Return the relabelled transforms by a digest of their kind, code, and place.

    The digest of each is refined by those around it, as often as there are such transforms: then it depends on all that
    it can depend on. Other transforms are known by name.
    """
    digests = {
        name: _digest("relabelled", _RANDOM.sub("*", name), of.urn, of.content)
        if name in relabelled
        else _digest("known", name)
        for name, of in transforms.items()
    }
    read = {name: [_output(each, transforms) for each in of.inputs] for name, of in transforms.items()}
    readers = defaultdict(list)
    for name, outputs in read.items():
        for producer, tag in outputs:
            readers[producer].append((name, tag))
    for _ in range(rounds):
        digests |= {
            name: _digest(
                digests[name],
                *sorted(f"reads {digests.get(producer, producer)} {tag}" for producer, tag in read[name]),
                *sorted(f"read by {digests[reader]} {tag}" for reader, tag in readers[name]),
            )
            for name in relabelled
        }
    found = defaultdict(list)
    for name in sorted(relabelled):
        found[digests[name]].append(name)
    return found


def _output(name: str, transforms: Mapping[str, Fingerprint]) -> tuple[str, str]:
    """Return the producer and the tag of an output, by its name; the tag is "" for the only one."""
    if name in transforms:
        return name, ""
    producer, _, tag = name.rpartition(" (")
    return producer, tag


def _fits(was: Fingerprint, of: Fingerprint, pairs: Mapping[str, str]) -> bool:
    """Return whether a transform is the same after the renaming."""
    inputs = []
    for each in was.inputs:
        producer, _, tag = each.rpartition(" (")
        inputs.append(pairs.get(each) or (f"{pairs[producer]} ({tag}" if producer in pairs else each))
    return (was.urn, was.content, sorted(inputs)) == (of.urn, of.content, sorted(of.inputs))


def _label(name: str, other: str) -> tuple[str, str]:
    """Return the names up to the last label in which they differ."""
    parts, others = name.split("/"), other.split("/")
    last = max(at for at, (part, new) in enumerate(zip(parts, others, strict=True)) if part != new) + 1
    return "/".join(parts[:last]), "/".join(others[:last])


def _digest(*parts: str) -> str:
    return sha256("\0".join(parts).encode()).hexdigest()


def _listed(names: list[str]) -> str:
    return ", ".join(map(repr, names))
