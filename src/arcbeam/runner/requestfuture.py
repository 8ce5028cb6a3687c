"""A request to a job in this process, and the wait for its answer."""

from __future__ import annotations

from dataclasses import dataclass

from arcbeam.store.log.requests import Answer, AnswerKind, refusal
from arcbeam.streaming.driver.requests import PendingRequest


@dataclass(frozen=True, slots=True)
class RequestFuture:
    """A request to a job in this process.

    Attributes:
        path: of the savepoint that it creates; "" if there is none, or none that can be resumed.
        job: its name in messages.
    """

    pending: PendingRequest
    path: str
    job: str

    def heard(self) -> Answer:
        """Wait until the job has accepted the request.

        Raises:
            RequestRefusedError: the request was refused.
        """
        self.pending.heard.wait()
        return self._answer()

    def wait(self) -> Answer:
        """Wait until the request is carried out.

        Raises:
            RequestRefusedError: the request was refused.
        """
        self.pending.settled.wait()
        return self._answer()

    def _answer(self) -> Answer:
        answer = self.pending.answer
        assert answer is not None
        if answer.kind is AnswerKind.REFUSED:
            raise refusal(self.pending.request.what, self.job, answer.text, answer.remedy)
        return answer
