"""Find numbers and caches of the package that are not declared with `arcbeam.sizes`: no test can make them small.

A constant with the name of a limit (`_KNOWN_MAX`, `BLOCK_BYTES`) must be a `threshold` or a `cache_size`, or be listed
here with the reason why results may depend on it. Functions that cache results use `remembered`. Dictionaries by
`id(object)` are `by_identity`, unless they are removed before the objects can be.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

_LIMITS = re.compile(
    r"(^|_)(MOST|LEAST|FEW|FEWEST|LONGEST|SHORTEST|BYTES|BATCH|TOGETHER|KNOWN|LARGE|MANY|SLICE|CHUNK|PIECE|PIECES|"
    r"KEPT|KEEP|OPEN|HELD|ROWS|RECORDS|EVERY|AHEAD|BUCKET|LIMIT|FAN|SEAL|CUT|PAGE|MAX|MIN|CACHED)(_|$)"
)

_FORMAT = "part of a format or of an encoding"
_SHOWN = "the length of a text for people"
_OUTSIDE = "a limit of another project's interface"
_ESTIMATE = "an estimate of a cost"
_APART = {
    "model/windows.py": _FORMAT,
    "model/texts.py": _SHOWN,
    "model/observers.py": "a text for users",
    "page/app.py": _SHOWN,
    "page/live.py": _SHOWN,
    "page/memory.py": _SHOWN,
    "page/samplepages.py": _SHOWN,
    "page/timelines/charts.py": _SHOWN,
    "page/control.py": "the number of users' requests that are remembered",
    "page/access/security.py": "the length of a form",
    "jobs/metrics.py": _SHOWN,
    "jobs/naming.py": "the search for a name, which may fail",
    "jobs/guard.py": _OUTSIDE,
    "jobs/option_forms.py": "the number of jobs whose secrets a server keeps",
    "secrets/known.py": _SHOWN,
    "jobs/lifecycle.py": "the length of a server's history",
    "jobs/client.py": _SHOWN,
    "runner/job.py": "the number of messages that a result keeps",
    "harness/transforms/vectorization.py": "the depth of Python's stack",
    "harness/encoding/sdktimes.py": _FORMAT,
    "harness/encoding/blocks.py": _FORMAT,
    "harness/encoding/codererrors.py": _SHOWN,
    "harness/streaming/restrictions.py": _SHOWN,
    "engine/protocol/markers.py": _FORMAT,
    "engine/state/residuals.py": _FORMAT,
    "engine/coordinator/settings.py": "the first and the largest budget of a micro-batch",
    "spark/tasks/collecting.py": _SHOWN,
    "spark/tasks/crashlog.py": _SHOWN,
    "spark/tasks/failure.py": _SHOWN,
    "harness/bundle/usererrors.py": _SHOWN,
    "harness/bundle/samples.py": _SHOWN,
    "streaming/status/samples.py": _SHOWN,
    "streaming/status/taskfigures.py": _SHOWN,
    "spark/tasks/lostworker.py": _SHOWN,
    "harness/encoding/registered.py": "a larger class is refused",
    "harness/encoding/script/names.py": "larger values are refused, and longer pickles not searched",
    "harness/encoding/script/mainmodule.py": "more than the jobs of which a worker keeps stages open",
    "spark/session/exits.py": "the longest path of a file",
    "spark/session/heap.py": "the memory of Spark",
    "streaming/task/finalizing.py": "the time for which callbacks wait: older ones are dropped",
    "streaming/driver/controlrequests.py": "a polling interval",
    "streaming/status/activity.py": _SHOWN,
    "store/log/drivernote.py": _SHOWN,
    "store/log/endnote.py": _SHOWN,
    "store/log/troublenote.py": _SHOWN,
    "store/manifest/names.py": _FORMAT,
    "store/manifest/manifestfile.py": _FORMAT,
    "store/blobs/objects.py": _OUTSIDE,
    "io/parts/objects.py": _OUTSIDE,
    "harness/bundle/failingelement.py": "the depth of the search for a wrapped function",
    "cli/status.py": _SHOWN,
    "explain/picture.py": _SHOWN,
    "jobs/termination.py": "a polling interval",
}
"""Modules whose other numbers need no declaration, with the reason."""

_NUMBERS_APART = {
    ("engine/rows/keyspace.py", "KEY_BYTES_MAX"): _OUTSIDE,
    ("engine/rows/keyspace.py", "NAME_LIMIT"): _FORMAT,
    ("engine/rows/keyspace.py", "_DIGEST_BYTES"): _FORMAT,
    ("engine/rows/keyspace.py", "_SHOWN_BYTES"): _SHOWN,
    ("engine/watermarks/holds.py", "_SUBJECT_CHARACTERS_MAX"): _SHOWN,
    ("page/views.py", "_LINE_CHARACTERS_MAX"): _SHOWN,
    ("store/shards/shardfile.py", "_MAX_BYTES"): _FORMAT,
    ("spark/session/listening.py", "_FOLDER_BYTES_MAX"): _OUTSIDE,
    ("spark/tasks/openstages.py", "_NEW_MODULES_MAX"): "when a process looks for garbage",
    ("spark/tasks/ending/publishing.py", "WARNINGS_MAX"): _SHOWN,
    ("engine/grouping/contents.py", "_LARGE"): _FORMAT,
    ("harness/encoding/windowcoder.py", "_BYTES"): _FORMAT,
    ("engine/rows/keyspace.py", "EVENT_HELD"): _FORMAT,
    ("harness/transforms/slices.py", "_SLICE_BYTES"): _ESTIMATE,
    ("io/parts/transform.py", "_BYTES"): "how large users' files are",
    ("options.py", "SHARDS_MIN"): "a default that users may change",
    ("engine/state/cells.py", "_DIGEST_BYTES"): _FORMAT,
    ("engine/watermarks/sketches.py", "TIMES_MAX"): _ESTIMATE,
    ("fnapi/service/workerend.py", "_ENTRIES_MAX"): _SHOWN,
    ("io/kafka/transform.py", "_SECONDS_MAX"): _OUTSIDE,
    ("io/watermarks.py", "_MICROS_MAX"): _OUTSIDE,
    ("streaming/status/reasons.py", "_AHEAD_MICROS_MAX"): _SHOWN,
    ("translate/identifying/pickles.py", "_PICKLE_BYTES_MAX"): "larger ones are not searched",
    ("model/timestamps.py", "_BEHIND_SECONDS_MAX"): _SHOWN,
    ("model/rows.py", "SHARDS_MAX"): "what is refused",
}
_LOCAL_IDENTITIES = {
    "harness/encoding/script/names.py": "for one walk over objects that the script keeps",
    "harness/encoding/script/objects.py": "for one pickle, while it is read",
    "harness/transforms/precombine.py": "for one block",
    "harness/transforms/sinks.py": "for one block",
    "harness/transforms/chains.py": "for operations that live as long as the bundle processor",
    "explain/picture.py": "for one picture",
    "model/frames.py": "for one chain of exceptions",
    "translate/identifying/pickles.py": "for one walk over objects that the caller keeps",
    "harness/bundle/usererrors.py": "for one chain of exceptions",
}
_CACHES_APART = {
    "harness/encoding/script/names.py": "cached functions of users",
    "harness/encoding/script/space.py": "the SDK's table of classes",
    "errors.py": "classes of exceptions; errors does not import arcbeam",
    "spark/tasks/artifacts.py": "a folder of the process, which is created once",
    "spark/tasks/shipping.py": "the files that a session has",
    "spark/session/sessions.py": "facts about sessions",
    "spark/session/driver.py": "facts about sessions",
    "spark/session/ownership.py": "facts about sessions",
    "spark/session/remote.py": "facts about sessions",
    "harness/transforms/chains.py": "facts about code, for error messages",
    "harness/streaming/state.py": "listeners of changes",
    "store/jobtemp/sidefiles.py": "open files: LMDB must not open one twice",
}


def undeclared(path: str, text: str) -> Iterator[tuple[int, str]]:
    """Yield (line, what) of each undeclared number, cache and identity in a module, by its path in the package."""
    if path == "sizes/declaring.py" or path.startswith("testing/"):
        return
    tree = ast.parse(text, path)
    bodies = [tree.body, *(node.body for node in ast.walk(tree) if isinstance(node, ast.ClassDef))]
    for statement in (each for body in bodies for each in body):
        for name, value in _assigned(statement):
            if _is_limit(name, value) and path not in _APART and (path, name) not in _NUMBERS_APART:
                yield (
                    statement.lineno,
                    f"{name} is a number that results may depend on: declare it with threshold() or cache_size() of "
                    "arcbeam.sizes, or say in tools/check_sizes.py why it is apart",
                )
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute | ast.Name):
            name = node.attr if isinstance(node, ast.Attribute) else node.id
            if _is_cache(node) and path not in _CACHES_APART:
                yield (
                    node.lineno,
                    f"{name}: use remembered() or memo() of arcbeam.sizes",
                )
        if _is_identity(node) and path not in _LOCAL_IDENTITIES and "by_identity()" not in text:
            yield node.lineno, "id(): a dictionary by identity is by_identity() of arcbeam.sizes"


def _assigned(statement: ast.stmt) -> Iterator[tuple[str, ast.expr]]:
    if isinstance(statement, ast.Assign):
        yield from ((target.id, statement.value) for target in statement.targets if isinstance(target, ast.Name))
    elif isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name) and statement.value:
        yield statement.target.id, statement.value


def _is_limit(name: str, value: ast.expr) -> bool:
    """Return whether this is a constant in capitals with the name of a limit, and a plain number above 2."""
    if name != name.upper() or not _LIMITS.search(name):
        return False
    try:
        number = eval(compile(ast.Expression(value), "number", "eval"), {"__builtins__": {}})
    except Exception:
        return False
    return type(number) is int and number > 2


def _is_cache(node: ast.Attribute | ast.Name) -> bool:
    name = node.attr if isinstance(node, ast.Attribute) else node.id
    if name in ("lru_cache", "WeakKeyDictionary", "WeakValueDictionary", "WeakSet"):
        return True
    return isinstance(node, ast.Attribute) and name == "cache" and getattr(node.value, "id", "") == "functools"


def _is_identity(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "id" and bool(node.args)


def check(package: Path) -> Iterator[tuple[Path, int, str]]:
    """Yield (file, line, what) of everything undeclared below the package's folder."""
    for file in sorted(package.rglob("*.py")):
        for line, what in undeclared(file.relative_to(package).as_posix(), file.read_text(encoding="utf-8")):
            yield file, line, what
