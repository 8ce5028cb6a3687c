"""Golden texts of messages, and `check_message`."""

from tests.golden.texts import check_message

__all__ = ["check_message"]
