"""The operation that collects committables (`arcbeam.io.Publish`), and the DoFn that publishes them.

Owns both sides: the operation that collects encoded committables, and what a process needs to publish. Must not know
when they are published, nor where they are stored until then.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from apache_beam.internal import pickler
from apache_beam.portability.api import beam_runner_api_pb2 as runner_pb
from apache_beam.runners import pipeline_context
from apache_beam.transforms.core import DoFn, DoFnInfo

from arcbeam.harness.encoding.blocks import Block
from arcbeam.harness.operations import registering
from arcbeam.harness.operations.blockoperation import BlockOperation
from arcbeam.model import texts
from arcbeam.model.plan import Stage
from arcbeam.model.urns import PUBLISH_ANNOTATION, PUBLISH_URN, QUICK


class PublishOperation(BlockOperation):
    """Collects committables; does not publish them.

    Attributes:
        publisher: the name of the transform, which identifies the publisher.
    """

    def __init__(self, name: Any, spec: Any, factory: Any, coder: Any) -> None:
        super().__init__(name, spec, factory, coder)
        self.publisher: str = name.step_name
        self._encode = coder.wrapped_value_coder.encode
        self._collected: list[bytes] = []

    def _take(self, block: Block) -> None:
        with self.scoped_process_state:
            self._collected += map(self._encode, block.values)

    def collected(self) -> list[bytes]:
        """Return the encoded committables since the last call."""
        collected, self._collected = self._collected, []
        return collected


def publish_operations(operations: dict[str, Any]) -> list[PublishOperation]:
    """Return the publish operations of a stage."""
    return [op for op in operations.values() if isinstance(op, PublishOperation)]


def collected(operations: Iterable[PublishOperation]) -> dict[str, list[bytes]]:
    """Return the committables since the last call, by publisher."""
    return {op.publisher: committables for op in operations if (committables := op.collected())}


def may_be_quick(stage: Stage, name: str) -> bool:
    """Return whether a stage's publisher says of committables how quick it is; unpickles nothing."""
    transform = runner_pb.Components.FromString(stage.payload).transforms[name]
    return bool(transform.annotations[PUBLISH_ANNOTATION] == QUICK)


class OpenPublisher:
    """A publisher in a process that publishes: set up, and torn down by `close`.

    Args:
        stage: the stage that contains the transform.
        name: the transform's name.
    """

    def __init__(self, stage: Stage, name: str) -> None:
        self.name = name
        components = runner_pb.Components.FromString(stage.payload)
        transform = components.transforms[name]
        payload = runner_pb.ParDoPayload.FromString(transform.spec.payload)
        context = pipeline_context.PipelineContext(components)
        (pcoll,) = transform.inputs.values()
        self._decode = context.coders.get_by_id(components.pcollections[pcoll].coder_id).decode
        serialized = DoFnInfo.from_runner_api(payload.do_fn, context).serialized_dofn_data()
        self._fn: Any = pickler.loads(serialized)[0]
        self._fn.setup()

    @property
    def id(self) -> str:
        """The worker's id of it: the transform's name."""
        return self.name

    def needs_teardown(self) -> bool:
        """Return whether the user's class overrides teardown."""
        return type(self._fn).teardown is not DoFn.teardown

    def prepare_in_driver(self, warn: Callable[[str], None]) -> None:
        """Prepare to publish in the job's driver; raise what user code raises, if this process cannot.

        Args:
            warn: called with warnings. In workers, Python's own warnings are caught.
        """
        self._fn.warn = warn
        self._fn.prepare_in_driver()

    def is_quick(self, committables: Sequence[bytes]) -> bool:
        """Return whether publishing them takes only milliseconds; raise what user code raises."""
        return bool(self._fn.is_quick([self._decode(each) for each in committables]))

    def publish(self, committables: Sequence[bytes], *, again: bool) -> None:
        """Publish committables; raise what user code raises.

        Args:
            committables: encoded.
            again: whether they may have been published before.
        """
        self._fn.again = again
        self._fn.publish([self._decode(each) for each in committables])

    def sweep(self, job: str, micro_batch: int) -> None:
        """Remove staged data that will never be published; raise what user code raises."""
        self._fn.sweep(job, micro_batch)

    def close(self) -> list[str]:
        """Tear down, and return errors as messages. The publisher is not used again."""
        try:
            self._fn.teardown()
        except Exception as e:
            return [f"{type(self._fn).__name__} has raised {type(e).__name__}: {texts.safe_text(str, e)}"]
        return []


def register() -> None:
    """Register our operation in the SDK's factory. Idempotent."""
    registering.register(PUBLISH_URN, lambda *given: PublishOperation(*given[:-1]))  # it has one output
