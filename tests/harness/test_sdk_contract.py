"""The SDK internals that the harness relies on. A Beam upgrade that changes one fails here, by name."""

import dataclasses
import inspect
import io
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import apache_beam as beam
import numpy as np
import pandas
import pyarrow
import pytest
from apache_beam import coders
from apache_beam.coders import VarIntCoder, coder_impl
from apache_beam.internal import cloudpickle_pickler, pickler
from apache_beam.internal.cloudpickle import cloudpickle
from apache_beam.io.restriction_trackers import OffsetRange, OffsetRestrictionTracker
from apache_beam.io.watermark_estimators import ManualWatermarkEstimator, MonotonicWatermarkEstimator
from apache_beam.pvalue import TaggedOutput
from apache_beam.runners import common, sdf_utils
from apache_beam.runners.worker import bundle_processor, opcounters, operations
from apache_beam.transforms import core
from apache_beam.transforms.timeutil import TimeDomain
from apache_beam.transforms.userstate import BagStateSpec, OrderedListStateSpec, TimerSpec, on_timer
from apache_beam.transforms.window import GlobalWindow, GlobalWindows, TimestampedValue
from apache_beam.typehints.batch import BatchConverter
from apache_beam.typehints.typecheck import AbstractDoFnWrapper
from apache_beam.utils.counters import CounterFactory
from apache_beam.utils.timestamp import Timestamp
from apache_beam.utils.windowed_value import HomogeneousWindowedBatch, WindowedValue

from arcbeam.harness.bundle import splittable
from arcbeam.harness.bundle.finalization import Callbacks
from arcbeam.harness.bundle.graceful import dofn_of
from arcbeam.harness.encoding import keycoders
from arcbeam.harness.encoding.frames import COUNT
from arcbeam.harness.encoding.untyped import is_named_tuple
from arcbeam.harness.operations import read, writes
from arcbeam.harness.state.handler import InProcessStateHandler
from arcbeam.harness.stateful.arguments import ProcessArguments, TimerArguments
from arcbeam.harness.transforms import precombine, values, vectorization
from arcbeam.harness.transforms.outputs import micros_of
from arcbeam.model.urns import PRECOMBINE_URN, READ_URN, WRITE_URN
from tests.harness.drive import Driven
from tests.offsets import Endless


class Point(NamedTuple):
    x: int
    name: str


def test_bundle_processor_has_required_attributes() -> None:
    wanted = {
        "create_execution_tree",
        "delayed_bundle_application",
        "finalize_bundle",
        "monitoring_infos",
        "reset",
        "shutdown",
    }
    assert wanted <= set(dir(bundle_processor.BundleProcessor))
    parameters = list(inspect.signature(bundle_processor.BundleProcessor.__init__).parameters)
    assert parameters[1:5] == [
        "runner_capabilities",
        "process_bundle_descriptor",
        "state_handler",
        "data_channel_factory",
    ]


def test_data_plane_of_an_input_operation_is_its_last_argument() -> None:
    parameters = list(inspect.signature(bundle_processor.DataInputOperation.__init__).parameters)
    assert parameters[-2] == "transform_id"
    assert parameters[-1] in ("data_channel", "data_channel_factory")  # Beam 2.76, 2.77
    assert len(parameters) == 9


def test_execution_context_collects_deferrals() -> None:
    fields = {field.name for field in dataclasses.fields(bundle_processor.ExecutionContext)}
    assert {"delayed_applications", "instruction_id"} <= fields


def test_factory_creates_our_operations() -> None:
    for module in (read, writes, precombine, vectorization):
        module.register()
    known = bundle_processor.BeamTransformFactory._known_urns
    assert {READ_URN, WRITE_URN, PRECOMBINE_URN, *vectorization.OURS, *vectorization.OURS.values()} <= set(known)


def test_operations_have_overridden_hooks() -> None:
    hooks = {"setup", "start", "process", "finish", "teardown", "reset", "try_split", "current_element_progress"}
    assert hooks <= set(dir(operations.Operation))


def test_list_is_encoded_as_count_and_elements() -> None:
    encoded = coders.ListCoder(coders.VarIntCoder()).encode([1, 2, 3])
    assert COUNT.unpack_from(encoded) == (3,)
    assert encoded[COUNT.size :] == b"\x01\x02\x03"


def test_windowed_value_has_microseconds_and_with_value() -> None:
    element = WindowedValue("a", 1.5, (GlobalWindow(),))
    assert element.timestamp_micros == 1_500_000
    other = element.with_value("b")
    assert (other.value, other.windows) == ("b", element.windows)


