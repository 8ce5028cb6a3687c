"""The schemas of row coders, from Beam's protos.

Owns the conversion. Must not know which coder a collection has.
"""

from __future__ import annotations

from typing import Any

from apache_beam.portability import common_urns
from apache_beam.portability.api import schema_pb2
from google.protobuf.message import DecodeError

from arcbeam.model.plan import Field, FieldType, TypeKind


def schema_of(coder: Any) -> tuple[Field, ...] | None:
    """Return the fields of the rows that a `Coder` encodes; None if it is not a row coder.

    None also for a schema that cannot be read: only the SDK that has made it needs all of it.
    """
    if coder.spec.urn != common_urns.coders.ROW.urn:
        return None
    try:
        return _fields(schema_pb2.Schema.FromString(coder.spec.payload))
    except (DecodeError, ValueError):
        return None


def _fields(schema: Any) -> tuple[Field, ...]:
    return tuple(Field(field.name, _type(field.type)) for field in schema.fields)


def _type(proto: Any) -> FieldType:
    nullable = proto.nullable
    match proto.WhichOneof("type_info"):
        case "atomic_type":
            return FieldType(TypeKind(schema_pb2.AtomicType.Name(proto.atomic_type).lower()), nullable)
        case "array_type":
            return FieldType(TypeKind.ARRAY, nullable, (_type(proto.array_type.element_type),))
        case "iterable_type":
            return FieldType(TypeKind.ITERABLE, nullable, (_type(proto.iterable_type.element_type),))
        case "map_type":
            return FieldType(TypeKind.MAP, nullable, (_type(proto.map_type.key_type), _type(proto.map_type.value_type)))
        case "row_type":
            return FieldType(TypeKind.ROW, nullable, fields=_fields(proto.row_type.schema))
        case "logical_type":
            logical = proto.logical_type
            parts = (_type(logical.representation),) if logical.HasField("representation") else ()
            return FieldType(TypeKind.LOGICAL, nullable, parts, urn=logical.urn)
    raise ValueError("a field has no type")
