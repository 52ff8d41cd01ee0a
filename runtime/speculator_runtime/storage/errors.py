"""What can go wrong with the S3 ledger, as types with sentences a person can act on.

Each error has a CamelCase `reason` (for conditions and metrics) and says whether waiting may help (`transient`).
"""

from collections.abc import Iterator
from contextlib import contextmanager

from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    ConnectionError,
    HTTPClientError,
    NoCredentialsError,
    NoRegionError,
    PartialCredentialsError,
    SSLError,
)

from speculator_runtime.contracts.settings import StoreSettings


class StoreError(Exception):
    """Anything that went wrong between us and the store."""

    reason = "StoreError"
    transient = False


class BucketNotFoundError(StoreError):
    """The bucket does not exist."""

    reason = "BucketNotFound"


class CredentialsError(StoreError):
    """There are no credentials, they are wrong, or they do not allow the call."""

    reason = "CredentialsRefused"


class StoreUnreachableError(StoreError):
    """No answer from the endpoint: name, network, TLS or time-out."""

    reason = "StoreUnreachable"
    transient = True


class StoreUnavailableError(StoreError):
    """The store answered that it cannot serve now (5xx, SlowDown), or broke off an answer."""

    reason = "StoreUnavailable"
    transient = True


class StoreConfigurationError(StoreError):
    """Endpoint, region or addressing style do not fit the store."""

    reason = "StoreMisconfigured"


class ObjectNotFoundError(StoreError):
    """The object does not exist."""

    reason = "ObjectNotFound"


class AlreadyExistsError(StoreError):
    """A conditional write lost: somebody else's object is there, with other content."""

    reason = "AlreadyExists"


class ConditionalWriteUnsupportedError(StoreError):
    """The store ignores or refuses `If-None-Match: *`, so it cannot hand out a version number safely."""

    reason = "ConditionalWriteUnsupported"


class CorruptObjectError(StoreError):
    """What the store holds is not what was written: truncated, of another size or digest, or not parseable."""

    reason = "CorruptObject"


_CREDENTIALS = {
    "XAdminUserNotFound",  # versitygw: no such access key
    "AccessDenied",
    "AllAccessDisabled",
    "ExpiredToken",
    "InvalidAccessKeyId",
    "InvalidToken",
    "SignatureDoesNotMatch",
    "TokenRefreshRequired",
    "401",
    "403",
    "Forbidden",
}
_NOT_FOUND = {"NoSuchKey", "NoSuchVersion", "404", "NotFound"}
_CONFLICT = {"PreconditionFailed", "ConditionalRequestConflict", "412", "409"}
_CONFIGURATION = {
    "PermanentRedirect",
    "AuthorizationHeaderMalformed",
    "IllegalLocationConstraintException",
    "TemporaryRedirect",
    "301",
    "InvalidBucketName",
}
_UNAVAILABLE = {
    "SlowDown",
    "InternalError",
    "ServiceUnavailable",
    "RequestTimeout",
    "Throttling",
    "XMinioServerNotInitialized",
}


def where(settings: StoreSettings) -> str:
    """Bucket and endpoint in words, for messages."""
    return f"bucket {settings.bucket!r} at {settings.endpoint or f'AWS S3, region {settings.region}'}"


def translate(error: BotoCoreError | ClientError | ValueError, settings: StoreSettings, doing: str) -> StoreError:
    """The typed error for one of boto's. `doing` says what was tried: "read versions/000042/manifest.json"."""
    place = where(settings)
    if isinstance(error, ClientError):
        return _translate_answer(error, settings, f"could not {doing} in {place}")
    if isinstance(error, NoCredentialsError | PartialCredentialsError):
        return CredentialsError(
            f"could not {doing} in {place}: no usable S3 credentials ({error}); set AWS_ACCESS_KEY_ID and "
            "AWS_SECRET_ACCESS_KEY (credentialsSecretRef), or give the pod an identity of its own"
        )
    if isinstance(error, SSLError):
        return StoreUnreachableError(
            f"could not {doing} in {place}: TLS failed ({error}); if the store's certificate is signed by a CA of your "
            "own, set AWS_CA_BUNDLE to its PEM file"
        )
    if isinstance(error, ConnectionError | HTTPClientError):
        return StoreUnreachableError(
            f"could not {doing} in {place}: no answer ({error}); check the endpoint's URL, its name in DNS and network "
            "policies"
        )
    if isinstance(error, NoRegionError | ValueError):
        return StoreConfigurationError(
            f"could not {doing} in {place}: {error}; check storage.s3 endpoint (http:// or https:// URL) and region"
        )
    return StoreUnavailableError(f"could not {doing} in {place}: {error}")


def _translate_answer(error: ClientError, settings: StoreSettings, failed: str) -> StoreError:
    code = error.response.get("Error", {}).get("Code", "")
    text = error.response.get("Error", {}).get("Message", "") or code
    status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
    if code == "NoSuchBucket":
        return BucketNotFoundError(f"{failed}: the bucket does not exist; create it, or correct storage.s3.bucket")
    if code in _CREDENTIALS or status in (401, 403):
        return CredentialsError(
            f"{failed}: the store refused the credentials ({code}: {text}); check the Secret's keys and that they "
            "may list, read and write below the prefix"
        )
    if code in _NOT_FOUND:
        return ObjectNotFoundError(f"{failed}: it does not exist")
    if code in _CONFLICT:
        return AlreadyExistsError(f"{failed}: it exists already and is never overwritten")
    if code == "NotImplemented" or status == 501:
        return ConditionalWriteUnsupportedError(f"{failed}: the store does not implement this request ({text})")
    if code in _CONFIGURATION:
        return StoreConfigurationError(
            f"{failed}: {code}: {text}; check storage.s3 region ({settings.region}) and pathStyle "
            f"({str(settings.path_style).lower()}; most stores other than AWS need true)"
        )
    if code in _UNAVAILABLE or status >= 500:
        return StoreUnavailableError(f"{failed}: the store cannot serve now ({code}: {text})")
    return StoreError(f"{failed}: {code}: {text}")


@contextmanager
def store_errors(settings: StoreSettings, doing: str) -> Iterator[None]:
    """Turns boto's errors inside the block into `StoreError`s."""
    try:
        yield
    except (BotoCoreError, ClientError) as error:
        raise translate(error, settings, doing) from error