def test_iterable_types_can_be_registered() -> None:
    assert callable(coder_impl.FastPrimitivesCoderImpl.register_iterable_like_type)


@pytest.mark.contract("SDF-13")
def test_finalization_callbacks_outlive_reset_and_run_once() -> None:
    param = beam.DoFn.BundleFinalizerParam()
    ran: list[int] = []
    callbacks = Callbacks()
    for n in range(2):
        param.register(lambda n=n: ran.append(n))
        callbacks.keep_from(param.reset)
        assert not param.has_callbacks()
    assert ran == []
    callbacks.run()
    callbacks.run()
    assert ran == [0, 1]


def test_callbacks_of_abandoned_bundles_are_dropped() -> None:
    param = beam.DoFn.BundleFinalizerParam()
    callbacks = Callbacks()
    param.register(lambda: pytest.fail("ran"))
    callbacks.keep_from(param.reset)
    callbacks.drop()
    callbacks.run()


def one(x: Any) -> Any:
    return x


def two(a: Any, b: Any) -> Any:
    return a, b


@pytest.mark.parametrize(
    ("transform", "kind", "fn", "argument", "expected"),
    [
        (beam.Map, "map", one, 7, [7]),
        (beam.Map, "map", min, (3, 7), [3]),
        (beam.MapTuple, "tuple", two, (3, 7), [(3, 7)]),
        (beam.MapTuple, "tuple", two, [3, 7], [(3, 7)]),
        (beam.Filter, "filter", one, 7, [7]),
        (beam.Filter, "filter", one, 0, []),
    ],
)
@pytest.mark.parametrize("loaded", [False, True], ids=["made", "loaded"])
def test_wrapped_functions_are_found(
    transform: Any, kind: str, fn: Callable[..., Any], argument: Any, expected: list[Any], loaded: bool
) -> None:
    dofn = transform(fn).fn
    if loaded:
        dofn = pickler.loads(pickler.dumps(dofn))
    assert values.unwrapped(dofn.process) == (kind, fn)
    for _ in range(100):  # code that has run often has other bytes internally
        assert dofn.process(argument) == expected
    assert values.unwrapped(dofn.process) == (kind, fn)


def test_other_functions_are_not_unwrapped() -> None:
    class Wrapping(beam.DoFn):  # type: ignore[misc]  # Beam is untyped
        def process(self, element: Any) -> Any:
            return [one(element)]

    fn = one
    mine = lambda x: [fn(x)]  # noqa: E731
    assert values.unwrapped(mine) is None
    for dofn in (Wrapping(), beam.FlatMap(one).fn, beam.FlatMapTuple(two).fn, beam.FlatMap(list).fn):
        assert values.unwrapped(dofn.process) is None


def test_dofn_runner_names_failing_transform_once() -> None:
    runner = common.DoFnRunner(core.DoFn(), (), {}, [], core.Windowing(GlobalWindows()), {None: None}, step_name="step")
    with pytest.raises(ValueError, match=r"^broken \[while running 'step'\]$") as raised:
        runner._reraise_augmented(ValueError("broken"))
    with pytest.raises(ValueError, match=r"^broken \[while running 'step'\]$"):
        runner._reraise_augmented(raised.value)


def test_sdk_accepts_special_outputs() -> None:
    class Receiver(common.Receiver):  # type: ignore[misc]  # Beam is untyped
        def __init__(self) -> None:
            self.received: list[Any] = []

        def receive(self, windowed_value: Any) -> None:
            self.received.append((windowed_value.value, windowed_value.timestamp_micros))

    main, other = Receiver(), Receiver()
    outputs = common._OutputHandler(GlobalWindows(), main, {"other": other}, None, None, False, False)
    element = WindowedValue("a", 1, (GlobalWindow(),))
    outputs.handle_process_outputs(element, ("b", TimestampedValue("c", 2), TaggedOutput("other", "d")))
    assert main.received == [("b", 1_000_000), ("c", 2_000_000)]
    assert other.received == [("d", 1_000_000)]


def test_first_ten_elements_are_sampled() -> None:
    coder = coders.WindowedValueCoder(coders.BytesCoder(), coders.coders.GlobalWindowCoder())
    counters = opcounters.OperationCounters(CounterFactory(), "step", coder, 0)
    for n in range(10):
        counters.update_from(WindowedValue(bytes(n), 0, (GlobalWindow(),)))
        counters.update_collect()
    counters.element_counter.update(5)
    assert counters.element_counter.value() == 15
    assert counters.mean_byte_counter.value()[2] == 10


