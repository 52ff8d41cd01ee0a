"""Where a target checkpoint comes from: S3, the Hugging Face Hub, or a directory. A listing, then files or ranges."""

import shutil
from pathlib import Path
from typing import Protocol

from speculator_runtime.contracts.settings import StoreSettings

from .errors import ObjectNotFoundError, StoreError, StoreUnreachableError
from .objects import ObjectStore


class Source(Protocol):
    """A folder of files, by plain name."""

    def files(self) -> dict[str, int]:
        """Name -> bytes of the top-level files, never empty. Raises StoreError's subclasses."""
        ...

    def download(self, name: str, path: Path) -> None:
        """Bring a whole file; it appears at `path` when complete."""
        ...

    def read(self, name: str, start: int, length: int) -> bytes:
        """A byte range."""
        ...


def open_source(url: str, store: StoreSettings) -> Source:
    """The source for a checked `FetchSettings.source`."""
    scheme, rest = url.split("://", 1)
    if scheme == "s3":
        return S3Source(url, store)
    if scheme == "hf":
        return HubSource(rest)
    return DirectorySource(Path(rest))


class S3Source:
    """`s3://BUCKET/PREFIX`, with the endpoint and credentials of the ledger's store."""

    def __init__(self, url: str, store: StoreSettings) -> None:
        bucket, prefix = url.removeprefix("s3://").split("/", 1)
        self._url = url
        self._prefix = prefix.strip("/")
        self._objects = ObjectStore(store.model_copy(update={"bucket": bucket, "prefix": ""}))
        self._keys: dict[str, str] = {}

    def files(self) -> dict[str, int]:
        """See Source. PREFIX may also be the key of one file."""
        found = {}
        for info in self._objects.objects(self._prefix):
            name = info.key.removeprefix(self._prefix).lstrip("/") or info.key.rsplit("/", 1)[-1]
            if info.key == self._prefix or (info.key.startswith(self._prefix + "/") and "/" not in name):
                found[name] = info.size
                self._keys[name] = info.key
        if not found:
            raise ObjectNotFoundError(
                f"{self._url} holds no files: upload the model's checkpoint there, or correct spec.target.model"
            )
        return found

    def download(self, name: str, path: Path) -> None:
        """See Source."""
        self._objects.download(self._keys[name], path)

    def read(self, name: str, start: int, length: int) -> bytes:
        """See Source."""
        return self._objects.read_range(self._keys[name], start, length)


class DirectorySource:
    """`file:///DIRECTORY`, or one file."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def files(self) -> dict[str, int]:
        """See Source."""
        if self._path.is_file():
            return {self._path.name: self._path.stat().st_size}
        found = {}
        if self._path.is_dir():
            found = {path.name: path.stat().st_size for path in self._path.iterdir() if path.is_file()}
        if not found:
            raise ObjectNotFoundError(
                f"file://{self._path} is not a checkpoint: no such directory, or it holds no files"
            )
        return found

    def _file(self, name: str) -> Path:
        return self._path if self._path.is_file() else self._path / name

    def download(self, name: str, path: Path) -> None:
        """See Source."""
        partial = path.with_name(path.name + ".part")
        shutil.copyfile(self._file(name), partial)
        partial.replace(path)

    def read(self, name: str, start: int, length: int) -> bytes:
        """See Source."""
        with self._file(name).open("rb") as file:
            file.seek(start)
            return file.read(length)


class HubSource:
    """`hf://ORG/NAME[@REVISION]`, pinned to the commit that the revision names when it is first looked up."""

    def __init__(self, rest: str) -> None:
        self._repository, _, self._revision = rest.strip("/").partition("@")
        self._commit = ""

    def files(self) -> dict[str, int]:
        """See Source. Needs the package huggingface_hub (it comes with transformers)."""
        import httpx
        from huggingface_hub import HfApi
        from huggingface_hub.errors import (
            GatedRepoError,
            HfHubHTTPError,
            HFValidationError,
            OfflineModeIsEnabled,
            RepositoryNotFoundError,
            RevisionNotFoundError,
        )

        name = f"hf://{self._repository}"
        try:
            info = HfApi().model_info(self._repository, revision=self._revision or None, files_metadata=True)
        except GatedRepoError as error:
            raise StoreError(f"{name} is gated: accept its terms on the Hub and give the pod HF_TOKEN") from error
        except RevisionNotFoundError as error:
            raise ObjectNotFoundError(f"{name} has no revision {self._revision!r}; correct spec.target") from error
        except (RepositoryNotFoundError, HFValidationError) as error:
            raise ObjectNotFoundError(
                f"{name} does not exist on the Hub, or is private; correct spec.target.model, or give the pod HF_TOKEN"
            ) from error
        except (httpx.HTTPError, HfHubHTTPError, OfflineModeIsEnabled) as error:
            raise StoreUnreachableError(
                f"cannot ask the Hub for {name}: {error}; check the pod's way to it (HF_ENDPOINT, proxies), or put the "
                "model into S3"
            ) from error
        self._commit = info.sha or self._revision or "main"
        return {file.rfilename: file.size or 0 for file in info.siblings or [] if "/" not in file.rfilename}

    def download(self, name: str, path: Path) -> None:
        """See Source."""
        import httpx
        from huggingface_hub import hf_hub_download
        from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError

        try:
            hf_hub_download(self._repository, name, revision=self._commit, local_dir=path.parent)
        except (httpx.HTTPError, HfHubHTTPError, LocalEntryNotFoundError) as error:
            raise StoreUnreachableError(f"could not download {name} of hf://{self._repository}: {error}") from error

    def read(self, name: str, start: int, length: int) -> bytes:
        """See Source."""
        import httpx
        from huggingface_hub import HfFileSystem
        from huggingface_hub.errors import HfHubHTTPError

        path = f"{self._repository}@{self._commit}/{name}"
        try:
            return bytes(HfFileSystem().cat_file(path, start=start, end=start + length))
        except (httpx.HTTPError, HfHubHTTPError, OSError) as error:
            raise StoreUnreachableError(f"could not read {name} of hf://{self._repository}: {error}") from error
