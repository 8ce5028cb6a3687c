"""The fields of a collection's elements, as its type declares them.

Owns which element types declare fields. Must not know what a field is used for.
"""

from __future__ import annotations

import dataclasses
import typing
from typing import Any

from apache_beam.typehints.row_type import RowTypeConstraint


def fields_of(kind: Any) -> dict[str, Any] | None:
    """Return the field types of a row, dataclass or named tuple type by name; None if the type declares no fields."""
    if isinstance(kind, RowTypeConstraint):
        return dict(kind._fields)
    if dataclasses.is_dataclass(kind) or hasattr(kind, "_fields"):
        return _hints(kind)
    return None


def type_of_field(label: str, field: str, fields: dict[str, Any]) -> Any:
    """Return the type of a field.

    Args:
        label: the label of the transform that uses the field.
        field: the field's name.
        fields: the types of the elements' fields, by name.

    Raises:
        ValueError: the elements have no such field.
    """
    if field not in fields:
        known = ", ".join(map(repr, fields))
        raise ValueError(f"{label}: unknown field {field!r}; the elements have the fields {known}")
    return fields[field]


def _hints(kind: Any) -> dict[str, Any]:
    """Return the types of a class's fields; Any for all fields if an annotation cannot be resolved."""
    try:
        return typing.get_type_hints(kind)
    except (NameError, TypeError, AttributeError, SyntaxError):
        names = [of.name for of in dataclasses.fields(kind)] if dataclasses.is_dataclass(kind) else kind._fields
        return dict.fromkeys(names, Any)
