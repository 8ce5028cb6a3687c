"""Play simulations, and print the shortest story of each that fails.

    python -m simulator --seed N
    python -m simulator --seeds A..B

Owns the command line. The exit code is 1 if any simulation fails.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Sequence

from simulator.scenario.choosing import scenario_of
from simulator.shrinking import Failure, played, shrunk

_EVENTS_SHOWN = 80
"""The number of lines of a story to print, counted from its end."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Play the seeds of the command line; return 1 if one fails."""
    parser = argparse.ArgumentParser(prog="python -m simulator", description=__doc__.partition("\n")[0])
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--seed", type=int, help="play this seed")
    what.add_argument("--seeds", type=seeds_of, metavar="A..B", help="play these seeds, both ends included")
    parser.add_argument(
        "--whole", action="store_true", help="print the whole story, and do not search for a shorter one"
    )
    options = parser.parse_args(arguments)
    if options.seed is not None:
        return _one(options.seed, whole=options.whole)
    return _many(options.seeds, whole=options.whole)


def seeds_of(text: str) -> range:
    """Parse `A..B` of a command line; it has at least one seed."""
    first, dots, last = text.partition("..")
    if not (dots and first.isdecimal() and last.isdecimal() and int(first) <= int(last)):
        raise argparse.ArgumentTypeError(f"{text!r} is not of the form A..B, with A no larger than B")
    return range(int(first), int(last) + 1)


def _one(seed: int, *, whole: bool) -> int:
    found = played(scenario_of(seed))
    if isinstance(found, Failure):
        _print_failure(found, whole=whole)
        return 1
    _say("\n".join(found.event_log if whole else found.event_log[-_EVENTS_SHOWN:]))
    _say(f"seed {seed}: passed; {found.watcher.commits} micro-batches; {_counted(found.happened)}")
    return 0


def _many(seeds: Sequence[int], *, whole: bool) -> int:
    happened: Counter[str] = Counter()
    failed = []
    for seed in seeds:
        found = played(scenario_of(seed))
        if isinstance(found, Failure):
            failed.append(seed)
            _print_failure(found, whole=whole)
        else:
            happened += found.happened
            happened["steps"] += found.watcher.commits
    _say(f"{len(seeds)} simulations; {_counted(happened)}")
    _say(f"failed: {', '.join(map(str, failed)) or 'none'}")
    return 1 if failed else 0


def _print_failure(failure: Failure, *, whole: bool) -> None:
    if not whole:
        failure = shrunk(failure)
        if len(failure.event_log) > _EVENTS_SHOWN:
            failure = Failure(
                failure.scenario, failure.error, failure.place, ("  ...", *failure.event_log[-_EVENTS_SHOWN:])
            )
    _say(f"{failure}\n")


def _say(text: str) -> None:
    print(text, flush=True)  # noqa: T201 - a command speaks


def _counted(happened: Counter[str]) -> str:
    return "; ".join(f"{what}: {count}" for what, count in sorted(happened.items())) or "no faults"


if __name__ == "__main__":
    raise SystemExit(main())