def test_types_in_keys_are_pickled_one_way() -> None:
    keycoders.register()
    older = coders.coders.DeterministicFastPrimitivesCoder(coders.PickleCoder(), "step")
    newer = coders.coders.DeterministicFastPrimitivesCoderV2(coders.PickleCoder(), "step")
    key = Point(1, "a")
    assert older.encode(key) == newer.encode(key)
    assert older.decode(newer.encode(key)) == key
    assert type(newer.decode(older.encode(key))) is Point


# Batches (`harness.transforms.batches`, `harness.transforms.batchforms`).


class TakesArrays(beam.DoFn):
    def process_batch(self, batch: np.ndarray) -> Iterator[np.ndarray]:
        yield batch + 1

    def infer_output_type(self, input_type: Any) -> Any:
        return input_type


class MakesArrays(beam.DoFn):
    @beam.DoFn.yields_batches
    def process(self, element: np.int64) -> Iterator[np.ndarray]:
        yield np.array([element])

    def infer_output_type(self, input_type: Any) -> Any:
        return np.int64


def applied(fn: beam.DoFn) -> Any:
    """Return a DoFn as a pipeline sees it after finding out which batches it takes and makes."""
    made = beam.Pipeline() | beam.Create([1]).with_output_types(np.int64) | beam.ParDo(fn)
    return made.producer.transform.fn


def test_dofn_declares_its_batches() -> None:
    takes, makes = applied(TakesArrays()), applied(MakesArrays())
    assert (takes._process_batch_defined, takes._process_defined) == (True, False)
    assert (makes._process_batch_defined, makes._process_defined) == (False, True)
    assert takes.input_batch_converter == takes.output_batch_converter == makes.output_batch_converter
    assert makes.process._beam_yields_batches


def test_class_of_operation_can_be_chosen() -> None:
    parameters = list(inspect.signature(bundle_processor._create_pardo_operation).parameters)
    assert parameters == [
        "factory",
        "transform_id",
        "transform_proto",
        "consumers",
        "serialized_fn",
        "pardo_proto",
        "operation_cls",
    ]
    assert callable(bundle_processor.create_par_do)
    assert issubclass(operations.InefficientExecutionWarning, Warning)
    assert operations.GeneralPurposeConsumerSet.MAX_BATCH_SIZE > 0
    assert callable(operations.ConsumerSet.update_counters_batch)


def test_dofn_runner_accepts_any_receiver() -> None:
    class Receives(common.Receiver):  # type: ignore[misc]  # Beam is untyped
        def __init__(self) -> None:
            self.batches: list[Any] = []

        def receive_batch(self, windowed_batch: Any) -> None:
            self.batches.append(windowed_batch)

    receiver = Receives()
    runner = common.DoFnRunner(
        applied(TakesArrays()), (), {}, [], core.Windowing(GlobalWindows()), tagged_receivers={None: receiver}
    )
    element = WindowedValue(np.array([1, 2]), 1.5, (GlobalWindow(),))
    runner.process_batch(HomogeneousWindowedBatch(element))
    (batch,) = receiver.batches
    assert batch.values.tolist() == [2, 3]
    empty = batch.as_empty_windowed_value()
    assert (empty.timestamp_micros, empty.windows, empty.pane_info) == (1_500_000, (GlobalWindow(),), element.pane_info)


def test_converters_have_required_attributes() -> None:
    def converter(batch: Any, element: Any = Point) -> Any:
        return BatchConverter.from_typehints(element_type=element, batch_type=batch)

    assert (converter(np.ndarray, int).element_shape, converter(np.ndarray, int).partition_dimension) == ((), 0)
    table, frame = converter(pyarrow.Table), converter(pandas.DataFrame)
    assert type(table).__module__.endswith(".arrow_type_compatibility")
    assert type(table).__name__ == "PyarrowBatchConverter"
    assert table._arrow_schema.names == frame._columns == ["x", "name"]
    assert type(frame).__module__.endswith(".pandas_type_compatibility")
    assert type(frame).__name__.startswith("DataFrame")
    assert len(frame._get_series(pandas.DataFrame({"x": [1], "name": ["a"]}))) == 2
    assert table.element_type.user_type is frame.element_type.user_type is Point


# Values in bulk (`harness.encoding.bulk`, `harness.encoding.untyped`).


