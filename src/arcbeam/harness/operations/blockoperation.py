"""The base class of operations that process blocks, and its connections to other operations.

Owns the conversion between blocks and single elements. The SDK passes elements to an operation one by one. Our
operations collect them into blocks, and pass blocks to each other. If an operation of the SDK follows, the block's
elements are passed one by one. A contract test covers the SDK's `Operation`.
"""

from __future__ import annotations

import traceback
from abc import abstractmethod
from collections.abc import Iterable, Iterator
from itertools import chain
from types import GeneratorType
from typing import Any

from apache_beam.metrics import monitoring_infos
from apache_beam.metrics.cells import DistributionData
from apache_beam.runners import common
from apache_beam.runners.worker import operations

from arcbeam.errors import UserCodeError
from arcbeam.harness.encoding.blocks import Block
from arcbeam.harness.operations.whereabouts import here, place_of
from arcbeam.model import texts
from arcbeam.sizes import threshold

BLOCK_ELEMENTS_MAX = threshold(4093, 3)
"""Maximum elements of a block. A prime, so that sizes in a periodic pattern are sampled at different places."""
PIECE = threshold(251, 2)
"""Elements that are created or collected between two checks of their size; numbers are exempt."""
_KNOWN = frozenset({range, list, tuple, GeneratorType})
"""Types that create their own iterators."""
_NUMBERS = frozenset({int, float, bool, type(None)})
_COMPONENTS_MAX = threshold(4)
"""Components of a tuple up to which they are checked one by one."""
_BYTES = threshold(4 << 20)
"""Encoded size that a block's elements may have, judged by samples."""
_FIRST = 10
"""Elements that the SDK always samples, and so reports their faults: they are emitted one by one."""


class OperationOutput:
    """One output of an operation: counts elements, and passes them on.

    Args:
        receiver: the SDK's receiver of this output.
        consumers: the operations that consume this output.
    """

    def __init__(self, receiver: Any, consumers: list[Any]) -> None:
        self._receiver = receiver
        self._counters = receiver.opcounter
        self._ours = [c for c in consumers if isinstance(c, BlockOperation)]
        self._takers = [c.take for c in self._ours]
        others = [c for c in consumers if not isinstance(c, BlockOperation)]
        # A consumer that prefers batches must be fed by the SDK's receiver, which then also feeds ours. The same holds
        # for the SDK's sampler.
        batches = any(c.get_batching_preference().supports_batches for c in others)
        self._mixed = batches or receiver.output_sampler is not None
        self._others = [(c.process, _place(c)) for c in others]
        self._first_left = _FIRST

    @property
    def only_taker(self) -> BlockOperation | None:
        """The only consumer, if it is an operation of ours and may be fed directly; None otherwise."""
        return self._ours[0] if len(self._ours) == 1 and not self._others and not self._mixed else None

    @property
    def is_warm(self) -> bool:
        """Whether the first elements, which are emitted one by one, have passed."""
        return not self._first_left

    def count(self, elements: int, sample: Any) -> None:
        """Count elements that have left another way. One of them may be sampled."""
        if elements and sample is not None:
            self._sample(sample)
            elements -= 1
        if elements:
            self._counters.element_counter.update(elements)

    def count_first(self, element: Any) -> bool:
        """Count an element that leaves another way, if it is one of the first ones; return whether it was."""
        if not self._first_left:
            return False
        self._first_left -= 1
        self._sample(element)
        return True

    def _sample(self, element: Any) -> None:
        """Count an element that represents others when sizes are sampled. The SDK decides whether to sample it."""
        counters = self._counters
        counters.update_from(element)
        # A size that is only known after a consumer has iterated over the element is not requested.
        counters.active_accumulator = None
        counters.update_collect()

    def emit(self, block: Block) -> None:
        """Pass a block on."""
        count = len(block)
        if not count:
            return
        if self._mixed:
            receive = self._receiver.receive
            for element in block.elements():
                receive(element)
            return
        if self._first_left:
            alone = min(self._first_left, count)
            self._first_left -= alone
            for place in range(alone):
                self._hand_on(block.slice(place, place + 1))
            if alone == count:
                return
            block = block.slice(alone, None)
        self._hand_on(block)

    def _hand_on(self, block: Block) -> None:
        count = len(block)
        counters = self._counters
        for place in range(PIECE, count, PIECE):
            self._sample(block.element(place))
        counters.update_from(block.element(0))
        for take in self._takers:
            take(block)
        for process, entered in self._others:
            before = here.enter(entered)
            for element in block.elements():
                process(element)
            here.enter(before)
        counters.update_collect()
        alone = 1 + (count - 1) // PIECE
        if count > alone:
            counters.element_counter.update(count - alone)


