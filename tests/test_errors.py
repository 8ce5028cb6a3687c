"""Every exception survives the way from a worker to the driver."""

from __future__ import annotations

import pickle

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
    errors.JobFailedError("failed"),
    errors.UserCodeError("A/Map", "ValueError('x')", "Traceback…"),
    errors.CoderError("A/Map", "'x' does not fit VarIntCoder", "Traceback…"),
    errors.WorkerLostError("a worker was killed", "give it more memory"),
    errors.JobCancelledError("cancelled"),
    errors.JobNotFoundError("no job j-1"),
    errors.SetupError("no Java", "install one"),
    errors.StateFormatError("a trigger's state", "is damaged"),
]


def _tree(root: type[errors.ArcbeamError]) -> set[type[errors.ArcbeamError]]:
    return {root}.union(*(_tree(child) for child in root.__subclasses__() if child.__module__ == errors.__name__))


def test_every_error_is_tried_here() -> None:
    assert {type(error) for error in MADE} == _tree(errors.ArcbeamError)


@pytest.mark.parametrize("error", MADE, ids=lambda e: type(e).__name__)
@pytest.mark.parametrize("protocol", [2, 5])
def test_pickles(error: errors.ArcbeamError, protocol: int) -> None:
    copy = pickle.loads(pickle.dumps(error, protocol))
    assert type(copy) is type(error)
    assert str(copy) == str(error)
    assert vars(copy) == vars(error)


def test_the_remedy_is_part_of_the_text() -> None:
    assert str(errors.SetupError("no Java", "install one")) == "no Java\n  what to do: install one"
    assert str(errors.SetupError("no Java")) == "no Java"


def test_all_unsupported_items_are_listed_by_name() -> None:
    text = str(MADE[2])
    assert "A/ParDo: multimap state" in text
    assert "B: a cloud (use a folder)" in text
    assert "2 unsupported" in text


def test_a_user_error_names_step_and_traceback() -> None:
    text = str(errors.UserCodeError("A/Map", "ValueError('x')", "Traceback: line 1"))
    assert "ValueError('x')" in text
    assert "A/Map" in text
    assert "line 1" in text
