"""The demo's bucket: make it, and put the target there once."""

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import boto3
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

from .place import S3Access
from .shell import DemoError

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client


def client_of(access: S3Access) -> "S3Client":
    """A client that fails within seconds instead of minutes."""
    config = Config(connect_timeout=5, read_timeout=60, retries={"max_attempts": 3}, s3={"addressing_style": "path"})
    return boto3.client(
        "s3",
        endpoint_url=access.endpoint,
        region_name=access.region,
        aws_access_key_id=access.access_key_id,
        aws_secret_access_key=access.secret_access_key,
        config=config,
    )


def ensure_bucket(client: "S3Client", bucket: str) -> None:
    """Create the bucket unless it is there; raises DemoError when the server cannot be used."""
    try:
        client.head_bucket(Bucket=bucket)
    except ClientError as error:
        if error.response.get("Error", {}).get("Code") not in {"404", "NoSuchBucket"}:
            raise DemoError(f"bucket {bucket}: {error}; check the S3 keys") from error
        client.create_bucket(Bucket=bucket)
    except BotoCoreError as error:
        raise DemoError(f"the S3 server cannot be used: {error}") from error


class Bucket:
    """A bucket that exists."""

    def __init__(self, client: "S3Client", name: str) -> None:
        self._client, self.name = client, name

    def upload_directory(self, prefix: str, directory: Path, say: Callable[[str], None] = lambda _: None) -> None:
        """Put every file of a directory under a prefix; a file whose sha256 is there already is left alone."""
        for path in sorted(p for p in directory.iterdir() if p.is_file()):
            key = f"{prefix}/{path.name}"
            digest = hashlib.sha256(path.read_bytes()).hexdigest()
            if self._digest_of(key) == digest:
                continue
            say(f"uploading {path.name} ({path.stat().st_size / 1e6:.1f} MB)")
            self._client.upload_file(str(path), self.name, key, ExtraArgs={"Metadata": {"sha256": digest}})

    def keys(self, prefix: str) -> list[str]:
        """Keys below a prefix."""
        pages = self._client.get_paginator("list_objects_v2").paginate(Bucket=self.name, Prefix=prefix)
        return [item["Key"] for page in pages for item in page.get("Contents", [])]

    def read(self, key: str) -> bytes:
        """An object's bytes."""
        return self._client.get_object(Bucket=self.name, Key=key)["Body"].read()

    def _digest_of(self, key: str) -> str | None:
        try:
            return self._client.head_object(Bucket=self.name, Key=key).get("Metadata", {}).get("sha256")
        except ClientError as error:
            if error.response.get("Error", {}).get("Code") in {"404", "NoSuchKey"}:
                return None
            raise
