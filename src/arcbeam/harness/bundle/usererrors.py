"""What an exception of user code, or of the SDK that runs it, becomes for the user: an error of arcbeam, with the
user's frames only.

Owns how it is described. Must not know how the description leaves the worker, nor Spark.
"""

from __future__ import annotations

import contextlib
import pickle
import re
import traceback
from collections.abc import Iterator
from types import FrameType, GetSetDescriptorType, MemberDescriptorType
from typing import Any

from arcbeam.errors import ArcbeamError, CoderError, MissingModuleError, Raised, UserCodeError
from arcbeam.harness.encoding.codererrors import coder_name, shortened
from arcbeam.harness.encoding.script.mainmodule import is_script_known, reason_copied, reason_missing
from arcbeam.harness.files.filenames import note_file
from arcbeam.model import texts
from arcbeam.model.frames import harness_files
from arcbeam.model.timestamps import MAX_TIMESTAMP

_CAUSE_CHARACTERS_MAX = 4000

_STEP = re.compile(r"\[while running '(.*?)'\]", re.DOTALL)


def described(error: BaseException, step: str) -> ArcbeamError | None:
    """Classify an exception in a task. Never raises, and returns in bounded time, whatever the exception does.

    Args:
        error: the exception that left the bundle.
        step: the transform that ran; "" if unknown. The SDK's own note in the exception has priority.

    Returns:
        An error of arcbeam's, to be recorded and never retried. None if a retry may succeed (memory, a killed task).
    """
    try:
        return texts.within(texts.SECONDS, lambda: _described(error, step))
    except MemoryError:
        return None
    except Exception as e:
        # Its text, arguments or elements are user code that raises or never returns.
        mute = f"{type(error).__name__} (it cannot be described: {texts.safe_text(str, e, _CAUSE_CHARACTERS_MAX)})"
        between = harness_files(error)
        frames = [f for f in traceback.extract_tb(error.__traceback__) if f.filename not in between]
        return UserCodeError(texts.fit(step), texts.fit(mute), texts.fit("".join(traceback.format_list(frames))))


def original(error: BaseException, step: str) -> tuple[BaseException, str]:
    """Return the original exception and its transform: the SDK raises a copy that names the transform."""
    while getattr(error, "_tagged_with_step", False) and not isinstance(error, ArcbeamError):
        named = _STEP.findall(texts.safe_text(str, error))
        step = named[-1] if named else step
        if error.__context__ is None:
            break
        error = error.__context__
    return error, step


def _described(error: BaseException, step: str) -> ArcbeamError | None:
    error, step = original(error, step)
    if isinstance(error, MemoryError | KeyboardInterrupt):
        return None
    if isinstance(error, UserCodeError):
        # An error of arcbeam's that wraps an exception of the user's code or of a coder.
        cause = error.__cause__
        return (error._ours or type(error))(
            texts.fit(error.step or step),
            texts.fit(error.error) + ("" if "what to do:" in error.error else _advice_on_main(error.error)),
            texts.fit(error.traceback if cause is None else user_traceback(cause)),
            raised_by(cause) if cause is not None else error.raised,
        )
    if isinstance(error, ArcbeamError):
        return error
    missing = _missing_module(error)
    if missing:
        found = MissingModuleError(
            texts.fit(f"module '{missing}' is missing on the worker (needed by '{step}')"),
            "install it on every executor, or ship it with --requirements_file, --extra_package, --setup_file or "
            "--files_to_stage",
        )
        found.name = texts.fit(missing)
        return found
    note_file(error)
    what = texts.fit("".join(traceback.TracebackException.from_exception(error).format_exception_only()).strip())
    # The SDK's note may remain in the text if an exception was raised again.
    what = _STEP.sub("", what).rstrip() + _advice_on_main(what) + _advice_on_time(error)
    coder = _coder_failure(error)
    kind, what = (CoderError, f"{texts.fit(coder)}: {what}") if coder else (UserCodeError, what)
    return kind(texts.fit(step), what, texts.fit(user_traceback(error)), raised_by(error))


_IN_TEXT = ("_tagged_with_step", "__notes__")
"""Attributes of an exception whose content is already in the error's text."""


def raised_by(error: BaseException) -> Raised:
    """Return the parts of a user's exception that can be sent."""
    if not isinstance(error, Exception) or isinstance(error, StopIteration | StopAsyncIteration):
        return Raised()
    classes = type(error).__mro__
    kinds = tuple(
        (k.__module__, k.__qualname__) for k in classes[: classes.index(Exception)] if issubclass(k, Exception)
    )
    found = {name: value for name, value in vars(error).items() if name not in _IN_TEXT}
    for kind in classes[: classes.index(Exception)]:
        for name, slot in vars(kind).items():
            if isinstance(slot, MemberDescriptorType | GetSetDescriptorType) and not name.startswith("__"):
                with contextlib.suppress(Exception):
                    found.setdefault(name, getattr(error, name))
    pickled = {name: data for name, value in found.items() if (data := _pickled(value))}
    return Raised(kinds, _pickled(error.args), tuple(pickled.items()))


def _pickled(value: Any) -> bytes:
    """Pickle a value; return empty bytes if that fails or the result is too large to send."""
    try:
        data = pickle.dumps(value)
    except Exception:
        return b""
    return data if len(data) <= texts.CHARACTERS_MAX else b""


_OF_MAIN = re.compile(
    r"Can't pickle <(?:class|function) '?__main__\.([\w.<>]+)"
    r"|Can't get (?:local )?attribute '([\w.<>]+)'"
    r" on <module '(?:__main__|__mp_main__|(?:arcbeam\.spark|pyspark)\.daemon)'"
    r"|Can't pickle <.*>: attribute lookup ([\w.]+) on __(?:mp_)?main__ failed"
    r"|NameError: name '(\w+)' is not defined"
)
_ANOTHER_COPY = re.compile(r"Can't pickle <function .*it's not the same object as __(?:mp_)?main__\.([\w.]+)")


