"""Keeps in files what the SDK's tests keep in their process's memory, so that all processes share it.

The SDK's tests count and collect in attributes of modules, which works if workers are threads. Here the same lines of
the tests use a file instead. Owns these replacements. Must not know suites.
"""

from __future__ import annotations

import contextlib
import importlib
import itertools
import os
import pickle
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import apache_beam as beam
from apache_beam.transforms import ptransform, util_test

_tokens = itertools.count(1)


class Records:
    """Values in a file: any process appends with one write each, and reads them in order."""

    def __init__(self, path: Path) -> None:
        self._path = str(path)

    def append(self, value: Any) -> None:
        file = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        try:
            os.write(file, pickle.dumps(value))
        finally:
            os.close(file)

    def __iter__(self) -> Iterator[Any]:
        if os.path.exists(self._path):
            with open(self._path, "rb") as file, contextlib.suppress(EOFError):
                while True:
                    yield pickle.load(file)


class Keeping(beam.DoFn):  # type: ignore[misc]  # Beam is untyped
    """Records its input."""

    def __init__(self, records: Records) -> None:
        self._records = records

    def process(self, element: Any) -> None:
        self._records.append(element)


class Counts:
    """Numbers by name; 0 until one is set. Only one process may add to a name, as in a shard."""

    def __init__(self, records: Records) -> None:
        self._records = records

    def __getitem__(self, name: str) -> int:
        counts: dict[str, int] = dict(self._records)
        return counts.get(name, 0)

    def __setitem__(self, name: str, value: int) -> None:
        self._records.append((name, value))


class _CountingModule:
    """A module in which the attribute that a test counts in is one of `Counts`."""

    def __init__(self, name: str, attribute: str, counts: Counts) -> None:
        vars(self).update(_name=name, _attribute=attribute, _counts=counts)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return self._counts[name] if name == self._attribute else getattr(importlib.import_module(self._name), name)

    def __setattr__(self, name: str, value: Any) -> None:
        self._counts[name] = value

    def __reduce__(self) -> Any:
        return type(self), (self._name, self._attribute, self._counts)


def counting_waits(folder: Path) -> contextlib.AbstractContextManager[Any]:
    """While open, `WaitOnTest` counts in a file."""
    counts = Counts(Records(folder / "waits"))
    stand_in = _CountingModule("apache_beam", "_WAIT_ON_TEST_COUNTER", counts)
    return mock.patch.object(util_test, "beam", stand_in)


class _Importing:
    """Replaces `importlib`: `TeeTest` imports its own module, with counts in a file."""

    def __init__(self, counts: Counts) -> None:
        self._counts = counts

    def import_module(self, name: str) -> Any:
        return SimpleNamespace(TeeTest=SimpleNamespace(_side_effects=self._counts))


def counting_side_effects(folder: Path) -> contextlib.AbstractContextManager[Any]:
    """While open, `TeeTest` counts in a file."""
    return mock.patch.object(util_test, "importlib", _Importing(Counts(Records(folder / "side effects"))))


class _Elements(list[Any]):
    """A list of the values in a file; appending adds to the file."""

    def __init__(self, records: Records) -> None:
        super().__init__(records)
        self._records = records

    def append(self, value: Any) -> None:
        self._records.append(value)


def collecting(folder: Path) -> contextlib.AbstractContextManager[Any]:
    """While open, the results of `values | transform` are collected in a file."""

    class Result(_Result):
        place = folder

    return mock.patch.object(ptransform, "_MaterializedResult", Result)


class _Result:
    """Replaces the SDK's list of a collection's elements, which exists in one process only."""

    place: Path

    def __init__(self, pipeline_id: int, result_id: int) -> None:
        self._result_id = result_id
        self._records = Records(self.place / f"result {next(_tokens)}")

    @property
    def elements(self) -> _Elements:
        return _Elements(self._records)

    def __reduce__(self) -> Any:
        return _Collected, (self._records, self._result_id)


class _Collected:
    """A `_Result` in another process."""

    def __init__(self, records: Records, result_id: int) -> None:
        self._result_id = result_id
        self.elements = _Elements(records)
