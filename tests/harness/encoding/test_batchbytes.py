"""Batches that cross an exchange whole: the results are the same as for their elements."""

import contextlib
from collections.abc import Iterator
from typing import Any, NamedTuple, Optional

import apache_beam as beam
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from apache_beam import coders
from apache_beam.coders.coders import GlobalWindowCoder
from apache_beam.transforms.window import FixedWindows, GlobalWindow, SlidingWindows, TimestampedValue
from apache_beam.typehints.batch import BatchConverter, N, NumpyArray
from apache_beam.utils.windowed_value import PANE_INFO_UNKNOWN
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from arcbeam.harness.encoding.batchbytes import whole_form
from arcbeam.harness.encoding.blocks import Block, BlockCoder, WholeBlock, gathered
from arcbeam.harness.encoding.frames import BLOB_BYTES
from arcbeam.harness.operations.elementwrite import ElementWrite
from arcbeam.harness.operations.taskcontext import TaskSettings
from tests.harness.drive import Collect, Driven
from tests.harness.transforms.comparing import Outcome, exact
from tests.harness.transforms.test_batches import by_name, operations_of, plan_of

# How a stage makes batches, and how the next one takes them.


class Row(NamedTuple):
    n: int
    name: Optional[str]  # noqa: UP045  # the SDK does not know the other form
    share: float
    some: Optional[int]  # noqa: UP045
    much: Optional[float]  # noqa: UP045
    yes: bool
    perhaps: Optional[bool]  # noqa: UP045


class Small(NamedTuple):
    a: np.int32
    b: np.int16
    c: np.float32
    d: bytes


class Nested(NamedTuple):
    n: int
    within: Row


for row_type in (Row, Small, Nested):
    beam.coders.registry.register_coder(row_type, beam.coders.RowCoder)

PAIRS = NumpyArray[np.int64, (2,)]


class Makes(beam.DoFn):
    """Outputs batches."""

    def __init__(self, element: Any, kind: Any, batches: list[Any]) -> None:
        self._element, self._kind, self._batches = element, kind, batches

    @beam.DoFn.yields_batches
    def process(self, element: Any) -> Iterator[Any]:
        for batch in self._batches:
            yield batch
            if isinstance(batch, np.ndarray) and batch.ndim == 1:
                # After the output, the batch belongs to the DoFn again (the SDK keeps arrays in it).
                batch[...] = 0

    def get_output_batch_type(self, input_element_type: Any) -> Any:
        return self._kind

    def infer_output_type(self, input_type: Any) -> Any:
        return self._element


class Looks(beam.DoFn):
    """Outputs the elements of its batches as text, with the properties of the batch."""

    def __init__(self, element: Any, kind: Any, alone: bool = False) -> None:
        self._element, self._kind, self._alone = element, kind, alone

    @beam.DoFn.yields_elements
    def process_batch(self, batch: Any) -> Iterator[str]:
        properties = about(batch)
        converter = BatchConverter.from_typehints(element_type=self._element, batch_type=self._kind)
        for value in converter.explode_batch(batch):
            yield f"{properties} {exact(value)} {list(map(type, value)) if isinstance(value, tuple) else ''}"
        # The SDK passes different windows here.
        if isinstance(batch, np.ndarray) and self._alone:
            batch[...] = 0
        if isinstance(batch, pd.DataFrame) and self._alone:
            batch.loc[:, "n"] = 0

    def get_input_batch_type(self, input_element_type: Any) -> Any:
        return self._kind

    def infer_output_type(self, input_type: Any) -> Any:
        return str


def about(batch: Any) -> str:
    if isinstance(batch, np.ndarray):
        return f"{batch.dtype.char} {batch.ndim} {batch.flags.c_contiguous} {batch.flags.writeable}"
    if isinstance(batch, pa.Table):
        return f"{batch.schema.to_string(show_field_metadata=True, show_schema_metadata=True)} {batch.schema.metadata}"
    if isinstance(batch, pd.DataFrame):
        return f"{batch.dtypes.to_dict()} {type(batch.index)} {batch.columns!r}"
    return str(type(batch))


def rows(count: int) -> list[Row]:
    return [
        Row(
            n,
            None if n % 3 == 0 else f"näme {n}",
            n / 7,
            *maybe(n, 4, n),
            *maybe(n, 5, n / 3),
            n % 2 == 0,
            *maybe(n, 7, True),
        )
        for n in range(count)
    ]


def maybe(n: int, every: int, value: Any) -> tuple[Any]:
    return (None,) if n % every == 0 else (value,)


