"""The works: the functions that every peer applies, and the right answer of each work.

Owns sizes, element functions and answers; knows neither Beam nor Spark, so that no peer is favoured. Every work is
reduced to an `Answer` that a peer can only get right by doing all of it: the number of results, and the sum of a
non-linear digest of each.
"""

from __future__ import annotations

import collections
import functools
import itertools
import re
import sysconfig
import zlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

KEYS = 100_000
WINDOW_KEYS = 1_000
WINDOW_SIZE, WINDOW_PERIOD, WINDOW_SPAN = 60, 20, 600  # seconds
SEEDS = 8
TINY = 10
M = 1_000_000
_PRIME = 10_007
_WORD = re.compile(r"[A-Za-z']+")


class Answer(NamedTuple):
    """The outcome of a work: number of results, and sum of their digests."""

    count: int
    total: int


@dataclass(frozen=True, slots=True)
class Work:
    """One work to measure.

    Attributes:
        name: as on the command line and in the table.
        what: its description.
        elements: default number of input elements; 0: a tiny pipeline, measured in seconds.
        local_elements: the maximum for Beam's local runner, which would otherwise take too long.
        answer: returns the right answer for a number of elements.
        way: whether it is one of the ways to write it, which have their own table.
    """

    name: str
    what: str
    elements: int
    local_elements: int
    answer: Callable[[int], Answer]
    way: bool = False


# ------------------------------------------------------------------------------------------------ element functions


