"""Digests of pickles: what a process adds does not count; everything else does."""

from __future__ import annotations

import datetime
import pickle
import random
import uuid
from collections.abc import Callable
from typing import Any

import pytest
from apache_beam.coders import FastPrimitivesCoder, PickleCoder, TimestampCoder
from apache_beam.coders.coders import LengthPrefixCoder
from apache_beam.internal import pickler
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.utils.timestamp import Timestamp

from arcbeam.translate.identifying.pickles import digest

NOW = 1.8e9


def of(value: Any, now: float = NOW) -> str:
    return digest(pickler.dumps(value), now)


def written(body: str) -> Callable[[int], int]:
    """Make a function that another module cannot import."""
    scope: dict[str, Any] = {"__name__": "__main__"}
    exec(compile(body, "script.py", "exec"), scope)
    found: Callable[[int], int] = scope["f"]
    return found


@pytest.mark.parametrize(
    "value",
    [
        lambda now: now,
        int,
        lambda now: now * 1000,
        lambda now: int(now * 1e9),
        Timestamp,
        lambda now: datetime.datetime.fromtimestamp(now),
        lambda now: FastPrimitivesCoder().encode((Timestamp(now), Timestamp(micros=int(now * 1e6) + 70_000), 1)),
        lambda now: TimestampCoder().encode(Timestamp(now)),
        lambda now: [uuid.uuid4(), str(uuid.uuid4()), uuid.uuid4().hex],
        lambda now: object().__repr__(),
        lambda now: PipelineOptions([f"--job_name=job{now:.0f}"]),
    ],
)
def test_instant_or_random_id_does_not_count(value: Callable[[float], Any]) -> None:
    assert of(value(NOW)) == of(value(NOW + 3), NOW + 3)


class Submission:
    """Pickles as the options of a job, whose name has this number of characters."""

    def __init__(self, characters: int) -> None:
        self.characters = characters

    def __reduce__(self) -> tuple[Any, ...]:
        return PipelineOptions, ([f"--job_name={'j' * self.characters}"],)


def test_length_of_an_element_that_does_not_count_does_not_count() -> None:
    encoded = [LengthPrefixCoder(PickleCoder()).encode(Submission(characters)) for characters in range(1, 60)]
    assert {127, 128} < {len(PickleCoder().encode(Submission(characters))) for characters in range(1, 60)}
    assert len({digest(each, NOW) for each in encoded}) == 1


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (NOW, NOW + 10 * 86_400),
        (17.5, 17.25),
        ("/out/2027-01-15", "/out/2027-01-16"),
        (b"a", b"b"),
        ([1, 2], [2, 1]),
        ((1, 2), [1, 2]),
        (True, 1),
        (1, 1.0),
        ({1: 2}, {1: 3}),
        ({"a"}, {"b"}),
        (int, str),
        (Timestamp(5), Timestamp(6)),
        (datetime.datetime(2020, 1, 1), datetime.datetime(2020, 1, 2)),
        (pickle.dumps("x"), pickle.dumps("y")),
    ],
)
def test_other_value_counts(one: object, other: object) -> None:
    assert of(one) != of(other)
    assert of([one, one]) != of([one, other])


def test_code_counts_and_its_place_does_not() -> None:
    plain = written("def f(n): return n + 1")
    assert of(plain) == of(written("\n\n# moved\ndef f(n): return n + 1"))
    assert of(plain) != of(written("def f(n): return n + 2"))
    assert of(plain) != of(written("def f(n): return n - 1"))
    recursive = "def f(n): return n and f(n - {})"
    assert of(written(recursive.format(1))) == of(written(recursive.format(1)))
    assert of(written(recursive.format(1))) != of(written(recursive.format(2)))
    helper = "def g(n): return n * {}\ndef f(n): return g(n)"
    assert of(written(helper.format(1))) != of(written(helper.format(2)))
    closed = "def make(k):\n    return lambda n: n + k\nf = make({})"
    assert of(written(closed.format(1))) != of(written(closed.format(2)))
    method = "class F:\n    def __call__(self, n): return n + {}\nf = F()"
    assert of(written(method.format(1))) == of(written(method.format(1))), "a class has a random id in its pickle"
    assert of(written(method.format(1))) != of(written(method.format(2)))


def test_order_of_sets_and_dicts_does_not_count() -> None:
    assert of({"a": 1, "b": {"x", "y"}}) == of({"b": {"y", "x"}, "a": 1})
    assert of(frozenset(range(9))) == of(frozenset(reversed(range(9))))


def test_credentials_in_urls_do_not_count() -> None:
    assert of("s3://key:old@bucket/out") == of("s3://key:new@bucket/out") != of("s3://key:new@bucket/other")


@pytest.mark.parametrize(
    "data", [b"", b"\x80\x05", b"\x80\x05}", b"Qlpo", b"eJ", b"plain", b"\x80\x04.", b"\xff", b"a\xff\xff", bytes(5000)]
)
def test_damaged_or_plain_payload_counts_as_it_is(data: bytes) -> None:
    assert digest(data, NOW) == digest(data, NOW) != digest(data + b"x", NOW)


def test_payload_of_another_language_counts_as_it_is() -> None:
    """Such bytes may begin like a pickle, and then are not one."""
    chance = random.Random(0)
    payloads = [
        bytes([0x80, chance.randrange(2, 6), *(chance.randrange(256) for _ in range(chance.randrange(60)))])
        for _ in range(20_000)
    ]
    digests = [digest(payload, NOW) for payload in payloads]
    assert digests == [digest(payload, NOW) for payload in payloads]
    assert len(set(digests)) > 0.99 * len(set(payloads))
