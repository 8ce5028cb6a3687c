"""The recipe with `spark-submit`: an example runs on Spark's own cluster, with the settings that Spark was given."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pyspark
import pytest

from examples import wordcount
from tests.chaos.standalone import standalone
from tests.docs.blocks import ROOT, blocks_of

_PAGE = ROOT / "docs" / "howto" / "submit.md"
_SECONDS = 600.0


def _command() -> str:
    """Return the command of the page that is for a standalone cluster."""
    (found,) = (b.code for b in blocks_of(_PAGE) if b.language == "sh" and "spark-submit --master spark://" in b.code)
    return found[found.index("spark-submit --master") :]


@pytest.mark.contract("API-01")
@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has all of 127.0.0.0/8")
def test_word_count_runs_on_standalone_cluster(tmp_path: Path) -> None:
    text, output = tmp_path / "text of a user", tmp_path / "counts of words"
    text.mkdir()
    (text / "a.txt").write_text("to be or not to be\n", encoding="utf-8")
    with standalone(tmp_path, hosts=1, cores=1) as cluster:
        command = _command()
        replacements = {
            r"spark-submit(?= --master)": shlex.quote(str(Path(pyspark.__file__).parent / "bin" / "spark-submit")),
            r"spark://\S+": cluster.url,
            r"spark\.executor\.memory=\S+": "spark.executor.memory=512m",
            r"'/shared/text/\*\.txt'": shlex.quote(f"{text}/*.txt"),
            r"--output=\S+": f"--output={shlex.quote(str(output))}",
            r"--arcbeam_temp=\S+": f"--arcbeam_temp={shlex.quote(str(tmp_path / 'temp'))}",
        }
        for pattern, replacement in replacements.items():
            command, count = re.subn(pattern, lambda _, new=replacement: new, command)
            assert count, pattern
        environ = {**os.environ, "PYSPARK_PYTHON": sys.executable, "PYTHONPATH": str(ROOT / "src")}
        done = subprocess.run(
            ["bash", "-euc", command], cwd=ROOT, env=environ, capture_output=True, text=True, timeout=_SECONDS
        )
        (host,) = cluster.hosts
        applications = list((tmp_path / host / "work").glob("app-*"))
    assert done.returncode == 0, done.stderr
    assert dict(wordcount.read_counts(str(output))) == {"to": 2, "be": 2, "or": 1, "not": 1}
    assert applications, "it ran in local mode"
