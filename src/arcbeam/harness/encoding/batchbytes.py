"""Encoded batches: a batch of user code can cross an exchange whole, without becoming elements.

Owns which batches may cross an exchange whole, and their encoding, which only the same job reads. A batch may if each
of its elements is known to be decoded by the PCollection's coder as an equal value of the type that `values` returns.
This is known from the exact types of converter and coder, and from the contents:

- Arrays of numbers of numpy, with the coder of any type, which pickles numpy's numbers and arrays. Also arrays of
  64-bit integers, 64-bit floats and booleans, with the coders of these, which decode to Python's types.
- Tables of Arrow and frames of pandas with rows whose fields are numbers, strings, bytes (in tables) or booleans, or
  null where the row's schema allows it. `RowCoder` decodes to the schema's own named tuples of Python's values.

A batch that differs from its converter's declaration (another dtype, other columns, a null where none is allowed,
invalid text) does not stay whole. Its elements are encoded, and fail or are converted by the coder. Between the two
sides a batch is *packed*: an array, or a table of the coder's own columns, whatever converters the two sides have.
"""

from __future__ import annotations

from math import prod
from typing import Any, Protocol

import numpy as np
from apache_beam import coders
from apache_beam.coders import coder_impl, row_coder
from apache_beam.typehints.batch import NumpyBatchConverter

from arcbeam.harness.encoding.untyped import NUMBERS, is_named_tuple, rows_of
from arcbeam.sizes import threshold

_OF_PYTHON = {
    coders.VarIntCoder: np.dtype(np.int64),
    coders.FloatCoder: np.dtype(np.float64),
    coders.BooleanCoder: np.dtype(np.bool_),
}
_FIELDS = {
    row_coder.VarIntCoder: "int64",
    row_coder.VarInt32Coder: "int32",
    row_coder.BigEndianShortCoder: "int16",
    row_coder.FloatCoder: "float64",
    row_coder.SinglePrecisionFloatCoder: "float32",
    row_coder.BooleanCoder: "bool",
    row_coder.StrUtf8Coder: "string",
    row_coder.BytesCoder: "binary",
}
"""Coders of fields, and the Arrow type (by its alias) whose Python values they decode unchanged."""
_OF_PANDAS = {
    "int64": ("int64", "Int64"),
    "int32": ("int32", "Int32"),
    "int16": ("int16", "Int16"),
    "double": ("float64",),
    "float": ("float32",),
    "bool": ("bool", "boolean"),
    "string": ("string",),
}
"""By Arrow type, the pandas dtypes that contain only such values, or nulls."""
_KEPT = threshold(1 << 16)
"""Bytes that may be kept alive besides a table's own."""


class WholeForm(Protocol):
    """How batches of a PCollection's elements are packed and written. Equal forms write and decode equally."""

    def takes(self, converter: Any) -> bool:
        """Return whether batches of a converter can be packed."""
        ...

    def pack(self, batch: Any, converter: Any) -> Any:
        """Pack a batch of a supported converter, valid while the batch is unchanged; None if not known to be exact.

        May raise any exception if the batch is invalid.
        """
        ...

    def unpack(self, packed: Any, converter: Any) -> Any:
        """Return what a converter would make of the elements; None if that is not known."""
        ...

    def own(self, packed: Any) -> Any:
        """Return an equal packed batch that is independent of the batch, and keeps little other memory alive."""
        ...

    def values(self, packed: Any) -> list[Any]:
        """Return the elements as the coder would decode them."""
        ...

    def part(self, packed: Any, start: int, stop: int) -> Any:
        """Return a part, as a list's slice does."""
        ...

    def join(self, parts: list[Any]) -> Any:
        """Concatenate parts."""
        ...

    def encode(self, packed: Any) -> bytes:
        """Encode; raise any exception if that is impossible."""
        ...

    def read(self, stream: Any, count: int) -> Any:
        """Read a packed batch with this number of elements from the SDK's input stream."""
        ...


