"""Jobs whose program ends without having waited for them: the process waits, and its exit code reports their end.

On Beam's local runner `run` returns when the pipeline is done, and many scripts end with it. Owns what happens between
the end of the program and that of the process. Must not know how a job runs.
"""

from __future__ import annotations

# SUBTLE: imported before `_register_atexit` is called below. These functions run in reverse order: that of
# `concurrent.futures` must come later, because afterwards its executors, which a job uses, accept no work.
import concurrent.futures.thread  # noqa: F401
import contextlib
import logging
import multiprocessing
import os
import platform
import sys
import threading
from collections.abc import Iterator
from typing import Any, Protocol

from arcbeam.console.progressline import announce
from arcbeam.errors import JobFailedError

_LOG = logging.getLogger("arcbeam")

_FAILED, _INTERRUPTED = 1, 130
"""Exit codes of the process: a job failed; Ctrl-C."""


class Awaitable(Protocol):
    """A submitted job."""

    @property
    def name(self) -> str:
        """Of the job, for people."""
        ...

    @property
    def ended(self) -> bool:
        """Whether it has ended."""
        ...

    def wait_until_finish(self) -> object:
        """Wait for its end; raise its error. Ctrl-C cancels it."""
        ...

    def cancel(self) -> object:
        """Cancel it, and wait for its end."""
        ...


class UnawaitedJobs:
    """The jobs of this process whose end its program has not seen."""

    def __init__(self) -> None:
        self._start()
        os.register_at_fork(after_in_child=self._start)

    def _start(self) -> None:
        self._changing = threading.Lock()
        self._jobs: list[Awaitable] = []
        self._given_up: list[Awaitable] = []

    def add(self, job: Awaitable) -> None:
        """Note a new job, or one that is to end by itself after all."""
        self.remove(job)
        with self._changing:
            self._jobs.append(job)

    def give_up(self, job: Awaitable) -> None:
        """Note that the program has stopped waiting for a job: its end will not wait for it, either."""
        with self._changing:
            self._given_up.append(job)

    def remove(self, job: Awaitable) -> None:
        """Note that the program has seen the end of a job, or that nothing is left to report of it. Idempotent."""
        with self._changing:
            for jobs in (self._jobs, self._given_up):
                with contextlib.suppress(ValueError):
                    jobs.remove(job)

    def finish(self) -> None:
        """Wait for the jobs, one after the other. Cancel those for which the program has stopped to wait.

        Raises:
            KeyboardInterrupt: Ctrl-C. All jobs are cancelled.
            SystemExit: a SIGTERM ended a job.
            Exception: a job failed. Those after it are left.
        """
        while (job := self._next()) is not None:
            try:
                if job in self._given_up:
                    _LOG.warning("%s: cancelled, because the program has ended", job.name)
                    job.cancel()
                    continue
                if not job.ended:
                    announce(
                        f"the program has ended; waiting for job '{job.name}', which still runs. Ctrl-C cancels it. To "
                        "wait in the program, write p.run().wait_until_finish()"
                    )
                job.wait_until_finish()
            except KeyboardInterrupt:
                self.remove(job)
                self.cancel()
                raise
            finally:
                self.remove(job)

    def cancel(self) -> None:
        """Cancel the jobs that run."""
        self._give_up_all()
        self.finish()

    @contextlib.contextmanager
    def finished(self) -> Iterator[None]:
        """Run a program in the block, and then `finish`. If the program fails, its jobs are cancelled."""
        try:
            yield
        except SystemExit:
            raise
        except BaseException:
            self.cancel()
            raise
        self.finish()

    def finish_at_exit(self) -> None:
        """Do the same as `finish` at the exit of the interpreter; print errors, and set the exit code.

        An interactive session and a program that fails do not wait: their jobs are cancelled.
        """
        if (first := self._next()) is None:
            return
        code = 0
        if not _can_start_threads():
            error = JobFailedError(
                f"job '{first.name}' was still running when the program ended, and Python {platform.python_version()} "
                "cannot run it any further then",
                "end the program with p.run().wait_until_finish(), or use a newer Python",
            )
            sys.excepthook(type(error), error, None)
            _exit_with(_FAILED)
            return
        if hasattr(sys, "ps1") or getattr(sys, "last_type", None) is not None:
            self._give_up_all()
        while self._next() is not None:
            try:
                self.finish()
            except KeyboardInterrupt:
                code = _INTERRUPTED
            except SystemExit as exit:
                code = exit.code if isinstance(exit.code, int) else _FAILED
            except BaseException as error:
                sys.excepthook(type(error), error, error.__traceback__)
                code = code or _FAILED
        if code:
            _exit_with(code)

    def _give_up_all(self) -> None:
        with self._changing:
            self._given_up = list(self._jobs)

    def _next(self) -> Awaitable | None:
        with self._changing:
            return self._jobs[0] if self._jobs else None


def _can_start_threads() -> bool:
    """Return whether a thread can be started at the exit of the interpreter. Python 3.12.0 to 3.12.2 cannot."""
    try:
        threading.Thread(target=int).start()
    except RuntimeError:
        return False
    return True


def _exit_with(code: int) -> None:
    """Give the process an exit code, although the interpreter has already begun to exit with another one."""
    import atexit

    def end() -> None:
        atexit.unregister(end)
        run: Any = atexit._run_exitfuncs
        run()
        _exit_now(code)

    if multiprocessing.parent_process() is None:
        # Before all other functions: it calls them.
        atexit.register(end)
    else:
        _exit_now(code)  # `multiprocessing` calls none in a child


def _exit_now(code: int) -> None:
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()
    os._exit(code)


UNAWAITED = UnawaitedJobs()
"""Those of this process."""

# SUBTLE: not `atexit`, which is called when executors accept no work any more.
_register: Any = getattr(threading, "_register_atexit")  # noqa: B009
_register(UNAWAITED.finish_at_exit)