def batch_of(element: Any, kind: Any, values: list[Any]) -> Any:
    return BatchConverter.from_typehints(element_type=element, batch_type=kind).produce_batch(values)


def table(count: int) -> pa.Table:
    return batch_of(Row, pa.Table, rows(count))


def frame(count: int) -> pd.DataFrame:
    return batch_of(Row, pd.DataFrame, rows(count))


def replaced(batch: pa.Table, name: str, column: Any) -> pa.Table:
    return batch.set_column(batch.schema.get_field_index(name), name, column)


small = pa.table({
    "a": pa.array(range(300), pa.int32()), "b": pa.array([-n for n in range(300)], pa.int16()),
    "c": pa.array([n / 7 for n in range(300)], pa.float32()), "d": pa.array([bytes([n % 256]) for n in range(300)]),
})  # fmt: skip

TABLES = [table(300), table(0), table(1), table(200).slice(10, 150), pa.concat_tables([table(40)] * 3)]
FRAMES = [frame(300), frame(0), frame(1), frame(200)[10:190], frame(100).set_index(np.arange(100) * 3)]

WHOLE: dict[str, tuple[Any, Any, list[Any]]] = {
    "int64": (np.int64, np.ndarray, [np.arange(900), np.arange(5), np.arange(0), np.arange(1), np.arange(300)[::-2]]),
    "float32": (np.float32, np.ndarray, [np.linspace(-1, 1, 500, dtype=np.float32)]),
    "float64": (np.float64, np.ndarray, [np.array([np.nan, -0.0, np.inf] * 100)]),
    "complex": (np.complex128, np.ndarray, [np.arange(300) * 1j]),
    "bool_": (np.bool_, np.ndarray, [np.arange(300) % 3 == 0]),
    "int": (int, np.ndarray, [np.arange(300) - 2**62]),
    "float": (float, np.ndarray, [np.array([np.nan, -0.0, np.inf, 0.1] * 100)]),
    "bool": (bool, np.ndarray, [np.arange(300) % 3 == 0]),
    "pairs": (PAIRS, NumpyArray[np.int64, (N, 2)], [np.arange(800).reshape(400, 2), np.arange(800).reshape(2, 400).T]),
    "pairs beside": (PAIRS, NumpyArray[np.int64, (2, N)], [np.arange(800).reshape(2, 400)]),
    "matrices": (NumpyArray[np.float32, (3, 2)], NumpyArray[np.float32, (N, 3, 2)], [np.ones((200, 3, 2), np.float32)]),
    "table": (Row, pa.Table, TABLES),
    "nan in a table": (Row, pa.Table, [replaced(table(300), "share", pa.array([float("nan")] * 300))]),
    "small numbers": (Small, pa.Table, [small, small.slice(100, 90)]),
    "frame": (Row, pd.DataFrame, FRAMES),
    "frame without null": (Row, pd.DataFrame, [frame(300)[lambda f: f.notna().all(axis=1)]]),
}  # fmt: skip
"""Batches that stay whole, if they are long enough."""

BY_ELEMENTS: dict[str, tuple[Any, Any, list[Any]]] = {
    "another dtype": (np.int64, np.ndarray, [np.arange(300, dtype=np.int32), np.arange(300.0)]),
    "a dtype's twin": (np.int64, np.ndarray, [np.arange(300, dtype=np.longlong)]),
    "the other byte order": (np.int64, np.ndarray, [np.arange(300, dtype=">i8")]),
    "an int's dtype": (int, np.ndarray, [np.arange(300, dtype=np.int32)]),
    "objects": (object, np.ndarray, [np.array([n if n % 2 else str(n) for n in range(300)], object)]),
    "lists": (np.int64, list[np.int64], [list(np.arange(300))]),
    "other columns": (Row, pa.Table, [table(300).rename_columns([*"abcdefg"])]),
    "other types": (Row, pa.Table, [replaced(table(300), "n", pa.array(range(300), pa.int32()))]),
    "a column too much": (Row, pd.DataFrame, [frame(300).assign(more=1)]),
    "a null where none may be": (Row, pa.Table, [replaced(table(300), "n", pa.array([None] * 300, pa.int64()))]),
    "NaN where no null may be": (Row, pd.DataFrame, [frame(300).assign(share=float("nan"))]),
    "text that is none": (Row, pa.Table, [replaced(table(100), "name", pa.array([b"\xff"] * 100).view(pa.string()))]),
    "an object's column": (Row, pd.DataFrame, [frame(300).astype({"name": object, "some": object})]),
    "rows in rows": (Nested, pd.DataFrame, [batch_of(Nested, pd.DataFrame, [Nested(1, rows(1)[0])] * 100)]),
    "no batch": (np.int64, np.ndarray, [[1, 2, 3]]),
}
"""Batches that do not stay whole: their elements fail, or are encoded separately."""


