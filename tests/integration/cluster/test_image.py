"""Image builds may use this machine's index settings and CA bundle; an image never holds them."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from support.machine import REPOSITORY, Machine, cache

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(240)]

KEY = "this-key-stays-here"
# The mounts that images/*/Dockerfile have, and a command that fails without the secrets (and does not spell them).
DOCKERFILE = """
FROM scratch
ADD base.tar /
RUN --mount=type=bind,source=with-index,target=/with-index --mount=type=secret,id=ca --mount=type=secret,id=index \\
    /with-index sh -c 'key=$(printf "%s-%s" this-key stays-here) && \\
    test "$UV_DEFAULT_INDEX" = https://user:$key@index.example && grep -q $key "$SSL_CERT_FILE" && echo used >/proof'
USER 65532:65532
"""


def test_secrets_reach_the_build_and_not_the_image(running: Machine, tmp_path: Path) -> None:
    bases = sorted(cache().glob("base-*.tar"))
    if not bases and not os.environ.get("CI"):
        pytest.skip("no base image yet: run hack/cluster/cluster images")
    assert bases, "`make test` builds the images before it runs the tests"
    shutil.copyfile(bases[0], tmp_path / "base.tar")
    (tmp_path / "with-index").write_bytes((REPOSITORY / "images" / "lib" / "with-index").read_bytes())
    (tmp_path / "with-index").chmod(0o755)
    (tmp_path / "Dockerfile").write_text(DOCKERFILE)
    (tmp_path / "ca.pem").write_text(KEY)
    settings = [f"PIP_INDEX_URL=https://user:{KEY}@index.example", f"SSL_CERT_FILE={tmp_path / 'ca.pem'}"]
    running.cluster("image", "localhost/test:1", str(tmp_path), settings=settings)
    # Nothing changes the store once its programs are gone.
    running.cluster("down")
    store = running.folder() / "store"
    assert {proof.read_text() for proof in store.rglob("proof")} == {"used\n"}
    found = subprocess.run(["grep", "--recursive", "--files-with-matches", KEY, store], capture_output=True, text=True)
    assert found.stdout == ""
