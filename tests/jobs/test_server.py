"""The address of a server, and access to it."""

from __future__ import annotations

import datetime
import logging
import socket
from pathlib import Path

import grpc
import pytest
from apache_beam.portability.api import beam_artifact_api_pb2 as artifact_pb
from apache_beam.portability.api import beam_job_api_pb2 as job_pb

from arcbeam.errors import SetupError
from arcbeam.jobs.client import JobClient
from arcbeam.jobs.exposure import check_exposure
from arcbeam.jobs.server import JobServer, ServerSettings
from tests.jobs.fakes import WAIT, Fake, connected, serving
from tests.otherusers import needs_root, relayed

pytestmark = pytest.mark.contract("OPS-05")


def test_server_listens_on_free_loopback_port(tmp_path: Path, fake: Fake) -> None:
    with serving(tmp_path, fake) as (server, client):
        assert server.port > 0
        assert server.endpoint == f"localhost:{server.port}"
        assert client.prepare().artifact_staging_endpoint.url == server.endpoint


@pytest.mark.contract("API-02")
def test_used_port_is_refused(tmp_path: Path, fake: Fake) -> None:
    with serving(tmp_path / "a", fake) as (server, _):
        with pytest.raises(SetupError, match=f"port {server.port} of 127.0.0.1"):
            JobServer(ServerSettings(tmp_path / "b", port=server.port), fake)
        with socket.socket() as other:
            other.bind(("127.0.0.1", 0))
            other.listen()
            with pytest.raises(SetupError, match=f"port {other.getsockname()[1]} of 127.0.0.1"):
                JobServer(ServerSettings(tmp_path / "b", port=other.getsockname()[1]), fake)
        JobServer(ServerSettings(tmp_path / "b"), fake).stop()


def test_folder_in_use_is_unchanged(tmp_path: Path, fake: Fake) -> None:
    fake.behave = fake.until_cancelled
    with serving(tmp_path, fake) as (_, client):
        id = client.run()
        with pytest.raises(SetupError, match=str(tmp_path)):
            JobServer(ServerSettings(tmp_path), fake)
        assert client.jobs.GetState(job_pb.GetJobStateRequest(job_id=id)).state != job_pb.JobState.FAILED


def test_address_of_another_host_is_refused(tmp_path: Path, fake: Fake) -> None:
    with pytest.raises(SetupError, match="port 0 of 192\\.0\\.2\\.1"):
        JobServer(ServerSettings(tmp_path, host="192.0.2.1", insecure=True), fake)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.0.7", "example.org"])
def test_open_address_requires_token_and_tls(tmp_path: Path, host: str) -> None:
    pem = tmp_path / "pem"
    for settings, missing in (
        (ServerSettings(tmp_path, host), ": a token and TLS\n"),
        (ServerSettings(tmp_path, host, token="t"), ": TLS\n"),
        (ServerSettings(tmp_path, host, certificate=pem, key=pem), ": a token\n"),
    ):
        with pytest.raises(SetupError, match=missing):
            check_exposure(settings)
    check_exposure(ServerSettings(tmp_path, host, token="t", certificate=pem, key=pem))
    check_exposure(ServerSettings(tmp_path, host, insecure=True))


@pytest.mark.parametrize("host", ["127.0.0.1", "127.1.2.3", "::1", "localhost"])
def test_loopback_requires_no_token_or_tls(tmp_path: Path, host: str) -> None:
    check_exposure(ServerSettings(tmp_path, host))


def test_certificate_without_key_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SetupError, match="--tls-cert and --tls-key"):
        check_exposure(ServerSettings(tmp_path, certificate=tmp_path / "pem"))
    with pytest.raises(SetupError, match="token"):
        check_exposure(ServerSettings(tmp_path, token=""))


@pytest.mark.parametrize("host", ["0.0.0.0", "example.org"])
def test_advertised_address_reaches_submitters(tmp_path: Path, fake: Fake, host: str) -> None:
    for advertise, expected in (("jobs.example.org", "jobs.example.org:{}"), ("tunnel:99", "tunnel:99")):
        with serving(tmp_path, fake, advertise=advertise) as (server, client):
            assert server.endpoint == expected.format(server.port)
            assert client.prepare().artifact_staging_endpoint.url == server.endpoint


