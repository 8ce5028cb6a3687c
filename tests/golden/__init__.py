"""Golden texts of messages, and pictures: `check_message`, `check_picture`."""

from tests.golden.texts import check_message, check_picture

__all__ = ["check_message", "check_picture"]
