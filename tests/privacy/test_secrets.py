"""Secret options are recognized, and removed from texts and stored options."""

from __future__ import annotations

import pickle
from itertools import permutations

import pytest

from arcbeam import secrets
from arcbeam.errors import JobFailedError, UserCodeError
from arcbeam.secrets import known, parting

pytestmark = pytest.mark.contract("OPS-06")

_PLANTED = "pl4nt3d-s3cr3t"


@pytest.fixture(autouse=True)
def forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """Remove the secrets that a test registers in this process."""
    monkeypatch.setattr(known, "_known", known._Known())


@pytest.mark.parametrize(
    "name",
    [
        "s3_secret_access_key",
        "s3_session_token",
        "azure_connection_string",
        "db_password",
        "apiKey",
        "spark.ssl.keyPassword",
        "spark.hadoop.fs.s3a.access.key",
        "spark.hadoop.fs.s3a.secret.key",
        "spark.authenticate.secret",
        "spark.hadoop.fs.azure.account.key.my.dfs.core.windows.net",
    ],
)
def test_secret_options_are_known_by_their_names(name: str) -> None:
    assert secrets.is_secret(name)


@pytest.mark.parametrize("name", ["s3_access_key_id", "checkpoint_dir", "shards", "stage_mapping", "dataflow_kms_key"])
def test_other_options_are_not_secret(name: str) -> None:
    assert not secrets.is_secret(name)


@pytest.mark.parametrize(
    ("url", "without"),
    [
        (f"s3://KEY:{_PLANTED}@bucket/a", "s3://bucket/a"),
        (f"see s3://KEY:{_PLANTED}@bucket/a and s3://:{_PLANTED}@b", "see s3://bucket/a and s3://b"),
        (f"https://host/a?sig={_PLANTED}&x=1", "https://host/a?sig=&x=1"),
        (f"sc://host:15002/;token={_PLANTED};x=1", "sc://host:15002/;token=;x=1"),
        ("abfss://container@account.dfs.core.windows.net/a", "abfss://container@account.dfs.core.windows.net/a"),
        ("/a/b:c@d", "/a/b:c@d"),
    ],
)
def test_url_loses_its_credentials(url: str, without: str) -> None:
    assert secrets.without_credentials(url) == without
    assert _PLANTED not in secrets.redacted(url)


def test_secrets_are_separated_and_restored() -> None:
    options = {
        "s3_secret_access_key": _PLANTED,
        "arcbeam_temp": f"s3://K:{_PLANTED}@bucket/a",
        "spark_conf": ["spark.a=1", f"spark.x.password={_PLANTED}", f"spark.y=s3://K:{_PLANTED}@b"],
        "list": ["a", f"s3://K:{_PLANTED}@b"],
        "shards": 3,
        "empty_password": "",
    }
    parted = secrets.parted(options)
    assert _PLANTED not in repr(parted)
    assert _PLANTED not in str(parted.options)
    assert parted.options["arcbeam_temp"] == "s3://bucket/a"
    assert parted.options["spark_conf"] == ["spark.a=1"]
    assert sorted(parted.secrets) == [
        "arcbeam_temp",
        "list",
        "s3_secret_access_key",
        "spark_conf:spark.x.password",
        "spark_conf:spark.y",
    ]
    assert secrets.joined(parted.options, parted.secrets) == options


def test_value_of_an_earlier_secret_stays_secret() -> None:
    options = {"spark_conf": [f"spark.y={_PLANTED}", "spark.z=1"], "arcbeam_temp": _PLANTED}
    parted = secrets.parted(options, ("spark_conf:spark.y", "arcbeam_temp"))
    assert parted.options == {"spark_conf": ["spark.z=1"]}
    assert parted.secrets == {"spark_conf:spark.y": _PLANTED, "arcbeam_temp": _PLANTED}


def test_setting_of_a_declared_variable_is_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parting, "_variables", set())
    setting = "spark.executorEnv.BROKER"
    assert not secrets.is_secret(setting)
    secrets.declare(["BROKER"])
    assert secrets.is_secret(setting)
    assert not secrets.is_secret("spark.executorEnv.OTHER")


def test_value_of_six_characters_is_removed_from_texts() -> None:
    secrets.install({"one_password": "abcde", "other_password": "uvwxyz"})
    assert secrets.redacted("abcde uvwxyz") == "abcde …"


def test_environment_gives_secrets_by_name() -> None:
    environ = {"ARCBEAM_SECRET_S3_SECRET_ACCESS_KEY": "a", "ARCBEAM_SECRET_SPARK_CONF_SPARK_X_PASSWORD": "b"}
    names = ("s3_secret_access_key", "spark_conf:spark.x.password", "other_token")
    assert secrets.in_environment(names, environ) == dict(zip(names, "ab", strict=False))


@pytest.mark.parametrize(
    "values",
    [
        ("s3cr3t", "s3cr3t-longer"),
        ("s3cr3t", "longer-s3cr3t"),
        ("s3cr3t", "the-s3cr3t-inside", "s3cr3t-inside"),
        ("s3cr3t-s3cr3t", "s3cr3t"),
    ],
    ids=["beginning", "end", "middle", "twice"],
)
def test_secret_that_contains_another_is_removed_whole(values: tuple[str, ...]) -> None:
    for order in permutations(values):
        known._known = known._Known()
        for number, value in enumerate(order):
            secrets.install({f"password_{number}": value})
        for value in values:
            assert secrets.redacted(f"refused: {value}.") == "refused: ….", (order, value)


def test_errors_and_texts_are_redacted() -> None:
    secrets.install({"s3_secret_access_key": _PLANTED, "arcbeam_temp": "s3://K:0th3r-s3cr3t@bucket", "short": "abc"})
    assert secrets.installed("s3_secret_access_key") == _PLANTED
    assert secrets.redacted(f"{_PLANTED} 0th3r-s3cr3t abc") == "… … abc"
    errors = [
        JobFailedError(f"refused: {_PLANTED}", f"see {_PLANTED}"),
        UserCodeError("step", f"ValueError: {_PLANTED}", f"Traceback {_PLANTED}"),
    ]
    for error in errors:
        assert _PLANTED not in str(error) + repr(error) + str(vars(error))
        assert _PLANTED.encode() not in pickle.dumps(error)
