"""What a script's `__main__` has exists in the workers."""

from __future__ import annotations

import pickle
import subprocess
import sys
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import apache_beam as beam
import pytest
from apache_beam.internal import cloudpickle_pickler
from apache_beam.internal.cloudpickle import cloudpickle

from arcbeam.harness.encoding.script import mainmodule, space
from arcbeam.harness.encoding.script.mainmodule import MainModule
from arcbeam.harness.encoding.script.names import referred_to, words_in
from arcbeam.translate.proto import pipeline_proto

HERE = Path(__file__).parent

RUNNER = ("--runner=arcbeam.ArcbeamRunner", "--spark_master=local[2]")

Script = Callable[[str], Any]
"""Runs source code as a script, and returns its module."""


def _run(script: str, *arguments: str) -> str:
    command = [sys.executable, str(HERE / script), *arguments, *RUNNER]
    done = subprocess.run(command, capture_output=True, text=True, timeout=900)
    assert not done.returncode, done.stderr[-5000:]
    return done.stdout


@pytest.mark.long
@pytest.mark.contract("API-01", "API-05")
@pytest.mark.parametrize("session", ["--no_save_main_session", "--save_main_session"])
def test_script_with_own_classes(session: str) -> None:
    assert _run("main_classes.py", session) == "all found\n"


@pytest.mark.contract("API-05")
@pytest.mark.parametrize(
    "method", ["main", *(pytest.param(method, marks=pytest.mark.long) for method in ("spawn", "forkserver"))]
)
def test_script_with_objects_pickled_by_name(method: str) -> None:
    held, used, copied, decorated, found = _run("main_names.py", method).splitlines()
    assert found == "all found"
    assert "InvalidPipelineError: 'BROKEN' of the script cannot be sent to the workers: " in held
    assert "cannot pickle 'generator' object" in held
    assert "'JOURNAL' of the script was not sent to the workers: TypeError: cannot pickle 'generator' object" in used
    assert "'number_of' uses values that may change" in copied
    assert "'tripled' was made by another function, such as a decorator" in decorated


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Iterator[Script]:
    """Runs source code in another `__main__`."""
    for name, original in vars(cloudpickle).copy().items():
        monkeypatch.setattr(cloudpickle, name, original)
    monkeypatch.setattr(space, "_current", None)
    monkeypatch.setattr(mainmodule, "_jobs", mainmodule._jobs.copy())

    def run(source: str, name: str = "__main__") -> Any:
        module = types.ModuleType("__main__")
        monkeypatch.setitem(sys.modules, "__main__", module)
        monkeypatch.setitem(sys.modules, "__mp_main__", module)
        vars(module)["__name__"] = name
        exec(source, vars(module))
        return module

    yield run
    MainModule().install()


def _there(sent: MainModule) -> Any:
    """Enter a worker's `__main__` that was sent, and return it."""
    pickle.loads(pickle.dumps(sent)).install()
    return sys.modules["__main__"]


def _sent(module: MainModule) -> set[str]:
    return {of.name for of in module.names.sent}


def test_classes_are_pickled_and_found_by_name(script: Script) -> None:
    main = script("class Outer:\n    class Inner: pass\nfrom fractions import Fraction\nvalue = 1")
    sent = MainModule.here()
    assert _sent(sent) == {"Outer"}, "importable objects, and others than classes, are not sent"
    elements = pickle.dumps([main.Outer(), main.Outer.Inner()])
    there = _there(sent)
    found = pickle.loads(elements)
    assert [type(v) for v in found] == [there.Outer, there.Outer.Inner]
    assert pickle.loads(pickle.dumps(found[1]))


BY_NAME = """
import enum, functools, typing

class Missing:
    def __init__(self): self.text = "missing"
    def __reduce__(self): return "MISSING"

MISSING = Missing()
TABLE = {"a": 1}
UserId = typing.NewType("UserId", int)
Parameters = typing.ParamSpec("Parameters")
T = typing.TypeVar("T")

@functools.lru_cache(maxsize=7)
def looked_up(key): return TABLE[key]

def twice(x): return 2 * x
def four_times(x): return twice(twice(x))
def even(n): return n == 0 or odd(n - 1)
def odd(n): return n != 0 and even(n - 1)

class Cached:
    @functools.cache
    def number(self): return four_times(2)
"""
NAMES = ("MISSING", "looked_up", "twice", "four_times", "even", "UserId", "Parameters")


