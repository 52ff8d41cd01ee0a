"""How the target checkpoint comes into a pod: fetched by an init container, or mounted from a volume."""

from dataclasses import dataclass
from typing import Any, Literal

from speculator_operator.api.speculator import Speculator
from speculator_runtime.contracts.settings import FetchSettings, StoreSettings

from .errors import CannotBuild
from .names import TARGET_DIRECTORY, KubeObject


@dataclass(frozen=True)
class TargetMount:
    """The volume `target`, its mount for readers, and whether an init container must fill it."""

    volume: KubeObject
    mount: KubeObject
    fetched: bool


def target_mount(speculator: Speculator) -> TargetMount:
    """How the target gets to /models/target; raises CannotBuild for file://."""
    scheme, _, rest = speculator.spec.target.model.partition("://")
    mount: dict[str, Any] = {"name": "target", "mountPath": TARGET_DIRECTORY, "readOnly": True}
    if scheme in ("s3", "hf"):
        return TargetMount({"name": "target", "emptyDir": {}}, mount, fetched=True)
    if scheme == "pvc":
        claim, _, path = rest.partition("/")
        volume = {"name": "target", "persistentVolumeClaim": {"claimName": claim, "readOnly": True}}
        sub_path = {"subPath": path.strip("/")} if path.strip("/") else {}
        return TargetMount(volume, mount | sub_path, fetched=False)
    if scheme == "oci":
        image = {"reference": rest, "pullPolicy": speculator.spec.engine.image_pull_policy}
        return TargetMount({"name": "target", "image": image}, mount, fetched=False)
    raise CannotBuild(
        "NotSupportedYet",
        f"spec.target.model {speculator.spec.target.model!r} names a directory of the image; "
        "use hf://ORG/NAME, s3://BUCKET/PREFIX, pvc://CLAIM/PATH or oci://IMAGE",
    )


def fetch_settings(
    speculator: Speculator, store: StoreSettings, only: Literal["all", "embedding"]
) -> FetchSettings | None:
    """Settings of the init container; None when the target is mounted from a volume."""
    if not target_mount(speculator).fetched:
        return None
    target = speculator.spec.target
    revision = f"@{target.revision}" if target.revision and target.model.startswith("hf://") else ""
    return FetchSettings(source=target.model + revision, destination=TARGET_DIRECTORY, store=store, only=only)