class BlockOperation(operations.Operation):  # type: ignore[misc]  # Beam is untyped
    """An operation that processes blocks. Single elements are collected until they form a block.

    Invariant: no element is waiting when a bundle ends, and blocks are processed in the order of their elements.
    """

    def __init__(self, name: Any, spec: Any, factory: Any, input_coder: Any) -> None:
        super().__init__(name, spec, factory.counter_factory, factory.state_sampler)
        self._consumers_of: dict[int, list[Any]] = {}
        self._estimate_input = input_coder.get_impl().estimate_size
        self._waiting: list[Any] = []
        self._waiting_limit = 1
        self.place = _place(self)

    def add_receiver(self, operation: Any, output_index: int = 0) -> None:
        """See the SDK's `Operation`."""
        self._consumers_of.setdefault(output_index, []).append(operation)
        super().add_receiver(operation, output_index)

    def setup(self, data_sampler: Any = None) -> None:
        """See the SDK's `Operation`."""
        super().setup(data_sampler)
        self._outputs = [OperationOutput(r, self._consumers_of.get(n, [])) for n, r in enumerate(self.receivers)]

    def start(self) -> None:
        """See the SDK's `Operation`."""
        super().start()
        self._waiting = []

    def process(self, o: Any) -> None:
        """Collect one windowed value."""
        waiting = self._waiting
        waiting.append(o)
        if len(waiting) >= self._waiting_limit:
            self._take_waiting()

    def _take_waiting(self) -> None:
        before = here.enter(self.place)
        self._take(self._waited())
        here.enter(before)

    def _waited(self) -> Block:
        """Return the collected elements as a block, and reset the collection."""
        waiting, self._waiting = self._waiting, []
        self._waiting_limit = min(PIECE, longest_of(len(waiting), self._estimate_input, waiting[0], waiting[-1]))
        return Block.of(waiting)

    def take(self, block: Block) -> None:
        """Process a block; not empty."""
        if self._waiting:
            self._take_waiting()
        before = here.enter(self.place)
        self._take(block)
        here.enter(before)

    def finish(self) -> None:
        """End the bundle, after processing the collected elements."""
        if self._waiting:
            self._take_waiting()
        super().finish()

    @abstractmethod
    def _take(self, block: Block) -> None:
        """Process a block, after all earlier elements were processed."""


def _place(op: Any) -> bytes:
    """Return the text that records that an operation is processing elements."""
    return place_of(op.name_context.step_name or "")


def dofn_runner(op: Any, fn: Any, args: Any, kwargs: Any, sides: Any, windowing: Any, receivers: Any) -> Any:
    """Return the SDK's runner of a DoFn with one output, not set up, for an operation of ours.

    Args:
        op: the operation. Errors and counters name its transform.
        fn: the DoFn.
        args: its positional arguments besides the element.
        kwargs: its keyword arguments.
        sides: the SDK's maps of side inputs.
        windowing: windowing of the output.
        receivers: receivers of the output, under its tag and under None.
    """
    state = common.DoFnState(op.counter_factory)
    state.step_name = op.name_context.logging_name()
    return common.DoFnRunner(
        fn,
        args,
        kwargs,
        sides,
        windowing,
        tagged_receivers=receivers,
        step_name=state.step_name,
        state=state,
        transform_id=op.name_context.transform_id,
        operation_name=op.name_context.metrics_name(),
    )


def count_infos(receivers: Any, tag_to_pcollection_id: Any) -> dict[Any, Any]:
    """Return counts and sampled sizes of an operation with several outputs, as the SDK's `DoOperation` does.

    Args:
        receivers: the SDK's receivers, by tag.
        tag_to_pcollection_id: the PCollections to count.
    """
    infos = {}
    for tag, receiver in receivers.items():
        pcollection = tag_to_pcollection_id.get(str(tag))
        if pcollection is None:
            continue
        counters = receiver.opcounter
        _, total, count, least, most = counters.mean_byte_counter.value()
        for info in (
            monitoring_infos.int64_counter(
                monitoring_infos.ELEMENT_COUNT_URN, counters.element_counter.value(), pcollection=pcollection
            ),
            monitoring_infos.int64_distribution(
                monitoring_infos.SAMPLED_BYTE_SIZE_URN,
                DistributionData(total, count, least, most),
                pcollection=pcollection,
            ),
        ):
            infos[monitoring_infos.to_key(info)] = info
    return infos


def user_error(operation: Any, error: Exception) -> UserCodeError:
    """Wrap an error of user code that an operation has called itself; it names the operation's transform."""
    text = texts.safe_text(lambda e: "".join(traceback.format_exception(e)), error)
    return UserCodeError(
        operation.name_context.step_name, f"{type(error).__name__}: {texts.safe_text(str, error)}", text
    )


def once(results: Iterable[Any]) -> Iterator[Any]:
    """Return an iterator over the results of user code that continues where it was, however often it is iterated.

    SUBTLE: `islice` calls `iter` on its argument, and an iterable of user code may restart at each call.
    """
    return iter(results) if type(results) in _KNOWN else chain(results)


def piece_after(value: Any) -> int:
    """Return how many values may be created after one like this before their size is checked; more for numbers."""
    kind = type(value)
    if kind in _NUMBERS or (kind is tuple and len(value) <= _COMPONENTS_MAX and _NUMBERS.issuperset(map(type, value))):
        return BLOCK_ELEMENTS_MAX
    return PIECE


def longest_of(length: int, estimate: Any, *samples: Any) -> int:
    """Return the maximum length of the next block: twice the last one, as far as memory allows."""
    return max(1, min(2 * length, BLOCK_ELEMENTS_MAX, fitting(estimate, *samples)))


def fitting(estimate: Any, *samples: Any) -> int:
    """Return how many elements like these fit into a block."""
    try:
        size: int = max(estimate(sample, True) for sample in samples) + 1
    except Exception:
        # The code that encodes the element reports the error.
        size = 64
    return _BYTES // size