def test_what_pickles_by_name_is_one_object(script: Script) -> None:
    main = script(BY_NAME)
    elements = pickle.dumps([getattr(main, name) for name in NAMES])
    there = _there(MainModule.here())
    found = dict(zip(NAMES, pickle.loads(elements), strict=True))
    assert all(getattr(there, name) is value for name, value in found.items())
    assert all(value is not getattr(main, name) for name, value in found.items())
    assert pickle.loads(pickle.dumps(found)) == found
    assert found["MISSING"].text == "missing"
    assert (found["looked_up"]("a"), found["looked_up"].cache_info().maxsize) == (1, 7)
    assert (found["four_times"](3), found["even"](10), there.Cached().number()) == (12, True, 8)
    assert (found["UserId"].__supertype__, found["Parameters"].__name__) == (int, "Parameters")


def test_functions_by_value_are_those_found_by_name(script: Script) -> None:
    main = script(BY_NAME + "rules = [twice, four_times, odd]\ndef make(n): return rules[n], T, Cached")
    payload = cloudpickle_pickler.dumps(main.make)
    there = _there(MainModule.here())
    for make in (cloudpickle_pickler.loads(payload), cloudpickle_pickler.loads(payload)):
        for n, name in enumerate(["twice", "four_times", "odd"]):
            function, variable, cached = make(n)
            assert function is getattr(there, name)
            assert (variable, cached) == (there.T, there.Cached)
            assert pickle.loads(pickle.dumps((function, cached())))[0] is function


def test_functions_that_differ_stay_apart(script: Script) -> None:
    main = script(
        "def made(n): return made_before(n)\ndef made_before(n): return n + 1\n"
        "factor = 2\ndef scaled(x): return factor * x"
    )
    earlier = [cloudpickle_pickler.dumps([main.made, main.scaled])]
    exec("factor = 3", vars(main))
    earlier.append(cloudpickle_pickler.dumps([main.made, main.scaled]))
    exec("def made_before(n): return n + 2", vars(main))
    earlier.append(cloudpickle_pickler.dumps([main.made, main.scaled]))
    there = _there(MainModule.here())
    found = [[f(10) for f in cloudpickle_pickler.loads(data)] for data in earlier]
    assert found == [[11, 20], [11, 30], [12, 30]]
    assert [there.made(10), there.scaled(10)] == [12, 30]


@pytest.mark.parametrize(
    "source",
    [
        "state = []\ndef add(x): state.append(x)\ndef size(): return len(state)",
        "count = 0\ndef add(x):\n    global count\n    count += x\ndef size(): return count",
        "def add(x): add.total = getattr(add, 'total', 0) + 1\nadd.total = 0\ndef size(): return add.total",
        "def add(x, into=[]): into.append(x)\ndef size(): return len(add.__defaults__[0])",
        "count = 0\ndef add(x): globals()['count'] = x\ndef size(): return globals().get('count', 0)",
    ],
)
def test_functions_with_state_are_copied_with_it(script: Script, source: str) -> None:
    main = script(source + "\ndef both(x):\n    add(x)\n    return size()")
    payload = cloudpickle_pickler.dumps(main.both)
    _there(MainModule.here())
    one, other = cloudpickle_pickler.loads(payload), cloudpickle_pickler.loads(payload)
    assert (one(1), other(1)) == (1, 1)


def test_jobs_share_no_objects(script: Script) -> None:
    main = script(
        "seen = set()\nfactor = 2\nclass Scale:\n    def scaled(self, x):\n        seen.add(x)\n"
        "        return len(seen), x * factor"
    )
    first, payload = MainModule.here(), cloudpickle_pickler.dumps(main.Scale())
    main.factor = 3
    second = MainModule.here()
    first.install()
    one = cloudpickle_pickler.loads(payload)
    assert one.scaled(1) == (1, 2)
    second.install()
    other = cloudpickle_pickler.loads(payload)
    assert other.scaled(2) == (1, 6)
    assert type(one) is not type(other)
    first.install()
    assert one.scaled(3) == (2, 6)
    assert type(pickle.loads(pickle.dumps(one))) is type(one)
    assert type(cloudpickle_pickler.loads(payload)) is type(one)
    MainModule().install()
    assert not hasattr(sys.modules["__main__"], "Scale")


