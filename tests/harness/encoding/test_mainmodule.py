"""Classes of a script's `__main__` exist in the workers."""

from __future__ import annotations

import pickle
import subprocess
import sys
import threading
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from arcbeam.harness.encoding.mainmodule import MainClasses

SCRIPT = Path(__file__).with_name("main_classes.py")


@pytest.mark.long
@pytest.mark.contract("API-01", "API-05")
@pytest.mark.parametrize("session", ["--no_save_main_session", "--save_main_session"])
def test_script_with_own_classes(session: str) -> None:
    command = [sys.executable, str(SCRIPT), "--runner=arcbeam.ArcbeamRunner", "--spark_master=local[2]", session]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.stdout == "all found\n", done.stderr[-5000:]


@pytest.fixture
def main(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A separate `__main__`; installed classes are removed afterwards."""
    module = types.ModuleType("__main__")
    monkeypatch.setitem(sys.modules, "__main__", module)
    yield module
    MainClasses().install()


def _defined(main: Any, source: str) -> MainClasses:
    exec(source, vars(main))
    return MainClasses.here()


def test_classes_are_pickled_and_found_by_name(main: Any) -> None:
    classes = _defined(main, "class Outer:\n    class Inner: pass\nfrom fractions import Fraction\nvalue = 1")
    assert [name for name, _ in classes.classes] == ["Outer"], (
        "importable objects, and others than classes, are not sent"
    )
    sent = pickle.dumps([main.Outer(), main.Outer.Inner()])
    there = types.ModuleType("__main__")
    sys.modules["__main__"] = there
    pickle.loads(pickle.dumps(classes)).install()
    found = pickle.loads(sent)
    assert [type(v) for v in found] == [there.Outer, there.Outer.Inner]
    assert pickle.loads(pickle.dumps(found[1]))


def test_next_job_does_not_see_classes(main: Any) -> None:
    classes = _defined(main, "class Mine: pass\nclass Other: pass")
    main.Mine = before = object()
    del main.Other
    classes.install()
    assert main.Mine is not before
    MainClasses().install()
    assert main.Mine is before
    assert not hasattr(main, "Other")


def test_unpicklable_class_is_omitted(main: Any) -> None:
    main.connection = threading.Event()
    main.connections = (i for i in range(3))
    classes = _defined(main, "class Bad:\n    held = connections\nclass Good: pass")
    assert [name for name, _ in classes.classes] == ["Good"]


def test_class_with_much_data_is_omitted(main: Any) -> None:
    main.data = __import__("random").randbytes(3 << 20)
    assert _defined(main, "class Big:\n    held = data").classes == ()
