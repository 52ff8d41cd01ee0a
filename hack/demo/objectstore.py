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


def upload_directory(client: "S3Client", bucket: str, prefix: str, directory: Path, say: Callable[[str], None]) -> None:
    """Put every file of a directory under a prefix; a file is left alone when its sha256 is there already."""
    for path in sorted(p for p in directory.iterdir() if p.is_file()):
        key = f"{prefix}/{path.name}"
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
        try:
            there = client.head_object(Bucket=bucket, Key=key).get("Metadata", {}).get("sha256")
        except ClientError:
            there = None
        if there == digest:
            continue
        say(f"uploading {path.name} ({path.stat().st_size / 1e6:.1f} MB)")
        client.upload_file(str(path), bucket, key, ExtraArgs={"Metadata": {"sha256": digest}})