def test_script_of_spawned_child_is_main(script: Script) -> None:
    main = script(BY_NAME, name="__mp_main__")
    copy = types.ModuleType("__mp_main__")
    vars(copy).update(vars(main))
    sys.modules["__main__"] = sys.modules["__mp_main__"] = copy
    pipeline_proto(beam.Pipeline())
    main.TABLE["a"] = 5
    elements = pickle.dumps([main.twice, main.looked_up, main.Cached()])
    there = _there(MainModule.here())
    twice, looked_up, cached = pickle.loads(elements)
    assert (twice is there.twice, looked_up("a"), type(cached)) == (True, 5, there.Cached)


def test_registry_of_classes_may_refer_to_its_base(script: Script) -> None:
    script(
        "class Base:\n    kinds = {}\n    def __init_subclass__(cls): KINDS[cls.__name__] = cls\nKINDS = Base.kinds\n"
        "class Sub(Base):\n    pass\nBase.first = FIRST = Sub()"
    )
    there = _there(MainModule.here())
    assert there.Base.kinds == {"Sub": there.Sub}
    assert type(there.Base.first) is there.Sub


def test_only_mentioned_functions_are_sent(script: Script) -> None:
    main = script(BY_NAME + "password = 'secret'\ndef upload(): return password\n")
    pipeline = b"\n\x07" + cloudpickle_pickler.dumps([pickle.dumps(main.four_times)]) + b"\x12\x01"
    words = words_in(pipeline)
    assert words is not None
    assert _sent(MainModule.here(words)) == {"Missing", "Cached", "four_times", "twice"}
    assert referred_to(["four_times", "twice"], pipeline) == ["four_times"]


@pytest.mark.parametrize("protocol", range(2, 6))
def test_names_are_found_in_pickles_of_each_protocol(script: Script, protocol: int) -> None:
    main = script(BY_NAME)
    data = pickle.dumps([main.looked_up, main.MISSING, main.twice], protocol)
    pipeline = cloudpickle_pickler.dumps([data], use_zlib=protocol % 2 == 0)
    assert referred_to(["MISSING", "looked_up", "twice", "even"], pipeline) == ["MISSING", "looked_up", "twice"]
    assert {"MISSING", "looked_up", "twice"} <= (words_in(pipeline) or set())


def test_long_pickles_are_not_searched(script: Script) -> None:
    assert words_in(cloudpickle_pickler.dumps(__import__("random").randbytes(2 << 20))) is None


def test_unsendable_global_is_missing_until_used(script: Script) -> None:
    script("import threading\nnumbers = (i for i in range(3))\ndef some(): return numbers\ndef other(): return 1")
    there = _there(MainModule.here())
    assert there.other() == 1
    with pytest.raises(NameError):
        there.some()
    assert "cannot pickle 'generator' object" in mainmodule.reason_missing("numbers")


def test_unpicklable_class_is_omitted(script: Script) -> None:
    script(
        "connections = (i for i in range(3))\nclass Bad:\n    held = connections\n"
        "class Good: pass\nclass Sub(Bad): pass"
    )
    sent = MainModule.here()
    assert _sent(sent) == {"Good"}
    unsent = dict(sent.names.unsent)
    assert unsent["Bad"].startswith("it holds 'connections': TypeError: ")
    assert unsent["Sub"].startswith("it holds 'Bad': it holds 'connections': ")


def test_large_values_are_omitted(script: Script, caplog: pytest.LogCaptureFixture) -> None:
    script("data = __import__('random').randbytes(3 << 20)\nclass Big:\n    held = data\ndef size(): return len(data)")
    sent = MainModule.here()
    assert _sent(sent) == {"size"}
    assert dict(sent.names.unsent)["data"] == "it has more than 1,048,576 bytes"
    assert "'Big' of the script is not sent" in caplog.text