def exchanged(p: Driven, element: Any, kind: Any, batches: list[Any], then: Any) -> None:
    made = p | beam.Create([0], reshuffle=False) | "makes" >> beam.ParDo(Makes(element, kind, batches))
    moved = made | beam.Reshuffle().with_output_types(element)
    for name, readers_kind in then.items():
        if readers_kind is None:
            moved | f"to {name}" >> beam.Map(lambda value: value).with_output_types(Any) | Collect(name)
        else:
            moved | f"looks {name}" >> beam.ParDo(Looks(element, readers_kind, len(then) == 1)) | Collect(name)


def same(element: Any, kind: Any, batches: list[Any], then: Any, edit: Any = None, **more: Any) -> Outcome:
    """Return the results with all options, after checking that they are the same without."""
    p = Driven()
    if edit is None:
        exchanged(p, element, kind, batches, then)
    else:
        edit(p)
    plan = plan_of(p)
    on, *others = (
        Outcome(p, plan, list(then), TaskSettings(**switches, **more))
        for switches in ({}, {"batches": False}, *([{"bulk_values": False}] if edit else []))
    )
    for off in others:
        assert on.error == off.error
        assert on.seen == off.seen
        if on.error is None:
            assert by_name(on) == by_name(off)
            assert on.sampled.keys() == off.sampled.keys()
    return on


@pytest.mark.parametrize("case", [*WHOLE, *BY_ELEMENTS])
@pytest.mark.parametrize(("shards", "bundle_elements"), [(1, 500_000), (3, 70)])
def test_elements_and_batches_are_unchanged(case: str, shards: int, bundle_elements: int) -> None:
    element, kind, batches = (WHOLE | BY_ELEMENTS)[case]
    then = {"elements": None, "batches": kind}
    if kind in (pa.Table, pd.DataFrame):
        then |= {"tables": pa.Table, "frames": pd.DataFrame}
    if element in (int, np.int64):
        then["lists"] = list[element]
    for readers in ({name: then[name]} for name in then) if shards == 1 else (then,):
        same(element, kind, batches, readers, shards=shards, bundle_elements=bundle_elements)


def test_large_integers_among_nulls_are_unchanged() -> None:
    large = batch_of(Row, pa.Table, [row._replace(some=2**60 + row.n if row.n % 4 else None) for row in rows(200)])
    same(Row, pa.Table, [large], {"frames": pd.DataFrame, "tables": pa.Table}, shards=1)


# Which batches stay whole.


def form_of(element: Any, kind: Any) -> tuple[Any, Any]:
    coder = coders.registry.get_coder(element)
    return whole_form(coder), BatchConverter.from_typehints(element_type=element, batch_type=kind)


@pytest.mark.parametrize("case", WHOLE)
def test_batches_that_stay_whole(case: str) -> None:
    element, kind, batches = WHOLE[case]
    form, converter = form_of(element, kind)
    assert form.takes(converter)
    for batch in batches:
        packed = form.pack(batch, converter)
        assert packed is not None
        assert len(packed) == converter.get_length(batch)


@pytest.mark.parametrize("case", BY_ELEMENTS)
def test_batches_that_become_elements(case: str) -> None:
    element, kind, batches = BY_ELEMENTS[case]
    form, converter = form_of(element, kind)
    if form is None or not form.takes(converter):
        return
    for batch in batches:
        with contextlib.suppress(pa.ArrowInvalid, AttributeError):
            assert form.pack(batch, converter) is None


class Notes(beam.DoFn):
    seen: list[Any] = []  # noqa: RUF012

    def process_batch(self, batch: np.ndarray) -> Iterator[np.ndarray]:
        Notes.seen.append(batch)
        yield batch

    def infer_output_type(self, input_type: Any) -> Any:
        return input_type


@pytest.mark.parametrize("switches", [{}, {"batches": False}, {"bulk_values": False}])
def test_batch_is_split_into_piece_per_shard(switches: dict[str, bool]) -> None:
    Notes.seen = []
    with Driven(shards=3, **switches) as p:
        made = p | beam.Create([0], reshuffle=False) | beam.ParDo(Makes(np.int64, np.ndarray, [np.arange(900)]))
        made | beam.Reshuffle().with_output_types(np.int64) | beam.ParDo(Notes())
    in_a_row = sum((np.diff(batch) == 1).sum() for batch in Notes.seen)
    assert sorted(np.concatenate(Notes.seen)) == list(range(900))
    if switches:
        assert in_a_row == 0
    else:
        assert in_a_row > 800
        assert [len(batch) for batch in Notes.seen] == [300] * 3


