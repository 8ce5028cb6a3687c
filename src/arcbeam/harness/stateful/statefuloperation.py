"""The operation of a stateful DoFn, driven key by key: begin a key, process its elements and timers, end it.

Owns the calls of user code, and the handles and timers that it gets: one of each for a key and window, however many
elements arrive. State is written to the storage when a key ends, and when a bundle ends. The caller decides the order
of elements and timers, and when a key's state may be dropped (`harness.batch.keyed`, or a micro-batch). Must not know
exchanges, clocks, or which timer fires next.

It replaces the SDK's `DoOperation`, which does all of this for each element, and writes state to the storage at the end
of a bundle. A contract test covers the SDK internals that this module relies on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import cached_property
from inspect import isgeneratorfunction
from itertools import chain, repeat
from typing import Any

from apache_beam.runners import common
from apache_beam.runners.worker import bundle_processor, operations
from apache_beam.utils.windowed_value import PANE_INFO_UNKNOWN, create

from arcbeam.harness.encoding.blocks import Block, Each
from arcbeam.harness.encoding.sdktimes import timestamp_of
from arcbeam.harness.encoding.windowcoder import remembering_latest
from arcbeam.harness.operations.blockoperation import PIECE, BlockOperation, OperationOutput, count_infos
from arcbeam.harness.state.handles import CellHandles, HandleMaker
from arcbeam.harness.state.timers import PendingTimer
from arcbeam.harness.stateful.arguments import ProcessArguments, TimerArguments
from arcbeam.harness.stateful.inwindow import FixedArguments, InWindow
from arcbeam.harness.transforms.emitting import Emitter
from arcbeam.harness.transforms.values import ExtraArguments, has_life


class StatefulOperation(BlockOperation):
    """A DoFn with state or timers.

    Between `start` and `finish`, for each key: `begin_key`, any number of `put` and `process_timer`, `end_key`. A
    bundle may end within a key, which then continues in the next bundle. Changes are in the storage when `finish` or
    `end_key` returns.

    Args:
        name, spec, factory: see the SDK's `Operation`.
        input_coder: coder of the main input's windowed values.
        fn: the DoFn.
        given: its arguments besides the element.
    """

    def __init__(self, name: Any, spec: Any, factory: Any, input_coder: Any, fn: Any, given: ExtraArguments) -> None:
        super().__init__(name, spec, factory, input_coder)
        self._fn, self._given = fn, given
        key_coder = input_coder.key_coder()
        encode_key: Callable[[Any], bytes] = key_coder.get_impl().encode_nested
        encode_window = remembering_latest(input_coder.window_coder.get_impl().encode)
        self.cells = CellHandles(factory.state_handler, name.transform_id, encode_key, encode_window)
        # An SDK object, because the SDK's DoFn runner requires one.
        self._context = bundle_processor.FnApiUserStateContext(
            factory.state_handler, name.transform_id, key_coder, input_coder.window_coder
        )
        self._makes = HandleMaker()
        signature = common.DoFnSignature(fn)
        self._process = ProcessArguments.of(signature.process_method, list(given.args), dict(given.kwargs))
        self._timer_methods = {spec.name: TimerArguments.of(method) for spec, method in signature.timer_methods.items()}
        # Calling a generator function runs no line of user code.
        self._timers_yield = all(isgeneratorfunction(method.method) for method in self._timer_methods.values())
        self._timer_infos: dict[str, Any] = {}
        self._provision = FixedArguments(self.cells, self._makes, self._timer_infos, self._process, self._given.sides)
        self._yields = isgeneratorfunction(fn.process)
        process = self._process
        # No argument but the element differs from element to element.
        self._plain = self._yields and process.elements == [0] and not (process.whole or process.kwargs or given.sides)
        # The same, except for the time.
        self._timed = process.elements == [0] and not (process.whole or process.kwargs or process.panes)
        self._timers_state = self.state_sampler.scoped_state(
            self.name_context, "process-timers", metrics_container=self.metrics_container
        )
        self._key: Any = None
        self._fresh = self._stored = False
        self._driven = False
        self._windows: dict[Any, InWindow] | None = None
        self._latest: InWindow | None = None
        self._source: OperationOutput | None = None
        self._uncounted = 0
        self._warm = False

    def setup(self, data_sampler: Any = None) -> None:
        """See the SDK's `Operation`."""
        with self.scoped_start_state:
            super().setup(data_sampler)
            tags = self.spec.output_tags
            main = tags.index("None") if len(tags) > 1 and "None" in tags else 0
            receivers = operations._TaggedReceivers(self.counter_factory, self.name_context.logging_name())
            receivers.update(zip(tags, self.receivers, strict=True))
            receivers[None] = self.receivers[main]
            self._tagged_receivers = receivers
            windowfn = self._given.windowing.windowfn
            outputs = windowfn, self.receivers[main], receivers, None, None, False, False
            self._emitter = Emitter(
                self._outputs[main],
                common._OutputHandler(*outputs).handle_process_outputs,
                windowfn,
                self.spec.output_coders[main],
            )
            # If a DoFn is not a generator, the SDK checks what it returns for its first element.
            self._refuse: Callable[[Any, Any], None] | None = (
                None if self._yields else common._OutputHandler(*outputs, True).handle_process_outputs
            )
            self._has_life = has_life(self._fn)
            if self._has_life:
                self._runner.setup()

    @cached_property
    def _runner(self) -> Any:
        """The SDK's runner of the DoFn, for lifecycle methods and the texts of errors."""
        given, state = self._given, common.DoFnState(self.counter_factory)
        state.step_name = self.name_context.logging_name()
        return common.DoFnRunner(
            self._fn,
            given.args,
            given.kwargs,
            given.sides,
            given.windowing,
            tagged_receivers=self._tagged_receivers,
            step_name=state.step_name,
            state=state,
            user_state_context=self._context,
            transform_id=self.name_context.transform_id,
            operation_name=self.name_context.metrics_name(),
        )

    def start(self) -> None:
        """See the SDK's `Operation`."""
        with self.scoped_start_state:
            super().start()
            self._emitter.begin()
            if self._has_life:
                self._runner.start()

    def finish(self) -> None:
        """See the SDK's `Operation`. A key that has not ended continues in the next bundle."""
        self._commit(keep=True)
        with self.scoped_process_state:
            self._call(self._emitter.hand_on)
        self._count()
        super().finish()
        if self._has_life:
            with self.scoped_finish_state:
                self._runner.finish()

    def teardown(self) -> None:
        """See the SDK's `Operation`."""
        self._makes.end_bundle()
        if self._has_life:
            with self.scoped_finish_state:
                self._runner.teardown()

    def reset(self) -> None:
        """See the SDK's `Operation`."""
        super().reset()
        self._makes.end_bundle()
        for side in self._given.sides:
            side.reset()

    # Called by the driver of keys.

    def counts_for(self, source: OperationOutput) -> None:
        """Count the elements that arrive through `put` as elements of this output."""
        self._source, self._warm = source, source.is_warm

    def add_timer_info(self, family: str, info: Any) -> None:
        """Set the destination of a family's timers that user code sets and clears; see the SDK's `DoOperation`."""
        self._timer_infos[family] = info

    @property
    def has_handles(self) -> bool:
        """Whether user code has got handles for the current key; if not, there is nothing to store."""
        return self._latest is not None

    def begin_key(self, key: Any, *, fresh: bool = False) -> None:
        """Begin a key. The previous one must have ended.

        Args:
            key: the key of the following calls.
            fresh: whether the storage is known to have no entry of it.
        """
        self._key, self._fresh, self._stored = key, fresh, not fresh
        self._driven = True

    def end_key(self, *, keep: bool = True) -> bool:
        """End the current key.

        Args:
            keep: whether its state may be read again. If not, it need not be written to the storage.

        Returns:
            Whether the storage may contain state of the key.
        """
        self._commit(keep=keep)
        self._driven = False
        return self._stored

    def put(self, block: Block) -> None:
        """Process values of the key, at least one."""
        with self.scoped_process_state:
            try:
                if block.uniform and len(block.windows) == 1 and self._refuse is None:
                    self._put_alike(block.values, block.micros, block.windows, block.panes)
                else:
                    self._put(block)
            except BaseException as e:
                self._runner._reraise_augmented(e)
            self._count_in(block)

    @property
    def takes_whole_keys(self) -> bool:
        """Whether keys may be passed to `put_whole_keys` now."""
        return self._warm and self._plain

    def put_whole_keys(self, keys: Iterable[tuple[Any, list[Any]]], like: Block) -> None:
        """Begin each key, process its values, at least one, and end it. The keys are fresh and have no other elements.

        Args:
            keys: the keys, with their values.
            like: a block with the time, window and pane of all values.
        """
        emitter = self._emitter
        with self.scoped_process_state:
            try:
                emitter.stamp(like.micros, like.windows, like.panes)
                emitter.take_from(chain.from_iterable(self._results_of(keys, like)))
            except BaseException as e:
                self._runner._reraise_augmented(e)

    def process_timer(self, family: str, timer: Any) -> None:
        """Fire a timer of the key; see the SDK's `DoOperation`."""
        if not self._driven:
            self._go_to(timer.user_key)
        at, slot = timer.fire_timestamp, (self._timer_infos[family].timer_coder_impl, timer.dynamic_timer_tag, 0)
        self.fire((PendingTimer(at.micros, 0, slot, timer.user_key, timer.windows, at, at.micros, timer.paneinfo),))

    def fire(self, timers: Iterable[PendingTimer]) -> int:
        """Fire timers of the key, each before the next is taken; return their number."""
        count, methods, emitter = 0, self._timer_methods, self._emitter
        stamp, take = emitter.stamp, emitter.take_from if self._timers_yield else emitter.take
        latest = None
        with self._timers_state:
            try:
                for micros, _, slot, key, windows, at, _, pane in timers:
                    count += 1
                    family = slot[0]
                    if family is not latest:
                        latest, method = family, methods[family.name]
                        call, keys, tags, times = method.method, method.keys, method.tags, method.timestamps
                        of_windows, handles = method.windows, method.handles
                    kwargs: dict[str, Any] = {}
                    for name in keys:
                        kwargs[name] = key
                    for name in tags:
                        kwargs[name] = slot[1]
                    for name in of_windows:
                        kwargs[name] = windows[0]
                    for name in times:
                        kwargs[name] = timestamp_of(micros) if at is None else at
                    if handles:
                        in_window = self._in_window(windows[0])
                        for name, spec in method.states:
                            kwargs[name] = in_window.state(spec)
                        for name, spec in method.timers:
                            kwargs[name] = in_window.timer(spec, micros, pane)
                    results = call(**kwargs)
                    if results is not None:
                        stamp(micros, windows, PANE_INFO_UNKNOWN)
                        take(results)
            except BaseException as e:
                self._runner._reraise_augmented(e)
        return count

    def _take(self, block: Block) -> None:
        """Process elements of any keys, in any order."""
        for place, (key, value) in enumerate(block.values):
            self._go_to(key)
            with self.scoped_process_state:
                self._call(self._put, block.slice(place, place + 1).with_values([value]))

    def _go_to(self, key: Any) -> None:
        encode = self.cells.encode_key
        if self._latest is not None and self._key is not key and encode(self._key) != encode(key):
            self._commit(keep=True)
        self._key, self._fresh = key, False

    def _call(self, user: Callable[..., None], *args: Any) -> None:
        try:
            user(*args)
        except BaseException as e:
            self._runner._reraise_augmented(e)

    # Calling user code.

    def _put(self, block: Block) -> None:
        if self._refuse is not None:
            self._put_first(block)
        elif block.uniform and len(block.windows) == 1:
            self._put_alike(block.values, block.micros, block.windows, block.panes)
        else:
            self._put_each(block)

    def _put_first(self, block: Block) -> None:
        """Process values that begin with the very first: the SDK checks what user code returns for it."""
        refuse, self._refuse = self._refuse, None
        method = self._process.method

        def checked(*args: Any, **kwargs: Any) -> Any:
            nonlocal refuse
            results = method(*args, **kwargs)
            if refuse is not None and isinstance(results, str | bytes | dict):
                refuse(None, results)
            refuse = None
            return results

        self._put_each(block.slice(0, 1), checked)
        if len(block) > 1:
            self._put(block.slice(1, None))

    def _results_of(self, keys: Iterable[tuple[Any, list[Any]]], like: Block) -> Iterator[Iterator[Any]]:
        """Yield the results of user code for the values of each key. A key ends before the next is taken."""
        (window,), micros, pane = like.windows, like.micros, like.panes
        for key, values in keys:
            handles = InWindow(self._provision, key, window, fresh=True)
            args, _ = handles.process_args(micros, pane)
            yield self._results(key, values, args)
            # At once, so that memory does not depend on the number of keys.
            handles.commit(keep=False)
            self._count_values(key, values, like)

    def _results(self, key: Any, values: list[Any], args: list[Any]) -> Iterator[Any]:
        """Return the results of user code for values of a key, if it is plain; in one loop outside of Python code."""
        # SUBTLE: calling a generator function runs no line of user code, so a `StopIteration` of user code cannot end
        # the loop.
        calls = map(self._process.method, zip(repeat(key), values, strict=False), *map(repeat, args[1:]))
        return chain.from_iterable(calls)

    def _put_timed(self, values: list[Any], times: Iterable[int], windows: Any, pane: Any) -> None:
        """Process values of one window and pane, each with its own time."""
        emitter, key, call = self._emitter, self._key, self._process.method
        stamp, take = emitter.stamp, emitter.take
        arguments = self._in_window(windows[0]).arguments_at(pane)
        if self._yields:
            emitter.take_from(self._timed_results(values, times, windows, pane, arguments))
            return
        for value, micros in zip(values, times, strict=True):
            results = call((key, value), *arguments(micros))
            if results is not None:
                stamp(micros, windows, pane)
                take(results)

    def _timed_results(
        self, values: list[Any], times: Iterable[int], windows: Any, pane: Any, arguments: Callable[[int], list[Any]]
    ) -> Iterator[Any]:
        key, call, stamp = self._key, self._process.method, self._emitter.stamp
        for value, micros in zip(values, times, strict=True):
            stamp(micros, windows, pane)
            yield from call((key, value), *arguments(micros))

    def _put_each(self, block: Block, method: Any = None) -> None:
        if (
            method is None
            and self._timed
            and type(block.micros) is Each
            and type(block.windows) is not Each
            and type(block.panes) is not Each
            and len(block.windows) == 1
        ):
            self._put_timed(block.values, block.micros, block.windows, block.panes)
            return
        for value, micros, windows, pane in zip(
            block.values, block.times(), block.windows_of_each(), block.panes_of_each(), strict=False
        ):
            if len(windows) == 1:
                self._put_alike((value,), micros, windows, pane, method)
            else:
                for window in windows:
                    self._put_alike((value,), micros, (window,), PANE_INFO_UNKNOWN, method)

    def _put_alike(self, values: Any, micros: int, windows: Any, pane: Any, method: Any = None) -> None:
        """Process values of one time, window and pane."""
        process, emitter, key = self._process, self._emitter, self._key
        args, kwargs = self._in_window(windows[0]).process_args(micros, pane)
        call = method or process.method
        emitter.stamp(micros, windows, pane)
        take = emitter.take
        if process.whole:
            whole = create(None, micros, windows, pane).with_value
            for value in values:
                element = key, value
                for place in process.elements:
                    args[place] = element
                for place in process.whole:
                    args[place] = whole(element)
                if (results := call(*args, **kwargs)) is not None:
                    take(results)
        elif self._plain and method is None:
            # In a stream times usually differ, so each value comes separately.
            emitter.take_from(
                call((key, values[0]), *args[1:]) if len(values) == 1 else self._results(key, values, args)
            )
        elif process.elements == [0] and not kwargs:
            rest = args[1:]
            for value in values:
                if (results := call((key, value), *rest)) is not None:
                    take(results)
        else:
            for value in values:
                element = key, value
                for place in process.elements:
                    args[place] = element
                if (results := call(*args, **kwargs)) is not None:
                    take(results)

    # The arguments of user code.

    def _in_window(self, window: Any) -> InWindow:
        latest = self._latest
        if latest is None:
            found = InWindow(self._provision, self._key, window, fresh=self._fresh)
        elif latest.window is window:
            return latest
        else:
            # Most keys are in one window, and hashing a window is slow.
            windows = self._windows = self._windows or {latest.window: latest}
            found = windows.get(window) or InWindow(self._provision, self._key, window, fresh=self._fresh)
            windows[window] = found
        self._latest = found
        return found

    def _commit(self, *, keep: bool) -> None:
        """Write changes to the storage, and drop the handles."""
        latest, windows = self._latest, self._windows
        if latest is not None:
            self._latest, self._windows = None, None
            for handles in windows.values() if windows else (latest,):
                self._stored |= handles.commit(keep=keep)
        if keep:
            self._fresh = False

    # Counting.

    def _count_in(self, block: Block) -> None:
        """Count elements for the output that has emitted them; sample one in some, as in `OperationOutput`."""
        source = self._source
        if source is None:
            return
        if not self._warm:
            keyed = block.with_values([(self._key, value) for value in block.values])
            place = 0
            while place < len(block) and source.count_first(keyed.element(place)):
                place += 1
            self._warm = source.is_warm
            block = block.slice(place, None)
        if block.values:
            self._count_values(self._key, block.values, block)

    def _count_values(self, key: Any, values: Any, like: Block) -> None:
        self._uncounted += len(values)
        if self._uncounted >= PIECE:
            assert self._source is not None
            self._source.count(self._uncounted, like.with_values(values).element(0).with_value((key, values[0])))
            self._uncounted = 0

    def _count(self) -> None:
        if self._source is not None:
            self._source.count(self._uncounted, None)
        self._uncounted = 0

    def pcollection_count_monitoring_infos(self, tag_to_pcollection_id: Any) -> dict[Any, Any]:
        """See the SDK's `DoOperation`."""
        infos: dict[Any, Any] = super().pcollection_count_monitoring_infos(tag_to_pcollection_id)
        return infos | count_infos(self._tagged_receivers, tag_to_pcollection_id)
