"""Samples of a stage in an SDK worker: the first elements of each of its collections.

Owns which collections leave the worker for that, and how their elements become texts. The worker needs no sampler of
its own: it writes all collections of the stage to its data stream, in bundles of another descriptor, and only while
samples are requested. Must not know who requests them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from apache_beam.coders.coder_impl import create_InputStream

from arcbeam.fnapi.descriptors import sampled, sampled_sink_of, sink_of
from arcbeam.fnapi.service.instruction import Output
from arcbeam.fnapi.stage.showncoders import decoders
from arcbeam.fnapi.stage.sinks import WholeSink
from arcbeam.fnapi.wire.incoming import WholeElements
from arcbeam.fnapi.wire.skipping import UnknownCoderError, skipper
from arcbeam.fnapi.wire.times import from_millis
from arcbeam.harness.bundle.samples import SAMPLES_MAX, record
from arcbeam.harness.encoding.blocks import Block
from arcbeam.model.plan import RemotePort, Stage


class SampledCollection(WholeSink):
    """The first elements of a collection.

    Args:
        name: of the output, in the pipeline.
        protos: `Coder` protos by id.
        port: the collection, with the coder that writes it.

    Attributes:
        kept: as from `arcbeam.harness.bundle.samples.record`.

    Raises:
        UnknownCoderError: its elements cannot be separated.
    """

    def __init__(self, name: str, protos: Mapping[str, Any], port: RemotePort) -> None:
        super().__init__(skipper(protos, port.ours))
        self.name, self._decoders = name, decoders(protos, port)
        self.kept: list[dict[str, Any]] = []

    @property
    def missing(self) -> int:
        """How many more elements are wanted."""
        return SAMPLES_MAX - len(self.kept)

    def output(self, output: Output) -> None:
        """Take an output of the worker that is only for samples.

        Raises:
            SdkWorkerLostError: the worker does not follow the protocol.
        """
        self._check(output)
        self.look(output.data)
        if output.last:
            self.end()

    def look(self, message: bytes) -> None:
        """Look at a message with elements, which others may take, too."""
        if not self.missing or not message:
            return
        data, at = self._whole.of(message), 0
        while at < len(data) and self.missing:
            end = self._skip(data, at)
            self.keep(data[at:end])
            at = end
        if not self.missing:
            # What follows is not divided into elements any more.
            self._whole = WholeElements(self._skip)

    def keep(self, element: bytes) -> None:
        """Keep one encoded element."""
        for decode in self._decoders:
            try:
                found = decode(create_InputStream(element))
            except Exception:  # of a coder of the user's: then the bytes are shown
                continue
            self.show(from_millis(Block.of([found])).element(0))
            return

    def show(self, element: Any) -> None:
        """Keep one element."""
        self.kept.append(record(element))


class CollectionSamples:
    """The samples of one stage, while they are requested.

    Args:
        stage: the stage; it has a part for a worker.
        made: its `ProcessBundleDescriptor`.
        read: name of the transform that reads its input.

    Attributes:
        descriptor: the one of the bundles meanwhile.
        input: the collection that the worker reads.
        outputs: those that leave the worker anyway, by the ids of their sinks.
        inner: those that leave it only now, by the ids of their sinks.
    """

    def __init__(self, stage: Stage, made: Any, read: str) -> None:
        assert stage.remote is not None
        remote, protos = stage.remote, made.coders
        names = {remote.source.pcoll: read, **_names(stage, made)}
        self.input = SampledCollection(read, protos, remote.source)
        self.outputs = {
            sink_of(tag): SampledCollection(names[port.pcoll], protos, port) for tag, port in remote.sinks.items()
        }
        self.inner: dict[str, SampledCollection] = {}
        of = {remote.source.pcoll: self.input}
        of |= {port.pcoll: self.outputs[sink_of(tag)] for tag, port in remote.sinks.items()}
        seen = []
        for port in remote.inner:
            try:
                of[port.pcoll] = self.inner[sampled_sink_of(port.pcoll)] = SampledCollection(
                    names[port.pcoll], protos, port
                )
            except UnknownCoderError:
                continue
            seen.append(port)
        self.descriptor = sampled(made, seen)
        self._all = [of[pcoll] for pcoll in names if pcoll in of]

    def begin(self) -> None:
        """Begin a bundle."""
        for each in self._all:
            each.begin()

    def taken(self) -> list[dict[str, Any]]:
        """Return the samples so far; see `arcbeam.harness.bundle.samples.StageSampler.taken`.

        As long as no output has an element, none: a stage may take elements long before it puts some out.
        """
        outputs = [each for each in self._all if each is not self.input]
        if outputs and not any(each.kept for each in outputs):
            return []
        return [{"output": each.name, "elements": list(each.kept)} for each in self._all if each.kept]


def _names(stage: Stage, made: Any) -> dict[str, str]:
    """Return the names of the outputs of a stage's transforms, producers first, by PCollection."""
    found = {}
    for each in stage.transforms:
        transform = made.transforms[each.id]
        for tag, pcoll in sorted(transform.outputs.items()):
            found[pcoll] = f"{transform.unique_name}.{tag}" if len(transform.outputs) > 1 else transform.unique_name
    return found