def test_coders_expose_components() -> None:
    assert isinstance(coders.FastPrimitivesCoder()._fallback_coder, coders.PickleCoder)
    assert list(coders.TupleCoder([coders.VarIntCoder()]).coders()) == [coders.VarIntCoder()]
    coder = coders.RowCoder.from_type_hint(Point, coders.registry)
    assert list(map(type, coder.components)) == [coders.VarIntCoder, coders.StrUtf8Coder]
    assert [(field.name, field.type.nullable) for field in coder.schema.fields] == [("x", False), ("name", False)]
    assert not coder.schema.encoding_positions_set
    assert type(coder.decode(coder.encode(Point(1, "a")))) is coder.to_type_hint() is Point


def test_named_tuple_constructor() -> None:
    assert is_named_tuple(Point)
    assert Point.__reduce_ex__ is object.__reduce_ex__


def test_global_combine_uses_key_none() -> None:
    assert list(core._KeyWithNone().process(7)) == [(None, 7)]


class Remembers(beam.DoFn):
    BAG = BagStateSpec("bag", VarIntCoder())
    TIMER = TimerSpec("timer", TimeDomain.WATERMARK)

    def process(
        self,
        element: Any,
        more: Any,
        bag: Any = beam.DoFn.StateParam(BAG),
        timer: Any = beam.DoFn.TimerParam(TIMER),
        key: Any = beam.DoFn.KeyParam,
    ) -> None: ...

    @on_timer(TIMER)
    def fires(self, tag: Any = beam.DoFn.DynamicTimerTagParam, bag: Any = beam.DoFn.StateParam(BAG)) -> None: ...


def test_parameters_of_stateful_dofn_are_read_like_sdk() -> None:
    fn = Remembers()
    signature = common.DoFnSignature(fn)
    process = ProcessArguments.of(signature.process_method, ["more"], {})
    assert process.method == fn.process
    assert (process.elements, process.args[1]) == ([0], "more")
    assert process.states == [(2, fn.BAG)]
    assert process.timers == [(3, fn.TIMER)]
    assert process.keys == [4]
    ((spec, method),) = signature.timer_methods.items()
    timer = TimerArguments.of(method)
    assert (spec, timer.method, timer.tags, timer.states) == (fn.TIMER, fn.fires, ["tag"], [("bag", fn.BAG)])


def test_user_state_context_makes_ordered_lists() -> None:
    handler = InProcessStateHandler({}, None)
    window_coder = GlobalWindows().get_window_coder()
    context: Any = bundle_processor.FnApiUserStateContext(handler, "t", VarIntCoder(), window_coder)
    ordered = context._create_state(OrderedListStateSpec("list", VarIntCoder()), 1, GlobalWindow())
    ordered.add((Timestamp(2), 7))
    ordered.commit()
    assert handler.keys() == [VarIntCoder().encode_nested(1)]


def test_threadsafe_tracker_class_is_looked_up_late() -> None:
    assert splittable.SplittableOperation, "importing the module registers our class with the SDK"
    assert issubclass(common.ThreadsafeRestrictionTracker, sdf_utils.ThreadsafeRestrictionTracker)
    assert common.ThreadsafeRestrictionTracker is not sdf_utils.ThreadsafeRestrictionTracker
    tracker = common.ThreadsafeRestrictionTracker(OffsetRestrictionTracker(OffsetRange(0, 2)))
    view = sdf_utils.RestrictionTrackerView(tracker)
    assert [view.try_claim(at) for at in range(3)] == [True, True, False]


class Counts(beam.DoFn):
    def process(
        self,
        element: Any,
        tracker: Any = beam.DoFn.RestrictionParam(Endless(9)),
        estimator: Any = beam.DoFn.WatermarkEstimatorParam(ManualWatermarkEstimator.default_provider()),
    ) -> Iterator[Any]:
        if tracker.try_claim(tracker.current_restriction().start):
            yield element
            tracker.defer_remainder()


def test_invoker_accepts_our_output_handler() -> None:
    class Takes(common.OutputHandler):  # type: ignore[misc]  # Beam is untyped
        def handle_process_outputs(self, element: Any, results: Any, watermark_estimator: Any = None) -> None:
            self.taken = element.value, list(results), type(watermark_estimator._watermark_estimator)

        def start_bundle_outputs(self, results: Any) -> None:
            self.started = results

    takes = Takes()
    state = common.DoFnState(CounterFactory())
    context = common.DoFnContext("step", state=state)
    signature = common.DoFnSignature(Counts())
    invoker = common.DoFnInvoker.create_invoker(signature, takes, context, [], (), {}, bundle_finalizer_param=None)
    invoker.invoke_setup()
    invoker.invoke_start_bundle()
    assert takes.started is None
    element = WindowedValue("a", 1, (GlobalWindow(),))
    (left,) = invoker.invoke_process(element, restriction=OffsetRange(0, 9), watermark_estimator_state=Timestamp(3))
    assert takes.taken == ("a", ["a"], ManualWatermarkEstimator)
    assert left.residual_value.value == (("a", (OffsetRange(1, 9), Timestamp(3))), 1)
    assert invoker.try_split(0.5) is invoker.current_element_progress() is None, "no restriction is running"


