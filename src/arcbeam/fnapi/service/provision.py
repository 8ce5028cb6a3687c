"""What a worker gets before it starts: the pipeline's options, and the files of its environment.

Owns the answers of the provision and artifact services. Files are found by their content: an artifact of an environment
names the SHA-256 of its file. Must not know how the files came to this machine.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from apache_beam.portability import common_urns
from apache_beam.portability.api import beam_artifact_api_pb2 as artifact_pb
from apache_beam.portability.api import beam_provision_api_pb2 as provision_pb
from apache_beam.portability.api import beam_runner_api_pb2 as runner_pb
from apache_beam.portability.api import endpoints_pb2
from google.protobuf import json_format, struct_pb2

from arcbeam.secrets import install, parted
from arcbeam.sizes import threshold

_NO_ARTIFACTS: Final = "__no_artifacts_staged__"
"""The retrieval token for an environment without files, as in all SDKs."""
_CHUNK: Final = threshold(1 << 20)
_CAPABILITIES: Final = (
    common_urns.runner_protocols.MONITORING_INFO_SHORT_IDS.urn,
    common_urns.runner_protocols.CONTROL_RESPONSE_ELEMENTS_EMBEDDING.urn,
)
"""What workers may do. They look up a side input's keys one by one: all keys with all values may be too many."""


@dataclass(frozen=True, slots=True)
class Provision:
    """What the workers of a job get.

    Attributes:
        job: id of the job.
        options: the pipeline options, a serialized Struct as it was submitted.
        folders: that have files named by the SHA-256 of their content.
        restart: how the job continues if the program that submitted it has ended; "" unless workers run there.
    """

    job: str = ""
    options: bytes = b""
    folders: tuple[Path, ...] = ()
    restart: str = ""

    def info(self, environment: Any, address: str) -> Any:
        """Return the `ProvisionInfo` of a worker.

        Args:
            environment: its `Environment` proto.
            address: of all services.
        """
        options = struct_pb2.Struct.FromString(self.options)
        # What the worker writes about its options must not show them.
        install(parted(json_format.MessageToDict(options)).secrets)
        endpoint = endpoints_pb2.ApiServiceDescriptor(url=address)
        return provision_pb.ProvisionInfo(
            pipeline_options=options,
            retrieval_token=self.job if environment.dependencies else _NO_ARTIFACTS,
            dependencies=environment.dependencies,
            logging_endpoint=endpoint,
            artifact_endpoint=endpoint,
            control_endpoint=endpoint,
            runner_capabilities=_CAPABILITIES,
            metadata={"job_id": self.job, "job_name": self.job},
        )

    def file(self, environment: Any, artifact: Any) -> Path | None:
        """Return the file of an artifact; None if the environment has no such file."""
        if artifact.type_urn != common_urns.artifact_types.FILE.urn:
            return None
        wanted = _digest(artifact)
        if not any(_digest(each) == wanted for each in environment.dependencies):
            return None
        return next((path for folder in self.folders if (path := folder / wanted).is_file()), None)


def _digest(artifact: Any) -> str:
    digest: str = runner_pb.ArtifactFilePayload.FromString(artifact.type_payload).sha256
    return digest


def chunks(path: Path) -> Iterator[Any]:
    """Yield the `GetArtifactResponse`s of a file, at least one."""
    with path.open("rb") as file:
        yield artifact_pb.GetArtifactResponse(data=file.read(_CHUNK))
        while data := file.read(_CHUNK):
            yield artifact_pb.GetArtifactResponse(data=data)