@pytest.mark.parametrize("metadata", [(), (("authorization", "Bearer wrong"),), (("authorization", "s3cret"),)])
def test_calls_without_token_are_refused(
    tmp_path: Path, fake: Fake, metadata: tuple[tuple[str, str], ...], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    with serving(tmp_path, fake, token="s3cret") as (_, client):
        calls = [
            lambda: client.jobs.GetJobs(job_pb.GetJobsRequest(), metadata=metadata),
            lambda: list(client.jobs.GetStateStream(job_pb.GetJobStateRequest(job_id="x"), metadata=metadata)),
            lambda: list(
                client.artifacts.ReverseArtifactRetrievalService(
                    iter([artifact_pb.ArtifactResponseWrapper(staging_token="x")]), metadata=metadata
                )
            ),
            lambda: client.channel.unary_unary("/org.apache.beam.model.job_management.v1.JobService/Prepare")(
                b"\x0a\xff\xff\xff not even parsed", metadata=metadata
            ),
        ]
        for call in calls:
            with pytest.raises(grpc.RpcError) as error:
                call()
            assert error.value.code() is grpc.StatusCode.UNAUTHENTICATED
    assert not fake.checked
    assert "s3cret" not in caplog.text
    assert "s3cret" not in repr(ServerSettings(tmp_path, token="s3cret"))


@needs_root
def test_other_users_of_the_machine_are_refused(tmp_path: Path, fake: Fake) -> None:
    with serving(tmp_path / "own", fake) as (server, own), relayed(server.port) as port:
        with connected(grpc.insecure_channel(f"localhost:{port}")) as client:
            calls = [
                lambda: client.jobs.GetJobs(job_pb.GetJobsRequest()),
                lambda: client.prepare(),
                lambda: list(client.jobs.GetStateStream(job_pb.GetJobStateRequest(job_id="x"))),
                lambda: list(
                    client.artifacts.ReverseArtifactRetrievalService(
                        iter([artifact_pb.ArtifactResponseWrapper(staging_token="x")])
                    )
                ),
            ]
            for call in calls:
                with pytest.raises(grpc.RpcError) as error:
                    call()
                assert error.value.code() is grpc.StatusCode.PERMISSION_DENIED
        assert not fake.checked
        with JobClient(f"localhost:{port}") as jobs, pytest.raises(SetupError, match="belongs to another user"):
            jobs.jobs(1)
        assert not own.jobs.GetJobs(job_pb.GetJobsRequest()).job_info
    for name, settings in (("token", {"token": "s3cret"}), ("open", {"insecure": True})):
        with (
            serving(tmp_path / name, fake, **settings) as (server, _),
            relayed(server.port) as port,
            connected(grpc.insecure_channel(f"localhost:{port}")) as client,
        ):
            metadata = (("authorization", "Bearer s3cret"),)
            assert not client.jobs.GetJobs(job_pb.GetJobsRequest(), metadata=metadata).job_info


def test_call_with_token_is_accepted(tmp_path: Path, fake: Fake) -> None:
    with serving(tmp_path, fake, token="s3cret") as (_, client):
        metadata = (("authorization", "Bearer s3cret"),)
        assert not client.jobs.GetJobs(job_pb.GetJobsRequest(), metadata=metadata).job_info


def test_tls(tmp_path: Path, fake: Fake) -> None:
    certificate, key = self_signed(tmp_path)
    with serving(tmp_path / "jobs", fake, certificate=certificate, key=key, token="s3cret") as (server, plain):
        with pytest.raises(grpc.RpcError) as error:
            plain.jobs.GetJobs(job_pb.GetJobsRequest(), timeout=WAIT)
        assert error.value.code() is grpc.StatusCode.UNAVAILABLE
        credentials = grpc.ssl_channel_credentials(certificate.read_bytes())
        with connected(grpc.secure_channel(f"localhost:{server.port}", credentials)) as client:
            metadata = (("authorization", "Bearer s3cret"),)
            assert not client.jobs.GetJobs(job_pb.GetJobsRequest(), metadata=metadata, timeout=WAIT).job_info


def test_unreadable_certificate_is_refused(tmp_path: Path, fake: Fake) -> None:
    with pytest.raises(SetupError, match="TLS"):
        JobServer(ServerSettings(tmp_path, certificate=tmp_path / "no", key=tmp_path / "no"), fake)


def self_signed(folder: Path) -> tuple[Path, Path]:
    """Return a certificate for localhost, and its key."""
    x509 = pytest.importorskip("cryptography.x509")
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "localhost")])
    now = datetime.datetime.now(datetime.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), critical=False)
        .sign(key, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    (folder / "cert.pem").write_bytes(certificate.public_bytes(pem))
    private = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    (folder / "key.pem").write_bytes(private)
    return folder / "cert.pem", folder / "key.pem"