def test_dofn_runner_augments_foreign_errors() -> None:
    def fails() -> None:
        raise ValueError("broken")

    runner = common.DoFnRunner(core.DoFn(), (), {}, [], core.Windowing(GlobalWindows()), {None: None}, step_name="step")
    for call in (runner._invoke_lifecycle_method, runner._invoke_bundle_method):
        with pytest.raises(ValueError, match=r"^broken \[while running 'step'\]$"):
            call(fails)


def test_receivers_count_bytes_during_restriction() -> None:
    assert callable(operations._TaggedReceivers.total_output_bytes)
    assert callable(opcounters.OperationCounters.restart_sampling)
    assert operations.OpInputInfo._fields == ("transform_id", "main_input_tag", "main_input_coder", "outputs")


@pytest.mark.parametrize("seconds", [0, 7, -1.5, 1e9 + 1e-6])
def test_attributes_of_timestamp(seconds: float) -> None:
    times = [Timestamp.of(seconds), Timestamp(seconds, precision=3)]
    assert micros_of(times) == [time.micros for time in times]
    assert micros_of(times[:1]) == [times[0].micros]
    with pytest.raises(ValueError, match="greater than microsecond precision"):
        micros_of([*times, Timestamp(1, 1, precision=9)])


def test_monotonic_estimator_starts_with_none() -> None:
    provider = MonotonicWatermarkEstimator.default_provider()
    estimator = provider.create_watermark_estimator(provider.initial_estimator_state(None, None))
    assert estimator.current_watermark() is None
    for seen, watermark in ((5, 5), (9, 9), (7, 9)):
        estimator.observe_timestamp(Timestamp(seen))
        assert estimator.current_watermark() == Timestamp(watermark)
    assert estimator.get_estimator_state() == Timestamp(9)


_CALLED: list[Any] = []


class Tells(beam.DoFn):
    def process(self, element: Any) -> Iterator[Any]:
        _CALLED.append(self)
        yield element


class TellsOfWindows(beam.DoFn):
    def process(self, element: Any, window: Any = beam.DoFn.WindowParam) -> Iterator[Any]:
        _CALLED.append(self)
        yield element


@pytest.mark.parametrize("fn", [Tells, TellsOfWindows])
def test_dofn_of_sdk_operation_is_found(fn: type[beam.DoFn]) -> None:
    _CALLED.clear()
    kept: list[Any] = []
    with Driven(shards=1, value_chains=False, prepare=lambda stage: kept.extend(stage.processor.sdk.ops.values())) as p:
        _ = p | beam.Create([1], reshuffle=False) | "It" >> beam.ParDo(fn())
    op = next(op for op in kept if op.name_context.step_name == "It")
    assert type(op) is operations.DoOperation
    assert dofn_of(op) is _CALLED[0]


def test_sdk_wrappers_keep_their_dofn() -> None:
    for wrapper in (core._ExceptionHandlingWrapperDoFn, core._TimeoutDoFn, core._SubprocessDoFn):
        assert "self._fn = fn" in inspect.getsource(wrapper.__init__)
    assert "self.dofn = dofn" in inspect.getsource(AbstractDoFnWrapper.__init__)


def test_sdk_pickles_functions_with_hooked_names() -> None:
    arguments = {
        "_make_function": ("code", "globals", "name", "argdefs", "closure"),
        "_function_setstate": ("obj", "state"),
        "_make_skeleton_class": ("type_constructor", "name", "bases", "type_kwargs", "class_tracker_id", "extra"),
        "_make_skeleton_enum": ("bases", "name", "qualname", "members", "module", "class_tracker_id", "extra"),
        "_make_typevar": ("name", "bound", "constraints", "covariant", "contravariant", "class_tracker_id"),
    }
    for name, expected in arguments.items():
        assert tuple(inspect.signature(getattr(cloudpickle, name)).parameters) == expected
    assert "cloudpickle.loads(s)" in inspect.getsource(cloudpickle_pickler._loads)
    made, state = cloudpickle.Pickler(io.BytesIO())._dynamic_function_reduce(lambda: 1)[1:3]
    assert len(made) == 5
    assert {"__globals__", "__defaults__", "__kwdefaults__", "__qualname__"} <= set(state[1])
