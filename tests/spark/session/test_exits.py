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
