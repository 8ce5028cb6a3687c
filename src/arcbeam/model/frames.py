"""The owner of the code of a traceback's frame, determined by its module, never by the path of its file.

Owns the names of the modules between Spark and user code. A path does not decide: a user may have scripts in a folder
named `arcbeam`, and arcbeam itself may be imported from a source tree, an installation or a zip file. Code generated at
run time belongs to a module if its globals have the module's `__name__`.
"""

from __future__ import annotations

import traceback
from types import FrameType

_HARNESS = ("arcbeam.spark", "arcbeam.harness", "apache_beam.runners", "apache_beam.transforms.core", "threading")
_TESTS = "_test"
"""The end of the names of SDK modules that contain pipelines, as users write them."""


def is_harness(frame: FrameType) -> bool:
    """Return whether a frame runs code between Spark and user code, which does not help to find a user's mistake."""
    module = frame.f_globals.get("__name__")
    if not isinstance(module, str) or (module.startswith("apache_beam.") and module.endswith(_TESTS)):
        return False
    return any(module == name or module.startswith(f"{name}.") for name in _HARNESS)


def harness_files(error: BaseException) -> frozenset[str]:
    """Return the file names of the harness's frames in the tracebacks of an error, its causes and its contexts."""
    found: set[str] = set()
    seen: set[int] = set()
    linked: list[BaseException | None] = [error]
    while linked:
        one = linked.pop()
        if one is None or id(one) in seen:
            continue
        seen.add(id(one))
        found.update(f.f_code.co_filename for f, _ in traceback.walk_tb(one.__traceback__) if is_harness(f))
        linked += one.__cause__, one.__context__
    return frozenset(found)
