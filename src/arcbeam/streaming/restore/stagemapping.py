"""Renamed stages of a restored job: their state, watermarks and numbers under the new names.

Owns which parts of a manifest contain a stage's name. Must not know whether the stages fit: their shapes are compared
later.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace

from arcbeam.store.blobs.errors import IncompatibleStateError
from arcbeam.store.manifest.values import Manifest
from arcbeam.streaming.driverstate import Progress, progress_of
from arcbeam.streaming.status.snapshot import snapshot_of


def _observers(progress: Progress) -> set[str]:
    return {*progress.seen, *progress.recent, *progress.unconfirmed}


def _each(names: Mapping[str, str], known: Collection[str]) -> Iterator[tuple[str, str]]:
    """Yield the names of stages, each with its new one; the name of a transform stands for all stages inside it."""
    for old, new in names.items():
        inside = [name for name in known if name.startswith(f"{old}/")]
        yield from ((name, new + name.removeprefix(old)) for name in inside)
        applied = any(name.startswith(f"{new}/") for name in known)
        if old in known or not (inside or applied):
            yield old, new


def stages_of(head: Manifest) -> set[str]:
    """Return the names of stages and observers that a manifest contains; of publishers, if it has any of these."""
    progress = progress_of(head)
    known = {of.stage for of in head.shape.stages} | set(progress.numbers) | _observers(progress)
    return known | {of.stage for of in head.committables} if known else known


def renamed(head: Manifest, names: Mapping[str, str], publishers: Collection[str] = ()) -> Manifest:
    """Return the manifest with stages and publishers renamed. A mapping that was applied before has no effect.

    SUBTLE: the opening has to contain this, not the first micro-batch after it. If a driver died between the two, the
    state would have a name that no pipeline has.

    Args:
        head: the manifest that the job resumes from.
        names: the new names, by the job's names; also of transforms that contain stages.
        publishers: the pipeline's publishers; the job only knows publishers with something to publish.

    Raises:
        IncompatibleStateError: the job has no such stage; or a new name is another stage's.
    """
    known = stages_of(head)
    if not known:
        return head
    names = dict(_each(names, known))
    turned = sorted(old for old, new in names.items() if names.get(new, new) != new and old != new)
    if turned:
        # Repeating a mapping must find it applied.
        raise IncompatibleStateError(
            f"{', '.join(map(repr, turned))} would receive the name of a stage that is itself renamed",
            "map one of them to a new name",
        )
    strange = sorted(old for old, new in names.items() if not {old, new} & known and new not in publishers)
    if strange:
        raise IncompatibleStateError(
            f"cannot rename: the job has no stage {', '.join(map(repr, strange))}",
            f"map stages that the job has: {', '.join(map(repr, sorted(known)))}",
        )
    todo = {old: new for old, new in names.items() if old in known and old != new}
    taken = sorted(new for new in todo.values() if new in known - todo.keys() or list(todo.values()).count(new) > 1)
    if taken:
        raise IncompatibleStateError(
            f"more than one stage would be named {', '.join(map(repr, dict.fromkeys(taken)))}",
            "map each stage to a unique name",
        )

    def name(stage: str) -> str:
        return todo.get(stage, stage)

    progress = progress_of(head)
    progress = replace(
        progress,
        begun=tuple(map(name, progress.begun)),
        numbers={name(stage): number for stage, number in progress.numbers.items()},
        seen={name(observer): time for observer, time in progress.seen.items()},
        recent={name(observer): times for observer, times in progress.recent.items()},
        unconfirmed={name(observer): times for observer, times in progress.unconfirmed.items()},
    )
    return replace(
        head,
        shape=replace(head.shape, stages=tuple(replace(of, stage=name(of.stage)) for of in head.shape.stages)),
        watermarks=tuple(replace(of, stage=name(of.stage)) for of in head.watermarks),
        holds=tuple(replace(of, stage=name(of.stage)) for of in head.holds),
        residuals=tuple(replace(of, stage=name(of.stage)) for of in head.residuals),
        committables=tuple(replace(of, stage=name(of.stage)) for of in head.committables),
        progress=progress.encoded() if head.progress else head.progress,
        snapshot=snapshot_of(head).renamed(todo).encoded() if todo and head.snapshot else head.snapshot,
    )
