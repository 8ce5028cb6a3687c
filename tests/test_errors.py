"""Every exception can be sent from a worker to the driver."""

from __future__ import annotations

import builtins
import dataclasses
import pickle
import subprocess

import pytest

from arcbeam import errors

MADE = [
    errors.ArcbeamError("no shard 3", "ask for fewer"),
    errors.SubmissionError("refused"),
    errors.UnsupportedPipelineError(
        (errors.Unsupported("A/ParDo", "multimap state"), errors.Unsupported("B", "a cloud", "use a folder"))
    ),
    errors.InvalidPipelineError("no transforms"),
    errors.EnvironmentMismatchError("driver has Python 3.11, worker 3.12"),
    errors.MissingModuleError("module 'x' is missing on the worker", "install it"),
    errors.JobFailedError("failed"),
    errors.UserCodeError("A/Map", "ValueError('x')", "Traceback…"),
    errors.CoderError("A/Map", "'x' does not fit VarIntCoder", "Traceback…"),
    errors.PublishRefusedError("the register is another's"),
    errors.WorkerLostError("a worker was killed", "give it more memory"),
    errors.SdkWorkerStartError("no SDK worker starts", "correct its command"),
    errors.SubmitterLostError("the submitter ended", "run it again"),
    errors.DriverLostError("the driver died", "give it more memory"),
    errors.ServerLostError("no answer from the server", "resume the job"),
    errors.JobCancelledError("cancelled"),
    errors.RequestRefusedError("the job is done"),
    errors.JobNotFoundError("no job j-1"),
    errors.SetupError("no Java", "install one"),
    errors.StateFormatError("a trigger's state", "is damaged"),
]


def _tree(root: type[errors.ArcbeamError]) -> set[type[errors.ArcbeamError]]:
    # Those of the module, without classes that other tests have combined with a user's class.
    ours = (child for child in root.__subclasses__() if getattr(errors, child.__name__, None) is child)
    return {root}.union(*map(_tree, ours))


def test_every_error_is_tested_here() -> None:
    assert {type(error) for error in MADE} == _tree(errors.ArcbeamError)


@pytest.mark.parametrize("error", MADE, ids=lambda e: type(e).__name__)
@pytest.mark.parametrize("protocol", [2, 5])
def test_pickles(error: errors.ArcbeamError, protocol: int) -> None:
    copy = pickle.loads(pickle.dumps(error, protocol))
    assert type(copy) is type(error)
    assert str(copy) == str(error)
    assert vars(copy) == vars(error)


def test_text_contains_remedy() -> None:
    assert str(errors.SetupError("no Java", "install one")) == "no Java\n  what to do: install one"
    assert str(errors.SetupError("no Java")) == "no Java"


def test_all_unsupported_items_are_listed_by_name() -> None:
    text = str(MADE[2])
    assert "A/ParDo: multimap state" in text
    assert "B: a cloud (use a folder)" in text
    assert "2 unsupported" in text


def test_user_error_names_transform_and_traceback() -> None:
    text = str(errors.UserCodeError("A/Map", "ValueError('x')", "Traceback: line 1"))
    assert "ValueError('x')" in text
    assert "A/Map" in text
    assert "line 1" in text


class Located(ValueError):
    __slots__ = ("line",)

    def __init__(self, line: int) -> None:
        super().__init__(f"line {line}")
        self.line = line


@dataclasses.dataclass(frozen=True)
class Frozen(Exception):
    code: int


class Named(Exception):
    @property
    def message(self) -> str:
        return "mine"


class Picky(type):
    def __new__(cls, name: str, bases: tuple[type, ...], body: dict[str, object]) -> type:
        if name != "Childless":
            raise TypeError("no children")
        return super().__new__(cls, name, bases, body)


class Childless(LookupError, metaclass=Picky):
    pass


def _raised(kind: type[Exception], *above: type[Exception], args: object = ()) -> errors.UserCodeError:
    kinds = tuple((k.__module__, k.__qualname__) for k in (kind, *above))
    return errors.UserCodeError("Step", "what", "trace", errors.Raised(kinds, pickle.dumps(args)))


def _travelled(error: errors.UserCodeError) -> errors.UserCodeError:
    found = pickle.loads(pickle.dumps(error))
    assert isinstance(found, errors.UserCodeError)
    assert str(found) == str(error) == "what [while running 'Step']\ntrace"
    again = pickle.loads(pickle.dumps(found))
    assert type(again) is type(found)
    assert again.args == found.args
    return found


# ExceptionGroup cannot be made without its parts; MemoryError is never a user's error, but retried.
BUILTIN = [
    kind
    for kind in vars(builtins).values()
    if isinstance(kind, type) and issubclass(kind, Exception) and kind not in (Exception, ExceptionGroup, MemoryError)
]


@pytest.mark.parametrize("kind", [*BUILTIN, Located, Frozen, subprocess.CalledProcessError], ids=lambda k: k.__name__)
def test_user_error_is_caught_by_its_type(kind: type[Exception]) -> None:
    found = _travelled(_raised(kind, args=("a", 1)))
    assert isinstance(found, kind)
    assert found.args == ("a [while running 'Step']", 1)
    with pytest.raises(kind, match="while running"):
        raise found


def test_exception_keeps_its_attributes() -> None:
    raised = errors.Raised(
        (("builtins", "OSError"),),
        pickle.dumps((2, "gone")),
        tuple((k, pickle.dumps(v)) for k, v in {"errno": 2, "strerror": "gone", "step": "mine", "own": [1]}.items()),
    )
    found = _travelled(errors.UserCodeError("Step", "what", "trace", raised))
    assert isinstance(found, OSError)
    assert (found.errno, found.strerror, found.step) == (2, "gone", "Step")
    assert vars(found)["own"] == [1]


@pytest.mark.parametrize("kind", [Named, ExceptionGroup, type("Local", (ValueError,), {})], ids=lambda k: k.__name__)
def test_type_that_cannot_be_made_leaves_plain_error(kind: type[Exception]) -> None:
    assert type(_travelled(_raised(kind))) is errors.UserCodeError


@pytest.mark.parametrize("kind", [Childless, type("Local", (LookupError,), {})], ids=lambda k: k.__name__)
def test_nearest_available_class_is_used(kind: type[Exception]) -> None:
    found = _travelled(_raised(kind, LookupError))
    assert isinstance(found, LookupError)
    assert not isinstance(found, kind)


def test_coder_error_stays_a_coder_error() -> None:
    raised = errors.Raised((("builtins", "TypeError"),))
    found = pickle.loads(pickle.dumps(errors.CoderError("Step", "what", "trace", raised)))
    assert isinstance(found, errors.CoderError)
    assert isinstance(found, TypeError)
