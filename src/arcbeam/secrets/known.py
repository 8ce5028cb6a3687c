"""The secrets of this process, in memory only, and texts without them."""

from __future__ import annotations

import threading
from collections.abc import Mapping

from arcbeam import errors
from arcbeam.secrets.parting import PARAMETER, USER

_SECRET_CHARACTERS_MIN = 6
"""Shortest value that is removed from texts; shorter ones occur in too many texts."""
MASK = "…"
"""What is shown of a secret."""


class _Known:
    """The secrets of this process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._values: dict[str, str] = {}
        self._hidden: dict[str, None] = {}

    def install(self, secrets: Mapping[str, str]) -> None:
        with self._lock:
            self._values.update(secrets)
            for value in secrets.values():
                for part in {value, *_passwords(value)}:
                    if len(part) >= _SECRET_CHARACTERS_MIN:
                        self._hidden[part] = None

    def get(self, name: str) -> str | None:
        return self._values.get(name)

    def hidden(self) -> list[str]:
        # The longest first: one may contain another.
        return sorted(self._hidden, key=len, reverse=True)


def _passwords(url: str) -> list[str]:
    return [match[0].rpartition("@")[0].rpartition(":")[2] for match in USER.finditer(url)]


_known = _Known()


def install(secrets: Mapping[str, str]) -> None:
    """Register secrets in this process, for look-ups by name and for `redacted`. The last value of a name counts."""
    if secrets:
        _known.install(secrets)


def installed(name: str) -> str | None:
    """Return the secret of a name; None if this process does not know it."""
    return _known.get(name)


def redacted(text: str) -> str:
    """Return a text without URLs' credentials and without the values of this process's secrets."""
    for value in _known.hidden():
        text = text.replace(value, MASK)
    return PARAMETER.sub(rf"\1{MASK}", USER.sub(rf"\1{MASK}@", text)) if "://" in text else text


errors.redact = redacted
