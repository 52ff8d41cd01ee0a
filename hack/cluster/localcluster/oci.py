"""Writes a one-layer OCI image archive, for the two images that no Dockerfile can make here: `pause` and the base."""

import gzip
import hashlib
import io
import json
import platform
import tarfile
from collections.abc import Mapping
from pathlib import Path


def layer_of(files: Mapping[str, bytes]) -> bytes:
    """A layer's tar stream with these executable files, owned by root, the same bytes for the same content."""
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as layer:
        for name, content in sorted(files.items()):
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode = len(content), 0o755
            layer.addfile(entry, io.BytesIO(content))
    return stream.getvalue()


def write_image(archive: Path, name: str, layer: bytes, config: Mapping[str, object]) -> None:
    """Write `archive`, holding the image `name` of one layer (an uncompressed tar stream).

    `config` is the image configuration's own `config` object: Entrypoint, Env and so on.
    """
    blobs: dict[str, bytes] = {}

    def blob(content: bytes, media_type: str) -> dict[str, object]:
        digest = hashlib.sha256(content).hexdigest()
        blobs[f"blobs/sha256/{digest}"] = content
        return {
            "mediaType": f"application/vnd.oci.image.{media_type}",
            "digest": f"sha256:{digest}",
            "size": len(content),
        }

    packed = blob(gzip.compress(layer, compresslevel=1, mtime=0), "layer.v1.tar+gzip")
    image = {
        "architecture": _architecture(),
        "os": "linux",
        "config": dict(config),
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{hashlib.sha256(layer).hexdigest()}"]},
    }
    manifest = {
        "schemaVersion": 2,
        "mediaType": "application/vnd.oci.image.manifest.v1+json",
        "config": blob(json.dumps(image).encode(), "config.v1+json"),
        "layers": [packed],
    }
    entry = blob(json.dumps(manifest).encode(), "manifest.v1+json") | {
        "annotations": {"io.containerd.image.name": name}
    }
    files = {
        "oci-layout": json.dumps({"imageLayoutVersion": "1.0.0"}).encode(),
        "index.json": json.dumps({"schemaVersion": 2, "manifests": [entry]}).encode(),
        **blobs,
    }
    with tarfile.open(archive, "w") as output:
        for path, content in files.items():
            member = tarfile.TarInfo(path)
            member.size = len(content)
            output.addfile(member, io.BytesIO(content))


def _architecture() -> str:
    machine = platform.machine()
    return {"x86_64": "amd64", "aarch64": "arm64"}.get(machine, machine)
