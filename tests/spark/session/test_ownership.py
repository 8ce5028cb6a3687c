"""A forked child leaves its parent's session to the parent."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from arcbeam.spark.session import ownership

_PIPELINES = """
import multiprocessing, os, sys

def run(who, *options):
    import apache_beam as beam
    from apache_beam.testing.util import assert_that, equal_to
    from arcbeam.errors import ArcbeamError
    try:
        with beam.Pipeline(argv=["--runner=arcbeam.ArcbeamRunner", *options]) as p:
            assert_that(p | beam.Create([1, 2, 3]) | beam.CombineGlobally(sum), equal_to([6]))
        print(who, "is done", flush=True)
    except ArcbeamError as error:
        print(who, "gets", type(error).__name__, "of a fork" if "fork" in str(error) else error, flush=True)

def fork(target, *arguments):
    child = multiprocessing.get_context("fork").Process(target=target, args=arguments)
    child.start()
    child.join()
    assert child.exitcode == 0, child.exitcode
"""

_OF_ARCBEAM = """
from pyspark.sql import SparkSession
LOCAL = "--spark_master=local[1]"
run("the parent", LOCAL)
session = SparkSession._instantiatedSession
fork(run, "the child", LOCAL)
run("the parent", LOCAL)
if not (pid := os.fork()):
    # This one ends as a script does, with Python's own clean-up.
    assert SparkSession._instantiatedSession is None
    sys.exit()
assert os.waitpid(pid, 0)[1] == 0
run("the parent", LOCAL)
assert SparkSession._instantiatedSession is session
"""

_OF_USER = """
from pyspark.sql import SparkSession
session = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
fork(run, "a child without arcbeam before")
import arcbeam.spark.session.ownership
fork(run, "a child")
print("the parent counts", session.range(3).count(), flush=True)
"""


def _printed(code: str) -> list[str]:
    done = subprocess.run([sys.executable, "-c", _PIPELINES + code], capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr[-5000:]
    return done.stdout.splitlines()


@pytest.mark.contract("API-01")
def test_forked_child_opens_its_own_session() -> None:
    assert _printed(_OF_ARCBEAM) == [
        "the parent is done",
        "the child is done",
        "the parent is done",
        "the parent is done",
    ]


@pytest.mark.long
@pytest.mark.contract("API-01")
def test_forked_child_refuses_users_session() -> None:
    assert _printed(_OF_USER) == [
        "a child without arcbeam before gets SetupError of a fork",
        "a child gets SetupError of a fork",
        "the parent counts 3",
    ]


@pytest.mark.long
@pytest.mark.contract("API-01")
def test_forked_child_refuses_connect_session() -> None:
    remote = '\nREMOTE = "--spark_remote=local[1]"\nrun("the parent", REMOTE)\nfork(run, "a child", REMOTE)\n'
    again = 'run("the parent", REMOTE)\n'
    assert _printed(remote + again) == [
        "the parent is done",
        "a child gets SetupError of a fork",
        "the parent is done",
    ]


def test_process_of_parent_is_recognized() -> None:
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE) as process:
        assert not ownership._is_of_another_process(process)
        if not (pid := os.fork()):
            os._exit(7 if ownership._is_of_another_process(process) else 8)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7
    assert not ownership._is_of_another_process(process), "it has ended"
