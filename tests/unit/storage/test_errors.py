"""Answers that a local server does not give, as AWS and others send them, and what a person reads then."""

import pytest
from botocore.exceptions import ClientError, ConnectTimeoutError, SSLError

from speculator_runtime.contracts.settings import StoreSettings
from speculator_runtime.storage import (
    ConditionalWriteUnsupportedError,
    CredentialsError,
    StoreConfigurationError,
    StoreError,
    StoreUnavailableError,
    StoreUnreachableError,
)
from speculator_runtime.storage.errors import translate

SETTINGS = StoreSettings(bucket="drafters", region="eu-west-9")


def answer(code: str, status: int) -> ClientError:
    return ClientError(
        {"Error": {"Code": code, "Message": "as sent"}, "ResponseMetadata": {"HTTPStatusCode": status}}, "GetObject"
    )


@pytest.mark.parametrize(
    ("error", "kind", "says"),
    [
        (answer("PermanentRedirect", 301), StoreConfigurationError, "region (eu-west-9)"),
        (answer("AuthorizationHeaderMalformed", 400), StoreConfigurationError, "pathStyle (false"),
        (answer("SlowDown", 503), StoreUnavailableError, "cannot serve now"),
        (answer("Unheard", 500), StoreUnavailableError, "cannot serve now"),
        (answer("ExpiredToken", 400), CredentialsError, "check the Secret's keys"),
        (answer("Unheard", 403), CredentialsError, "check the Secret's keys"),
        (answer("NotImplemented", 501), ConditionalWriteUnsupportedError, "does not implement"),
        (answer("Unheard", 400), StoreError, "Unheard: as sent"),
        (SSLError(endpoint_url="https://s3", error="self-signed"), StoreUnreachableError, "AWS_CA_BUNDLE"),
        (ConnectTimeoutError(endpoint_url="https://s3"), StoreUnreachableError, "network policies"),
    ],
)
def test_each_answer_becomes_a_typed_error_with_place_and_advice(error, kind, says):
    translated = translate(error, SETTINGS, "read versions/000001/manifest.json")

    assert type(translated) is kind
    assert says in str(translated)
    assert str(translated).startswith(
        "could not read versions/000001/manifest.json in bucket 'drafters' at AWS S3, region eu-west-9"
    )


def test_only_what_may_pass_by_itself_is_transient():
    assert translate(answer("SlowDown", 503), SETTINGS, "read x").transient
    assert translate(ConnectTimeoutError(endpoint_url="https://s3"), SETTINGS, "read x").transient
    assert not translate(answer("AccessDenied", 403), SETTINGS, "read x").transient
