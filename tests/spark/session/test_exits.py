"""The daemon notes how its workers end."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

_DAEMON = """
import json, os, signal, sys, time
from arcbeam.spark.session import exits
signals = exits.Signals()
signals.signal(signals.SIGCHLD, signals.SIG_IGN)
os.fork = exits.forking(os.fork)
pids = []
for number, how in enumerate(sys.argv[2:]):
    pid = os.fork()
    if not pid:
        signals.signal(signals.SIGCHLD, signals.SIG_DFL)
        assert exits.are_noted()
        if how != "nameless":
            exits.name_file(os.path.join(sys.argv[1], str(number)))
        if how.startswith("-"):
            os.kill(os.getpid(), int(how[1:]))
        os._exit(0 if how == "nameless" else int(how))
    pids.append(pid)
deadline = time.monotonic() + 20
while exits._children and time.monotonic() < deadline:
    time.sleep(0.01)
print(json.dumps(len(exits._children)))
"""


def test_exit_codes_and_signals_are_noted(tmp_path: Path) -> None:
    ways = ["7", "0", f"-{signal.SIGKILL:d}", "nameless", f"-{signal.SIGSEGV:d}"]
    done = subprocess.run(
        [sys.executable, "-c", _DAEMON, str(tmp_path), *ways], capture_output=True, text=True, timeout=60, check=True
    )
    assert json.loads(done.stdout) == 0, "some children were not noted"
    noted = {path.name: path.read_text() for path in tmp_path.iterdir()}
    assert noted == {"0.exit": "7", "2.exit": "-9", "4.exit": "-11"}


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_missing_folder_is_ignored(tmp_path: Path) -> None:
    arguments = [sys.executable, "-c", _DAEMON, str(tmp_path / "gone"), "7"]
    done = subprocess.run(arguments, capture_output=True, text=True, timeout=60, check=True)
    assert done.stderr == ""


_HANDLER = """
import os, signal, sys
from arcbeam.spark.session import exits

os.fork = exits.forking(os.fork)

def end_child(code):
    pid = os.fork()
    if not pid:
        exits.name_file(os.path.join(sys.argv[1], str(code)))
        os._exit(code)
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)

def handle():
    exits._reap(signal.SIGCHLD, None)
"""

_EACH_STEP = """
at = 0

def trace(frame, event, argument):
    global left
    frame.f_trace_opcodes = True
    if event == "opcode":
        left -= 1
        if left == 0:
            sys.settrace(None)
            handle()
    return trace if frame.f_code.co_filename == exits.__file__ else None

left = 0
while left <= 0:
    at += 1
    codes = (2 * at % 250 + 1, (2 * at + 1) % 250 + 1)
    for code in codes:
        end_child(code)
    left = at
    sys.settrace(trace)
    handle()
    sys.settrace(None)
    for code in codes:
        name = os.path.join(sys.argv[1], str(code)) + exits.SUFFIX
        with open(name) as file:
            assert file.read() == str(code)
        os.remove(name)
assert not exits._children and not exits._early
print(at)
"""

_ALL_ACTS = """
end_child(7)
acts = []
sys.addaudithook(lambda event, arguments: acts.append((event, arguments)))
handle()
print([event for event, _ in acts if event == "import"], [args[1] for event, args in acts if event == "open"])
"""


def _handled(tmp_path: Path, script: str) -> str:
    arguments = [sys.executable, "-c", _HANDLER + script, str(tmp_path)]
    return subprocess.run(arguments, stdout=subprocess.PIPE, text=True, timeout=60, check=True).stdout


def test_handler_may_be_interrupted_anywhere(tmp_path: Path) -> None:
    assert int(_handled(tmp_path, _EACH_STEP)) > 50


def test_handler_imports_nothing_and_buffers_nothing(tmp_path: Path) -> None:
    assert _handled(tmp_path, _ALL_ACTS) == "[] [None]\n", "a file object, or an import, is not safe in a handler"
