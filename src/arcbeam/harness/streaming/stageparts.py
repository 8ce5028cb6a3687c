"""The parts of a stage of an unbounded pipeline in a worker: processor, windows, coders, state, timers, side inputs.

Owns what is the same for all shards and micro-batches. `runner` runs the user code of a shard. `streamingstage` is a
task's interface to the stage.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from apache_beam import coders

from arcbeam.engine.protocol.stagekinds import Grouped, StageKind, Stateful
from arcbeam.harness.bundle.observedtimes import ObservingOperation
from arcbeam.harness.bundle.processor import StageProcessor
from arcbeam.harness.bundle.samples import StageSampler
from arcbeam.harness.bundle.windows import Windows
from arcbeam.harness.encoding.blocks import BlockCoder
from arcbeam.harness.operations.lateoperation import LateOperation, late_operation
from arcbeam.harness.operations.standin import StandIn
from arcbeam.harness.operations.taskcontext import TaskSettings
from arcbeam.harness.state import bags
from arcbeam.harness.state.timers import NotSet
from arcbeam.harness.stateful.statefuloperation import StatefulOperation
from arcbeam.harness.streaming import state
from arcbeam.harness.streaming.elements import Codec, Packed
from arcbeam.harness.streaming.sidewindows import SideWindows
from arcbeam.harness.streaming.specs import family_names, kind_of
from arcbeam.harness.streaming.state import ViewState
from arcbeam.harness.streaming.timers import StreamingTimerFamily, TimerLog
from arcbeam.model.plan import Stage, TimeDomain

bags.register()
state.register()


class StageParts:
    """The parts of one stage in this process. Shards use them one after the other.

    Args:
        stage: the stage to run.
        settings: the job's settings.
        sampled: whether to take samples of its outputs. Each element then passes on its own, which takes longer.

    Attributes:
        sampler: has the samples; None: none are taken.
        processor: the stage's processor. Runners use its bundles.
        state: user state, in the view of the current shard.
        windows: windows of the stage's input.
        kind: what the engine must know of the stage.
        stable: whether it requires stable input.
        prepares: whether its user code implements `prepare_to_shutdown`.
        timers: the timers that user code sets and clears.
        families: timer families by the engine's name.
        expirations: those of them that are called when a window expires.
        keyed: whether its input has user keys.
        decode_key: decodes the engine's user keys; only if the input has keys.
        codec: codec of the input's values.
        decode_scripted: decodes a value of a script.
        packed: codec of values that were stored as they arrived.
        sides: the windows of its side inputs.
        stateful: its operations that are run key by key.
        observers: its operations that observe event times.
        driven: the stateful operation that alone consumes the input, and gets it directly; else the root gets it.
        late: the operation that outputs what its grouping drops; None if the pipeline does not request it.
        writers: its write operations.
        written: for each channel that it writes, the coder of windows, and their conversion for the engine.
        blocks: coder of the input's blocks.
    """

    def __init__(self, stage: Stage, settings: TaskSettings, *, sampled: bool = False) -> None:
        self.sampler = StageSampler() if sampled else None
        # Only transforms that run one by one have outputs to be sampled.
        settings = replace(settings, value_chains=False, loops=False, batches=False) if sampled else settings
        names = family_names(stage)
        self.state = ViewState(stage.side_channels, {state: names[state] for state in stage.states})
        self.processor = StageProcessor(stage, settings, self.state, self.sampler)
        root = self.processor.root
        self.windows = self.state.forms = Windows(root.pcoll_coder.window_coder)
        self.kind: StageKind = kind_of(self.processor, self.windows)
        self.stable = stage.stable
        self.prepares = self.processor.graceful.prepares
        self.stateful = [op for op in self.processor.sdk.ops.values() if isinstance(op, StatefulOperation)]
        self.observers = [op for op in self.processor.sdk.ops.values() if isinstance(op, ObservingOperation)]
        for observer in self.observers:
            observer.watched = True
        taker = root.output_blocks.only_taker
        self.driven = taker if isinstance(taker, StatefulOperation) else None
        if self.driven is not None:
            self.driven.counts_for(root.output_blocks)
        self.timers = TimerLog(self.windows)
        operations: dict[str, Any] = self.processor.sdk.ops
        stand_in = next((op for op in operations.values() if isinstance(op, StandIn)), None)
        self.families = {
            names[timer.transform, timer.family]: StreamingTimerFamily(
                stand_in.timers_of(timer.transform) if stand_in is not None else operations[timer.transform],
                timer.family,
                timer.domain is TimeDomain.PROCESSING,
                names[timer.transform, timer.family],
                NotSet() if timer.expiration else self.timers,
            )
            for timer in stage.timers
        }
        self.expirations = [self.families[names[t.transform, t.family]] for t in stage.timers if t.expiration]
        owners = {transform for transform, _ in stage.states} | {timer.transform for timer in stage.timers}
        self.fires_at_once = self.driven is not None and len(owners) == 1 and len(self.stateful) == 1
        self.late: LateOperation | None = late_operation(self.processor.sdk.ops)
        coder = root.written_coder.wrapped_value_coder
        self.keyed = isinstance(self.kind, Grouped | Stateful)
        if self.keyed:
            self.decode_key: Callable[[bytes], Any] = coder.key_coder().get_impl().decode
            coder = coder.value_coder()
        in_order = isinstance(self.kind, Stateful) and self.kind.in_order is not None
        self.sides = SideWindows(stage, self.windows)
        writers: list[Any] = self.processor.context.writers
        self.writers = writers
        self.written = {op.channel: (op.window_coder, Windows(op.window_coder)) for op in writers}
        waits = in_order or isinstance(self.kind, Grouped) or bool(stage.side_inputs) or stage.stable
        self.codec = Codec(coder, self.windows, waits)
        self.blocks = BlockCoder(coders.WindowedValueCoder(coder, root.written_coder.window_coder))
        self.decode_scripted = coder.get_impl().decode_nested if root.how.nested else self.codec.decode
        self.packed = Packed(self.blocks, self.codec)
        if isinstance(self.kind, Grouped):
            self.kind = replace(self.kind, unpack=self.packed.encoded)
