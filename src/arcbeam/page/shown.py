"""What a page shows: a template and its values."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from starlette.requests import Request


@dataclass(frozen=True, slots=True)
class Shown:
    """What a page shows.

    Attributes:
        template: its name.
        live: whether it may change.
        values: for the template.
        code: the HTTP status.
    """

    template: str
    live: bool
    values: Mapping[str, Any] = field(default_factory=dict)
    code: int = 200


View = Callable[[Request], Shown]