def whole_form(coder: Any) -> WholeForm | None:
    """Return the form of batches of a coder's values; None if none may be whole."""
    kind = type(coder)
    if kind is coders.FastPrimitivesCoder or kind in _OF_PYTHON:
        return _Arrays(_OF_PYTHON.get(kind))
    if kind is not row_coder.RowCoder or not coder.components or coder.schema.encoding_positions_set:
        return None
    names = [field.name for field in coder.schema.fields]
    nullable = [bool(field.type.nullable) for field in coder.schema.fields]
    types = [_FIELDS.get(type(component)) for component in coder.components]
    if None in types or not _are_rows(coder.to_type_hint(), names):
        return None
    return _Tables(coder.to_type_hint(), names, types, nullable)


def is_converter(converter: Any, of: str, name: str) -> bool:
    """Return whether a converter is of a class of the SDK's module for Arrow or pandas, which may be missing."""
    kind = type(converter)
    return kind.__module__ == f"apache_beam.typehints.{of}_type_compatibility" and kind.__name__.startswith(name)


def _are_rows(kind: Any, names: list[str]) -> bool:
    return is_named_tuple(kind) and kind._fields == tuple(names)


class _Arrays:
    """Arrays of numbers; the first dimension is that of the elements.

    Args:
        only: the dtype whose values are decoded as Python's numbers; None: any dtype, decoded as numpy's numbers.
    """

    def __init__(self, only: Any) -> None:
        self._only = only

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Arrays) and self._only == other._only

    def __hash__(self) -> int:
        return hash(self._only)

    def takes(self, converter: Any) -> bool:
        # SUBTLE: from the third dimension on, the SDK splits arrays in another way than it builds them.
        if type(converter) is not NumpyBatchConverter or converter.partition_dimension > 1:
            return False
        if self._only is not None:
            return bool(converter.dtype == self._only and converter.element_shape == ())
        return bool(converter.dtype.kind in NUMBERS and converter.dtype.isnative)

    def pack(self, batch: Any, converter: Any) -> Any:
        if type(batch) is not np.ndarray or not _is_of(batch, converter):
            return None
        # Whether an array is writeable is pickled, too.
        if batch.ndim > 1 and not batch.flags.writeable:
            return None
        array = batch.swapaxes(converter.partition_dimension, 0)
        return array if array.shape[1:] == converter.element_shape else None

    def unpack(self, packed: Any, converter: Any) -> Any:
        if not self.takes(converter) or not _is_of(packed, converter) or packed.shape[1:] != converter.element_shape:
            return None
        # Each batch is a copy, and can be written to.
        return packed.swapaxes(0, converter.partition_dimension).copy()

    def own(self, packed: Any) -> Any:
        return packed.copy()

    def values(self, packed: Any) -> list[Any]:
        if self._only is not None:
            numbers: list[Any] = packed.tolist()
            return numbers
        return list(packed) if packed.ndim == 1 else [array.copy() for array in packed]

    def part(self, packed: Any, start: int, stop: int) -> Any:
        return packed[start:stop]

    def join(self, parts: list[Any]) -> Any:
        return np.concatenate(parts)

    def encode(self, packed: Any) -> bytes:
        stream = coder_impl.create_OutputStream()
        stream.write(packed.dtype.char.encode())
        stream.write_byte(packed.ndim - 1)
        for length in packed.shape[1:]:
            stream.write_var_int64(length)
        stream.write(packed.tobytes())
        encoded: bytes = stream.get()
        return encoded

    def read(self, stream: Any, count: int) -> Any:
        dtype = np.dtype(stream.read(1).decode())
        shape = [stream.read_var_int64() for _ in range(stream.read_byte())]
        return np.frombuffer(stream.read(count * prod(shape) * dtype.itemsize), dtype).reshape(count, *shape)


def _is_of(array: Any, converter: Any) -> bool:
    # Two equal dtypes may be distinct, with numbers of different types.
    char, dimensions = converter.dtype.char, 1 + len(converter.element_shape)
    return bool(array.dtype.char == char and array.dtype.isnative and array.ndim == dimensions)


