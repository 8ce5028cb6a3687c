"""The fields that a collection's elements have, as far as its type says.

Owns which types say it. Must not know what a field is for.
"""

from __future__ import annotations

import dataclasses
import typing
from typing import Any

from apache_beam.typehints.row_type import RowTypeConstraint


def fields_of(kind: Any) -> dict[str, Any] | None:
    """The types of the fields of a row, a dataclass or a named tuple, by name; None where a type does not say."""
    if isinstance(kind, RowTypeConstraint):
        return dict(kind._fields)
    if dataclasses.is_dataclass(kind) or hasattr(kind, "_fields"):
        return _hints(kind)
    return None


def type_of_field(label: str, field: str, fields: dict[str, Any]) -> Any:
    """The type of a field.

    Args:
        label: of the transform that goes by it.
        field: its name.
        fields: those that elements have.

    Raises:
        ValueError: there is no such field.
    """
    if field not in fields:
        known = ", ".join(map(repr, fields))
        raise ValueError(f"{label}: elements have no field {field!r}; they have {known}")
    return fields[field]


def _hints(kind: Any) -> dict[str, Any]:
    """The types of a class's fields; of any type, if what is written there cannot be found from here."""
    try:
        return typing.get_type_hints(kind)
    except (NameError, TypeError, AttributeError, SyntaxError):
        names = [of.name for of in dataclasses.fields(kind)] if dataclasses.is_dataclass(kind) else kind._fields
        return dict.fromkeys(names, Any)