def test_sizes_of_batches_are_unchanged() -> None:
    Notes.seen = []
    with Driven(shards=2) as p:
        batches = [np.arange(n, n + 100) for n in range(0, 20_000, 100)] + [np.arange(20_000, 60_000)]
        made = p | beam.Create([0], reshuffle=False) | beam.ParDo(Makes(np.int64, np.ndarray, batches))
        made | beam.Reshuffle().with_output_types(np.int64) | beam.ParDo(Notes())
    assert sorted(np.concatenate(Notes.seen)) == list(range(60_000))
    assert 2000 < max(map(len, Notes.seen)) <= 4096
    assert len(Notes.seen) < 40


@pytest.mark.parametrize("shards", [1, 4])
@pytest.mark.parametrize("width", [100, 3_000])
def test_blobs_stay_small(shards: int, width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = []
    put = ElementWrite._put
    monkeypatch.setattr(
        ElementWrite, "_put", lambda self, s, b, blob: (sizes.append(len(blob)), put(self, s, b, blob))[1]
    )
    huge = np.arange(1_000_000 // width * width).reshape(-1, width)
    element, kind = NumpyArray[np.int64, (width,)], NumpyArray[np.int64, (N, width)]
    p = Driven()
    exchanged(p, element, kind, [huge], {})
    Outcome(p, plan_of(p), [], TaskSettings(shards=shards))
    assert sum(sizes) >= huge.nbytes
    assert max(sizes) < 1.5 * BLOB_BYTES


@pytest.mark.parametrize("shards", [1, 3, 50])
@pytest.mark.parametrize("lengths", [(16,), (16, 17, 20, 45)])
def test_few_large_elements_all_arrive(shards: int, lengths: tuple[int, ...]) -> None:
    element, kind = NumpyArray[np.int64, (3_000,)], NumpyArray[np.int64, (N, 3_000)]
    batches = [np.arange(n * 3_000).reshape(n, 3_000) for n in lengths]
    p = Driven()
    made = p | beam.Create([0], reshuffle=False) | beam.ParDo(Makes(element, kind, batches))
    made | beam.Reshuffle().with_output_types(element) | beam.Map(lambda x: int(x[0])) | Collect()
    outcome = Outcome(p, plan_of(p), [""], TaskSettings(shards=shards))
    assert outcome.values() == sorted(f"int:{3_000 * i}" for n in lengths for i in range(n))


def test_part_of_table_does_not_keep_whole_table() -> None:
    form, converter = form_of(Row, pa.Table)
    part = form.pack(pa.concat_tables([table(2000)] * 10).combine_chunks().slice(3, 100), converter)
    own = form.own(part)
    assert own.equals(part)
    assert own.get_total_buffer_size() < part.get_total_buffer_size() / 50


def test_writes_that_take_batches() -> None:
    def build(p: Driven) -> None:
        exchanged(p, np.int64, np.ndarray, [np.arange(3)], {"": np.ndarray})

    _, converter = form_of(np.int64, np.ndarray)
    for switches, expected in (({}, True), ({"batches": False}, False), ({"bulk_values": False}, False)):
        writes = [op for op in operations_of(build, **switches).values() if isinstance(op, ElementWrite)]
        assert any(op.takes_whole(converter) for op in writes) == expected


# Times, windows, panes, errors.

STEPS: dict[str, Any] = {
    "times": lambda c, at: c | at >> beam.Map(lambda x: TimestampedValue(x, int(x) % 3)).with_output_types(np.int64),
    "fixed": lambda c, at: c | at >> beam.WindowInto(FixedWindows(2)),
    "sliding": lambda c, at: c | at >> beam.WindowInto(SlidingWindows(4, 2)),
    "exchange": lambda c, at: c | at >> beam.Reshuffle().with_output_types(np.int64),
    "arrays": lambda c, at: c | at >> beam.ParDo(Notes()),
    "looks": lambda c, at: (c | f"{at} aside" >> beam.ParDo(Looks(np.int64, np.ndarray)) | Collect(at), c)[1],
    "map": lambda c, at: c | at >> beam.Map(lambda x: x + 1).with_output_types(np.int64),
}


@pytest.mark.contract("PLAN-05")
@settings(max_examples=30, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.lists(st.sampled_from([0, 1, 15, 16, 127, 128, 200, 1000]), min_size=1, max_size=4),
    st.lists(st.sampled_from(sorted(STEPS)), max_size=6),
    st.sampled_from([500_000, 100, 7]),
    st.sampled_from([1, 2, 5]),
)
def test_pipelines_have_same_results(lengths: list[int], wanted: list[str], bundle_elements: int, shards: int) -> None:
    def build(p: Driven) -> None:
        batches = [np.arange(length) for length in lengths]
        found = p | beam.Create([0], reshuffle=False) | "makes" >> beam.ParDo(Makes(np.int64, np.ndarray, batches))
        for place, step in enumerate(wanted):
            found = STEPS[step](found, str(place))
        found | Collect()

    Notes.seen = []
    asides = {str(place): None for place, step in enumerate(wanted) if step == "looks"}
    same(None, None, [], {"": None, **asides}, build, bundle_elements=bundle_elements, shards=shards)


class Breaks(Notes):
    def process_batch(self, batch: np.ndarray) -> Iterator[np.ndarray]:
        raise ValueError("no")
        yield batch


def test_error_names_transform() -> None:
    def build(p: Driven) -> None:
        made = p | beam.Create([0]) | beam.ParDo(Makes(np.int64, np.ndarray, [np.arange(900)]))
        made | beam.Reshuffle().with_output_types(np.int64) | "breaks" >> beam.ParDo(Breaks())

    assert same(None, None, [], {}, build).error == (ValueError, "no [while running 'breaks']")


# Blocks.


def whole_block(array: Any, micros: int = 0) -> WholeBlock:
    form = whole_form(coders.FastPrimitivesCoder())
    assert form is not None
    return WholeBlock(form, array, micros, (GlobalWindow(),), PANE_INFO_UNKNOWN)


def test_whole_block_behaves_like_block() -> None:
    block = whole_block(np.arange(10), 5)
    assert len(block) == 10
    assert [e.value for e in block.elements()] == list(range(10))
    assert (block.element(3).value, block.element(-1).value, block.element(0).timestamp_micros) == (3, 9, 5)
    part, steps = block.slice(2, 5), block.slice(1, None, 4)
    assert isinstance(part, WholeBlock)
    assert (part.values, steps.values) == ([2, 3, 4], [1, 5, 9])
    assert [len(each) for each in block.parts(4)] == [4, 4, 2]
    with pytest.raises(AttributeError):
        block.nothing  # noqa: B018


def test_equal_batches_are_joined() -> None:
    blocks: list[Block] = [whole_block(np.arange(3)), whole_block(np.arange(2), 7), whole_block(np.arange(4))]
    blocks.append(Block([1], 0, (GlobalWindow(),), PANE_INFO_UNKNOWN))
    assert [(type(b), len(b)) for b in gathered(blocks)] == [(WholeBlock, 7), (WholeBlock, 2), (Block, 1)]
    assert [(type(b), len(b)) for b in gathered(blocks, 20)] == [(WholeBlock, 7), (Block, 3)]


@pytest.mark.parametrize(
    ("read_with", "expected"), [(coders.FastPrimitivesCoder(), "int64"), (coders.VarIntCoder(), "int")]
)
def test_batch_of_other_coder_becomes_elements(read_with: Any, expected: str) -> None:
    windowed = coders.WindowedValueCoder(coders.FastPrimitivesCoder(), GlobalWindowCoder())
    form = whole_form(read_with)
    assert form is not None
    stream = coders.coder_impl.create_OutputStream()
    BlockCoder(windowed).write(WholeBlock(form, np.arange(3), 0, (GlobalWindow(),), PANE_INFO_UNKNOWN), stream)
    (read,) = BlockCoder(windowed).read(stream.get())
    assert [exact(value) for value in read.values] == [exact(getattr(np, expected, int)(n)) for n in range(3)]
    assert isinstance(read, WholeBlock) == (expected == "int64")


def test_forms_are_equal_if_decoding_is_equal() -> None:
    each = [
        coders.FastPrimitivesCoder(),
        coders.VarIntCoder(),
        coders.FloatCoder(),
        *map(coders.registry.get_coder, (Row, Small)),
    ]
    forms = list(map(whole_form, each))
    assert [whole_form(coder) for coder in each] == forms
    assert len(set(forms)) == len(forms)


def test_unencodable_batch_becomes_elements() -> None:
    coder = BlockCoder(coders.WindowedValueCoder(coders.FastPrimitivesCoder(), GlobalWindowCoder()))
    stream = coders.coder_impl.create_OutputStream()
    block = whole_block([np.int64(1), 2])
    block.values = [np.int64(1), 2]
    coder.write(block, stream)
    (read,) = coder.read(stream.get())
    assert type(read) is Block
    assert read.values == [1, 2]