class _Tables:
    """Arrow tables of the fields of rows.

    Args:
        kind: type of the decoded rows.
        names: names of the fields.
        types: Arrow types, by their aliases.
        nullable: whether a field may be null.
    """

    def __init__(self, kind: Any, names: list[str], types: list[Any], nullable: list[bool]) -> None:
        import pyarrow

        self._arrow, self._kind, self._names, self._nullable = pyarrow, kind, names, nullable
        self._types = [pyarrow.type_for_alias(alias) for alias in types]
        # How pandas represents bytes depends on the contents of a frame.
        self._of_pandas = all(str(each) in _OF_PANDAS for each in self._types)
        self._schema = pyarrow.schema(list(zip(names, self._types, strict=True)))
        self._key = kind, tuple(names), tuple(types), tuple(nullable)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Tables) and self._key == other._key

    def __hash__(self) -> int:
        return hash(self._key)

    def takes(self, converter: Any) -> bool:
        if is_converter(converter, "arrow", "PyarrowBatchConverter"):
            schema = converter._arrow_schema
            if schema.names != self._names or schema.types != self._types:
                return False
        elif not (is_converter(converter, "pandas", "DataFrameBatchConverterDropIndex") and self._of_pandas):
            return False
        return _are_rows(converter.element_type.user_type, self._names)

    def pack(self, batch: Any, converter: Any) -> Any:
        of_arrow = type(batch) is self._arrow.Table
        columns = self._columns_of_table(batch) if of_arrow else self._columns_of_frame(batch)
        if columns is None:
            return None
        for column, nullable in zip(columns, self._nullable, strict=True):
            if column.null_count and not nullable:
                return None
        packed = self._arrow.Table.from_arrays(columns, schema=self._schema)
        packed.validate(full=True)
        return packed

    def _columns_of_table(self, table: Any) -> Any:
        schema = table.schema
        return table.columns if schema.names == self._names and schema.types == self._types else None

    def _columns_of_frame(self, frame: Any) -> Any:
        if list(frame.columns) != self._names:
            return None
        if any(str(dtype) not in _OF_PANDAS[str(to)] for dtype, to in zip(frame.dtypes, self._types, strict=True)):
            return None
        # Without a copy, Arrow would share the frame's memory, which may be written to.
        return [
            self._arrow.array(frame[name].copy(), type=to, from_pandas=True)
            for name, to in zip(self._names, self._types, strict=True)
        ]

    def unpack(self, packed: Any, converter: Any) -> Any:
        if not self.takes(converter):
            return None
        columns = packed.combine_chunks().columns
        if is_converter(converter, "arrow", "PyarrowBatchConverter"):
            return self._arrow.Table.from_arrays(columns, schema=converter._arrow_schema)
        return _frame_of(columns, converter)

    def own(self, packed: Any) -> Any:
        if packed.get_total_buffer_size() <= 2 * packed.nbytes + _KEPT:
            return packed
        return self._decode(self._encoded(packed))

    def values(self, packed: Any) -> list[Any]:
        return rows_of(self._kind, [column.to_pylist() for column in packed.columns])

    def part(self, packed: Any, start: int, stop: int) -> Any:
        return packed.slice(start, stop - start)

    def join(self, parts: list[Any]) -> Any:
        return self._arrow.concat_tables(parts)

    def encode(self, packed: Any) -> bytes:
        stream = coder_impl.create_OutputStream()
        stream.write(self._encoded(packed), True)
        encoded: bytes = stream.get()
        return encoded

    def read(self, stream: Any, count: int) -> Any:
        return self._decode(stream.read_all(True))

    def _encoded(self, packed: Any) -> bytes:
        (records,) = packed.combine_chunks().to_batches()
        encoded: bytes = records.serialize().to_pybytes()
        return encoded

    def _decode(self, encoded: bytes) -> Any:
        records = self._arrow.ipc.read_record_batch(self._arrow.py_buffer(encoded), self._schema)
        return self._arrow.Table.from_batches([records])


def _frame_of(columns: Any, converter: Any) -> Any:
    """Return the frame that a converter makes of rows, from columns."""
    import pandas  # type: ignore[import-untyped]
    from apache_beam.typehints.pandas_type_compatibility import dtype_from_typehint

    # As pandas does with records: integers among nulls are converted to floats first.
    return pandas.DataFrame(
        {
            name: column.to_pandas().astype(dtype_from_typehint(typehint))
            for column, (name, typehint) in zip(columns, converter.element_type._fields, strict=True)
        }
    )
