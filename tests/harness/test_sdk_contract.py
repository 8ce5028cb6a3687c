"""What the harness leans on in the SDK's internals: a Beam upgrade that moves any of it fails here, by name."""

from __future__ import annotations

import dataclasses
import inspect

import apache_beam as beam
import pytest
from apache_beam import coders
from apache_beam.coders import coder_impl
from apache_beam.runners.worker import bundle_processor, operations
from apache_beam.transforms.window import GlobalWindow
from apache_beam.utils.windowed_value import WindowedValue

from arcbeam.harness import precombine, read, writes
from arcbeam.harness.finalization import Callbacks
from arcbeam.harness.frames import COUNT
from arcbeam.model.urns import PRECOMBINE_URN, READ_URN, WRITE_URN


def test_the_bundle_processor_has_what_bundles_are_driven_with() -> None:
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


def test_an_execution_context_collects_what_was_deferred() -> None:
    fields = {field.name for field in dataclasses.fields(bundle_processor.ExecutionContext)}
    assert {"delayed_applications", "instruction_id"} <= fields


def test_our_operations_are_known_to_the_sdks_factory() -> None:
    for module in (read, writes, precombine):
        module.register()
    known = bundle_processor.BeamTransformFactory._known_urns
    assert {READ_URN, WRITE_URN, PRECOMBINE_URN} <= set(known)


def test_operations_have_the_hooks_that_ours_override() -> None:
    hooks = {"setup", "start", "process", "finish", "teardown", "reset", "try_split", "current_element_progress"}
    assert hooks <= set(dir(operations.Operation))


def test_a_list_is_encoded_as_a_count_and_its_elements() -> None:
    encoded = coders.ListCoder(coders.VarIntCoder()).encode([1, 2, 3])
    assert COUNT.unpack_from(encoded) == (3,)
    assert encoded[COUNT.size :] == b"\x01\x02\x03"


def test_a_windowed_value_tells_its_time_in_microseconds_and_takes_another_value() -> None:
    element = WindowedValue("a", 1.5, (GlobalWindow(),))
    assert element.timestamp_micros == 1_500_000
    other = element.with_value("b")
    assert (other.value, other.windows) == ("b", element.windows)


def test_iterables_of_ours_can_be_registered_with_the_fast_coder() -> None:
    assert callable(coder_impl.FastPrimitivesCoderImpl.register_iterable_like_type)


@pytest.mark.contract("SDF-13")
def test_finalization_callbacks_are_kept_when_an_operation_forgets_them_and_run_once() -> None:
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


def test_callbacks_of_bundles_that_do_not_count_are_dropped() -> None:
    param = beam.DoFn.BundleFinalizerParam()
    callbacks = Callbacks()
    param.register(lambda: pytest.fail("ran"))
    callbacks.keep_from(param.reset)
    callbacks.drop()
    callbacks.run()
