"""What a person sees who named a wrong bucket, endpoint, region or secret."""

import time

import pytest

from speculator_runtime.contracts.settings import StoreSettings
from speculator_runtime.storage import (
    BucketNotFoundError,
    CredentialsError,
    Ledger,
    StoreConfigurationError,
    StoreUnreachableError,
)
from support.s3server import free_port, use_credentials


def test_a_missing_bucket(store):
    with pytest.raises(BucketNotFoundError, match=r"'no-such-bucket' at http://.*create it, or correct"):
        Ledger(store.model_copy(update={"bucket": "no-such-bucket"})).list_versions()


@pytest.mark.parametrize(
    ("access", "secret", "code"),
    [("nobody", "local-secret", "access key ID"), ("local", "wrong", "SignatureDoesNotMatch")],
)
def test_wrong_credentials(store, monkeypatch, access, secret, code):
    use_credentials(monkeypatch, access, secret)

    with pytest.raises(CredentialsError, match=f"{code}.*check the Secret"):
        Ledger(store).store.check()


def test_no_credentials_at_all(store, monkeypatch, tmp_path):
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))

    with pytest.raises(CredentialsError, match="credentialsSecretRef"):
        Ledger(store).claim_version()


def test_an_endpoint_nobody_answers_at_is_given_up_in_finite_time(monkeypatch):
    use_credentials(monkeypatch)
    settings = StoreSettings(bucket="bucket", endpoint=f"http://127.0.0.1:{free_port()}", path_style=True)
    began = time.monotonic()

    with pytest.raises(StoreUnreachableError, match=r"'bucket' at http://127.*check the endpoint") as caught:
        Ledger(settings).list_versions()

    assert caught.value.transient
    assert time.monotonic() - began < 60


def test_an_endpoint_that_is_no_url(monkeypatch):
    use_credentials(monkeypatch)

    with pytest.raises(StoreConfigurationError, match=r"minio:9000.*http:// or https:// URL"):
        Ledger(StoreSettings(bucket="bucket", endpoint="minio:9000"))