def seeds(elements: int, start: int = 0) -> list[tuple[int, int]]:
    """Return the numbers start … start + elements - 1 as `SEEDS` ranges (first, last + 1)."""
    bounds = [start + elements * part // SEEDS for part in range(SEEDS + 1)]
    return list(itertools.pairwise(bounds))


def numbers(seed: tuple[int, int]) -> Iterable[int]:
    return range(seed[0], seed[1])


def scale(x: int) -> int:
    return x * 3 + 1


def keep(x: int) -> bool:
    return x % 4 != 0


def mix(x: int) -> int:
    return x ^ 0x5555


def key_of(x: int) -> int:
    return (x * 2654435761 & 0xFFFFFFFF) % KEYS


def keyed(x: int) -> tuple[int, int]:
    return (x * 2654435761 & 0xFFFFFFFF) % KEYS, x


def window_key(x: int) -> int:
    return (x * 2654435761 & 0xFFFFFFFF) % WINDOW_KEYS


def second_of(x: int) -> int:
    return x % WINDOW_SPAN


def window_starts(second: int) -> list[int]:
    """Return the starts of the sliding windows that contain a second."""
    last = second - second % WINDOW_PERIOD
    return list(range(last, second - WINDOW_SIZE, -WINDOW_PERIOD))


def merge(lefts: Iterable[int], rights: Iterable[int]) -> int:
    """Return the result for the two sides of a key in the co-group."""
    lefts = list(lefts)
    return sum(lefts) * 3 + sum(rights) * 5 + len(lefts)


def table_row(key: int) -> tuple[int, int]:
    """Return a row of the table that the side-input join looks up."""
    return key, key * key % 1_009


def words_of(line: str) -> list[str]:
    return _WORD.findall(line)


def digest_number(x: int) -> int:
    return x % _PRIME


def digest_pair(pair: tuple[int, int]) -> int:
    return (pair[0] * 31 + pair[1]) % _PRIME


def digest_window(key: int, start: int, mean: float) -> int:
    return (key * 31 + start * 17 + int(mean)) % _PRIME


def digest_word(pair: tuple[str, int]) -> int:
    return (zlib.crc32(pair[0].encode()) + pair[1]) % _PRIME


# ---------------------------------------------------------------------------------------------------------- answers


def _keys(elements: int, keys: int, start: int = 0) -> tuple[np.ndarray, np.ndarray]:
    values = np.arange(start, start + elements, dtype=np.uint64)
    scrambled = (values * np.uint64(2654435761) & np.uint64(0xFFFFFFFF)) % np.uint64(keys)
    return scrambled.astype(np.int64), values.astype(np.int64)


def _per_key(keys: np.ndarray, values: np.ndarray | None, size: int) -> np.ndarray:
    """Return the sum of the values (or number of elements) per key; exact, because all sums stay below 2**53."""
    return np.bincount(keys, values, minlength=size).astype(np.int64)


def _pairs(keys: np.ndarray, values: np.ndarray) -> Answer:
    return Answer(len(keys), int(((keys * 31 + values) % _PRIME).sum()))


@functools.cache
def _map(elements: int) -> Answer:
    x = np.arange(elements, dtype=np.int64) * 3 + 1
    x = x[x % 4 != 0] ^ 0x5555
    return Answer(len(x), int((x % _PRIME).sum()))


@functools.cache
def _group(elements: int) -> Answer:
    keys, values = _keys(elements, KEYS)
    present = np.unique(keys)
    return _pairs(present, _per_key(keys, values, KEYS)[present])


@functools.cache
def _count(elements: int) -> Answer:
    keys, _ = _keys(elements, KEYS)
    present = np.unique(keys)
    return _pairs(present, _per_key(keys, None, KEYS)[present])


@functools.cache
def _reshuffle(elements: int) -> Answer:
    return Answer(elements, int((np.arange(elements, dtype=np.int64) % _PRIME).sum()))


@functools.cache
def _cogroup(elements: int) -> Answer:
    half = elements // 2
    keys1, values1 = _keys(half, KEYS)
    keys2, values2 = _keys(elements - half, KEYS, half)
    present = np.union1d(keys1, keys2)
    merged = _per_key(keys1, values1, KEYS) * 3 + _per_key(keys2, values2, KEYS) * 5 + _per_key(keys1, None, KEYS)
    return _pairs(present, merged[present])


@functools.cache
def _window(elements: int) -> Answer:
    keys, values = _keys(elements, WINDOW_KEYS)
    seconds = values % WINDOW_SPAN
    count = total = 0
    for start in range(WINDOW_PERIOD - WINDOW_SIZE, WINDOW_SPAN, WINDOW_PERIOD):
        inside = (seconds >= start) & (seconds < start + WINDOW_SIZE)
        sizes = _per_key(keys[inside], None, WINDOW_KEYS)
        present = np.flatnonzero(sizes)
        sums = _per_key(keys[inside], values[inside], WINDOW_KEYS)[present]
        means = (sums / sizes[present]).astype(np.int64)
        count += len(present)
        total += int(((present * 31 + start * 17 + means) % _PRIME).sum())
    return Answer(count, total)


@functools.cache
def _state(elements: int) -> Answer:
    keys, _ = _keys(elements, KEYS)
    sizes = _per_key(keys, None, KEYS)
    firsts = np.cumsum(sizes) - sizes
    ordinals = np.arange(1, elements + 1) - np.repeat(firsts, sizes)
    return _pairs(np.repeat(np.arange(KEYS), sizes), ordinals)


@functools.cache
def _side(elements: int) -> Answer:
    keys, values = _keys(elements, KEYS)
    joined = values + keys * keys % 1_009
    return Answer(elements, int((joined % _PRIME).sum()))


@functools.cache
def _words(elements: int) -> Answer:
    counts: collections.Counter[str] = collections.Counter()
    for file in sorted(corpus(elements).iterdir()):
        counts.update(words_of(file.read_text(encoding="ascii")))
    return Answer(len(counts), sum(map(digest_word, counts.items())))


def _tiny(elements: int) -> Answer:
    return Answer(TINY, sum(map(digest_number, range(TINY))))


def _tiny_group(elements: int) -> Answer:
    sums = {key: sum(range(key, TINY, 3)) for key in range(3)}
    return Answer(len(sums), sum(map(digest_pair, sums.items())))


def third(x: int) -> tuple[int, int]:
    """The keys of the tiny pipeline."""
    return x % 3, x


# ------------------------------------------------------------------------------------------------------ real text

_folder = Path(__file__).resolve().parents[3] / "build" / "bench"


@functools.cache
def corpus(words: int) -> Path:
    """Return a folder of `SEEDS` text files with about that many words: the sources of Python's standard library.

    Repeated if they are not enough. ASCII only, so that every reader cuts lines alike. Made once per size.
    """
    folder = _folder / f"words-{words}"
    done = folder.with_suffix(".done")
    if done.exists():
        return folder
    folder.mkdir(parents=True, exist_ok=True)
    standard = Path(sysconfig.get_path("stdlib"))
    sources = sorted(path for path in standard.rglob("*.py") if "site-packages" not in path.parts)
    files = [(folder / f"part-{part}.txt").open("w", encoding="ascii", newline="\n") for part in range(SEEDS)]
    left, number = words, 0
    while left > 0:
        text = sources[number % len(sources)].read_text(encoding="utf-8", errors="replace")
        for line in text.encode("ascii", "replace").decode().splitlines():
            found = len(words_of(line))
            if found > left:
                line, found = " ".join(words_of(line)[:left]), left
            files[number % SEEDS].write(line + "\n")
            left -= found
            if left == 0:
                break
        number += 1
    for file in files:
        file.close()
    done.touch()
    return folder


WORKS = {
    work.name: work
    for work in (
        Work("map", "Map, Filter, Map", 4 * M, 1 * M, _map),
        Work("group", "GroupByKey, 100 k keys, sum of each group", 4 * M, 1 * M, _group),
        Work("count", "Count.PerElement, 100 k keys", 4 * M, 1 * M, _count),
        Work("reshuffle", "Reshuffle", 4 * M, 250_000, _reshuffle),
        Work("cogroup", "CoGroupByKey of two halves, 100 k keys", 4 * M, 500_000, _cogroup),
        Work("window", "mean per key in sliding windows (each element in 3), 1 k keys", 1 * M, 250_000, _window),
        Work("state", "stateful DoFn, one read and write an element, 100 k keys", 1 * M, 20_000, _state),
        Work("side", "look-up in a side input of 100 k entries", 4 * M, 1 * M, _side),
        Work("words", "word count of Python's standard library (elements are words)", 4 * M, 1 * M, _words),
        Work("tiny", "10 elements, one Map", 0, 0, _tiny),
        Work("tiny-group", "10 elements, one GroupByKey", 0, 0, _tiny_group),
    )
}