def _advice_on_main(what: str) -> str:
    """Return the remedy if a name of the user's script cannot be found by its name; else ""."""
    if copied := _ANOTHER_COPY.search(what):
        return (
            f"\n  what to do: '{copied[1]}' {reason_copied(copied[1])}, so each transform has its own copy; "
            "define it in a module that the workers can import (--setup_file, --files_to_stage)"
        )
    named = _OF_MAIN.search(what)
    if not named:
        return ""
    name = named[1] or named[2] or named[3] or named[4]
    if reason := reason_missing(name):
        return (
            f"\n  '{name}' of the script was not sent to the workers: {reason}"
            "\n  what to do: make it in setup() or in the function that uses it, or define it in a module"
        )
    if named[4]:
        return ""
    if not is_script_known():
        return (
            f"\n  what to do: the job server does not have '{name}' of the script; submit with "
            "--runner=arcbeam.ArcbeamRunner and the same --job_endpoint, or define it in a module that the workers can "
            "import (--setup_file, --files_to_stage)"
        )
    return (
        f"\n  what to do: define '{name}' at the top level of the script, or of a module that the "
        "workers can import (--setup_file, --files_to_stage); with --pickle_library=dill, set --save_main_session"
    )


_OF_TIME = re.compile(r"(^|/)apache_beam/utils/(windowed_value|timestamp)\.py$")
"""The SDK's modules for event times. They are compiled, so only these names identify their frames."""


def _advice_on_time(error: BaseException) -> str:
    """Return the remedy if an event time does not fit into 64 bits; else ""."""
    frames = traceback.extract_tb(error.__traceback__)
    if not isinstance(error, OverflowError) or not frames or not _OF_TIME.search(frames[-1].filename):
        return ""
    return (
        f"; an event time is outside of Beam's range, {MAX_TIMESTAMP // 1_000_000:,} seconds before and after 1970\n"
        "  what to do: give seconds since 1970 (milliseconds / 1e3, microseconds / 1e6), or a Timestamp"
    )


def _missing_module(error: BaseException) -> str:
    """Return the module that could not be imported; "" if that did not happen."""
    seen: BaseException | None = error
    while seen is not None:
        if isinstance(seen, ModuleNotFoundError):
            return seen.name or str(seen)
        seen = seen.__cause__
    return ""


def user_traceback(error: BaseException) -> str:
    """Return an exception's traceback without the harness's frames and without its last line, the error itself.

    Causes and contexts are kept. If there are only harness frames, the innermost one stays.
    """
    between = harness_files(error)
    described = traceback.TracebackException.from_exception(error)
    part: traceback.TracebackException | None = described
    seen: set[int] = set()
    while part is not None and id(part) not in seen:
        seen.add(id(part))
        frames = [f for f in part.stack if f.filename not in between]
        part.stack = traceback.StackSummary.from_list(frames or part.stack[-1:])
        part = part.__cause__ or (None if part.__suppress_context__ else part.__context__)
    lines = list(described.format())
    own = len(list(described.format_exception_only()))
    return "".join(lines[:-own]).rstrip() if len(lines) > own else ""


def _frames(error: BaseException) -> Iterator[tuple[str, FrameType]]:
    """Yield (bare name of the function, frame), innermost first."""
    frames = [entry for entry, _ in traceback.walk_tb(error.__traceback__)]
    for frame in reversed(frames):
        yield frame.f_code.co_name.rsplit(".", 1)[-1], frame


_ENCODE = {"encode", "encode_to_stream", "encode_nested", "encode_all", "_encode_key"}
_DECODE = {"decode", "decode_from_stream", "decode_nested", "decode_all"}


def _coder_failure(error: BaseException) -> str:
    """Return which coder cannot encode or decode which element, if the innermost frames are a coder's; else ""."""
    from apache_beam.coders import coder_impl, coders

    for depth, (name, frame) in enumerate(_frames(error)):
        if depth > 6:
            break
        if name not in _ENCODE and name not in _DECODE:
            continue
        verb = "encode" if name in _ENCODE else "decode"
        owner = frame.f_locals.get("self")
        if isinstance(owner, coders.Coder | coder_impl.CoderImpl):
            arguments = frame.f_code.co_varnames[1 : frame.f_code.co_argcount]
            element = frame.f_locals.get(arguments[0]) if arguments else None
            return f"{coder_name(owner)} cannot {verb} {shortened(element)}"
        if "coder_impl" in frame.f_code.co_filename:  # compiled: it has no locals
            compiled = frame.f_code.co_name.split(".")
            return f"{compiled[-2] if len(compiled) > 1 else 'a coder'} cannot {verb} {_element_of(error)}"
    return ""


def _element_of(error: BaseException) -> str:
    """Return the element that was being written when a compiled coder failed."""
    for _, frame in _frames(error):
        element = frame.f_locals.get("o")
        if element is not None and hasattr(element, "windows"):
            return shortened(element.value)
    return "an element"


def element_of(error: BaseException) -> str:
    """Return the element that made user code fail, for display; "" if unknown, or for a coder's error. Never raises."""
    try:
        # SUBTLE: imported late, because the worker setup silences what the SDK logs at import.
        from arcbeam.harness.bundle.failingelement import failing_element_of

        found = None if _coder_failure(error) else failing_element_of(error)
    except Exception:
        return ""
    return "" if found is None else f"element {shortened(found.element)}"
