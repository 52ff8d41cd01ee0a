"""Pieces of pods that a user may set: environment, resources, and overrides of the pod template.

What Kubernetes itself validates (affinity, tolerations, volumes and the like) is passed through as it is.
"""

from typing import Annotated

from pydantic import Field

from .base import AnyObject, ApiModel, Name, Quantity, Rule


class EnvVar(ApiModel):
    """An environment variable of a container."""

    rules = (
        Rule(
            "!(has(self.value) && has(self.valueFrom))",
            "set value or valueFrom, not both",
            lambda env: env.value is None or env.value_from is None,
        ),
    )
    name: str = Field(pattern=r"^[-._a-zA-Z][-._a-zA-Z0-9]*$", max_length=253, description="Name of the variable.")
    value: str | None = Field(default=None, max_length=32768, description="Its value.")
    value_from: AnyObject | None = Field(
        default=None, description="Where the value comes from (secretKeyRef, configMapKeyRef, fieldRef), as in a pod."
    )


EnvVars = Annotated[
    list[EnvVar],
    Field(max_length=128, json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"]}),
]


class Resources(ApiModel):
    """Requests and limits of a container."""

    requests: dict[str, Quantity] = Field(
        default_factory=dict, description="What the scheduler sets aside, for example cpu: 2, memory: 4Gi."
    )
    limits: dict[str, Quantity] = Field(
        default_factory=dict, description="What the container may use at most, for example nvidia.com/gpu: 1."
    )


class PodTemplate(ApiModel):
    """Overrides of the pods that the operator makes; what is not given keeps the operator's value."""

    labels: dict[str, str] = Field(
        default_factory=dict, description="Labels added to the pods; ours win where they have the same key."
    )
    annotations: dict[str, str] = Field(default_factory=dict, description="Annotations added to the pods.")
    node_selector: dict[str, str] = Field(
        default_factory=dict, description="Labels that a node must have to run the pods."
    )
    tolerations: list[AnyObject] = Field(
        default_factory=list, max_length=64, description="Taints that the pods tolerate, as in a pod."
    )
    affinity: AnyObject | None = Field(default=None, description="Scheduling affinity, as in a pod.")
    topology_spread_constraints: list[AnyObject] = Field(
        default_factory=list, max_length=16, description="How the pods spread over the cluster, as in a pod."
    )
    priority_class_name: str | None = Field(default=None, max_length=253, description="PriorityClass of the pods.")
    scheduler_name: str | None = Field(default=None, max_length=253, description="Scheduler other than the default.")
    runtime_class_name: str | None = Field(
        default=None, max_length=253, description="RuntimeClass of the pods, for example nvidia."
    )
    image_pull_secrets: list[Name] = Field(
        default_factory=list, max_length=16, description="Names of Secrets with credentials of image registries."
    )
    env: EnvVars = Field(
        default_factory=list,
        description="Environment of all our containers of the pod; wins over the operator's own values.",
    )
    volumes: list[AnyObject] = Field(
        default_factory=list, max_length=64, description="Volumes added to the pods, as in a pod."
    )
    volume_mounts: list[AnyObject] = Field(
        default_factory=list, max_length=64, description="Mounts added to the main container (engine or trainer)."
    )
    host_ipc: bool = Field(
        default=False,
        alias="hostIPC",
        description="Share the node's IPC namespace, which CUDA IPC between pods needs. Weakens isolation.",
    )
    shm_size: Quantity | None = Field(
        default=None, description="Size of a memory-backed /dev/shm for the main container; none is mounted if absent."
    )
    security_context: AnyObject | None = Field(
        default=None, description="Fields that replace those of the pod's security context, for example fsGroup."
    )
