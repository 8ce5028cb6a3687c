"""A request to a job in this process, and the wait for its answer."""

from __future__ import annotations

from dataclasses import dataclass

from arcbeam.store.log.requests import Answer, Said, refusal
from arcbeam.streaming.driver.requests import Ticket


@dataclass(frozen=True, slots=True)
class Asking:
    """A request to a job in this process.

    Attributes:
        path: of the savepoint that it creates; "" if there is none, or none that can be resumed.
        job: its name in messages.
    """

    ticket: Ticket
    path: str
    job: str

    def heard(self) -> Answer:
        """Wait until the job has accepted the request.

        Raises:
            RequestRefusedError: the request was refused.
        """
        self.ticket.heard.wait()
        return self._answer()

    def wait(self) -> Answer:
        """Wait until the request is carried out.

        Raises:
            RequestRefusedError: the request was refused.
        """
        self.ticket.settled.wait()
        return self._answer()

    def _answer(self) -> Answer:
        answer = self.ticket.answer
        assert answer is not None
        if answer.said is Said.REFUSED:
            raise refusal(self.ticket.request.what, self.job, answer.text, answer.remedy)
        return answer
