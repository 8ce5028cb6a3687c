"""Bundles with many keys in SDK workers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import apache_beam as beam
import pytest
from apache_beam.coders import BytesCoder, FastPrimitivesCoder, VarIntCoder
from apache_beam.portability.api import beam_runner_api_pb2 as runner_pb
from apache_beam.transforms.timeutil import TimeDomain
from apache_beam.transforms.userstate import BagStateSpec, TimerSpec, on_timer

from arcbeam.errors import ArcbeamError
from arcbeam.fnapi.stage import keybatch
from arcbeam.fnapi.stage.keybatch import KeyBatch
from tests.fnapi.stage.inworkers import InWorkers, worker_service
from tests.harness.drive import Collect
from tests.harness.streaming.microbatches import InMicroBatches

PICKLED = {"key": runner_pb.Coder(spec=runner_pb.FunctionSpec(urn="beam:coder:pickled_python:v1"))}
FAST = FastPrimitivesCoder()


@pytest.fixture(scope="module")
def service() -> Iterator[str]:
    with worker_service() as address:
        yield address


def any_keys() -> KeyBatch:
    """Return a lot whose keys may have any type: they are bytes here."""
    return KeyBatch(BytesCoder(), PICKLED, "key")


@pytest.mark.parametrize("key", [1, -1, "ab", b"ab", "", None, (), (1, "a"), ((b"b", None), 300)], ids=repr)
def test_keys_that_equal_no_other_share_a_bundle(key: Any) -> None:
    keys = any_keys()
    keys.add(b"", FAST.encode("other"))
    assert keys.has_room(b"", FAST.encode(key))


@pytest.mark.parametrize("key", [True, 1.0, 2**70, (1, False), ((1.5,),), frozenset([1])], ids=repr)
def test_key_that_may_equal_another_is_alone(key: Any) -> None:
    keys = any_keys()
    keys.add(b"", FAST.encode(1))
    assert not keys.has_room(b"", FAST.encode(key))
    keys.clear()
    assert keys.has_room(b"", FAST.encode(key))
    keys.add(b"", FAST.encode(key))
    assert not keys.has_room(b"", FAST.encode("other"))
    assert keys.has_room(b"", FAST.encode(key)), "it is there already"


def test_keys_after_one_that_was_alone_share_a_bundle() -> None:
    """A bundle is opened for each key that has no room: how many are there?"""

    def bundles(*added: Any) -> int:
        keys, count = any_keys(), 1
        for key in map(FAST.encode, added):
            if not keys.has_room(b"", key):
                keys.clear()
                count += 1
            keys.add(b"", key)
        return count

    assert bundles("a", "b", "c") == 1
    assert bundles(1.0, "a", "b", "c") == 2
    assert bundles("a", "b", 1.0, "c", "d", "e") == 3
    assert bundles(True, 1.0, "a", "b", True, "c", "d") == 5
    assert bundles(1.0, 1.0, "a", 1.0) == 3


def test_key_that_is_cut_short_is_alone() -> None:
    keys = any_keys()
    keys.add(b"", FAST.encode(1))
    assert not keys.has_room(b"", b"\6\2\1\1\4\7a")


def test_number_of_keys_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keybatch, "_KEYS_MAX", 2)
    keys = KeyBatch(VarIntCoder(), {"key": runner_pb.Coder()}, "key")
    for n in (1, 2):
        assert keys.has_room(b"%d" % n, n)
        keys.add(b"%d" % n, n)
    assert keys.has_room(b"1", 1)
    assert not keys.has_room(b"3", 3)


def test_key_of_worker_is_found_by_its_nested_encoding() -> None:
    keys = any_keys()
    keys.add(b"one", b"\4a")
    assert keys.key_of(b"\2\4a") == b"one"
    assert keys.key_of(b"\2\4b") == b"one", "an encoding that is not deterministic"
    keys.add(b"two", b"\4c")
    with pytest.raises(ArcbeamError, match="a key that is not in its bundle"):
        keys.key_of(b"\2\4b")


class Counting(beam.DoFn):
    """Counts the elements of a key until a time."""

    BAG = BagStateSpec("bag", VarIntCoder())
    END = TimerSpec("end", TimeDomain.WATERMARK)

    def process(
        self, element: Any, bag: Any = beam.DoFn.StateParam(BAG), end: Any = beam.DoFn.TimerParam(END)
    ) -> Iterator[Any]:
        bag.add(element[1])
        end.set(7)
        yield element[0], "element", sorted(bag.read())

    @on_timer(END)
    def on_end(self, key: Any = beam.DoFn.KeyParam, bag: Any = beam.DoFn.StateParam(BAG)) -> Iterator[Any]:
        yield key, "end", sorted(bag.read())
        bag.clear()


def _counted(p: Any, elements: Any) -> None:
    arrived = p | beam.Create(elements, reshuffle=False) | beam.Map(lambda e: e).with_output_types(tuple[Any, Any])
    _ = arrived | beam.ParDo(Counting()) | Collect()


def test_keys_that_equal_each_other_have_their_own_state(service: str) -> None:
    keys = [1, True, 1.0, (1, "a"), (True, "a"), "1"]
    elements = [(key, n) for n in range(3) for key in keys]
    with InMicroBatches(None) as expected:
        _counted(expected, elements)
    with InWorkers(service) as p:
        _counted(p, elements)
    assert sorted(map(repr, p.values())) == sorted(map(repr, expected.values()))
    assert len(p.values()) == 3 * len(keys) + len(keys)


def test_many_keys_share_bundles(service: str) -> None:
    with InWorkers(service) as p:
        _counted(p, [(f"key {n % 100}", n) for n in range(200)])
    assert len(p.values()) == 300
    (report,) = (each for each in p.reports if each.elements_in >= 200 and each.bundles)
    assert report.bundles == 2, "one for elements, one for timers"
