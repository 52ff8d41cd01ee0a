"""Writes the CustomResourceDefinitions: `python -m speculator_operator.api.crds [--check] [--root DIR]`.

They go to `crds/` and, word for word the same, to the Helm chart and the kustomize base (both read files of their own
folders only). With `--check` nothing is written; the exit status is 1 when a file differs from the models.
"""

import argparse
import functools
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel

from .base import GROUP, VERSION, Resource, Rule
from .schema import object_default, structural
from .speculator import NAME_LIMIT, NAME_PATTERN, Speculator
from .sync_policy import SyncPolicy
from .training_policy import TrainingPolicy
from .version import SpeculatorVersion

FOLDERS = ("crds", "charts/speculator-operator/files/crds", "manifests/base/crds")
HEADER = "# Generated from operator/speculator_operator/api by `make crds`. Do not edit.\n"


@dataclass(frozen=True)
class Column:
    """A column of `kubectl get`. Those of priority 1 show with `-o wide`."""

    name: str
    path: str
    type: str = "string"
    priority: int = 0
    description: str = ""

    def wire(self) -> dict[str, Any]:
        """As in a CustomResourceDefinition."""
        column: dict[str, Any] = {"name": self.name, "type": self.type, "jsonPath": self.path}
        if self.description:
            column["description"] = self.description
        if self.priority:
            column["priority"] = self.priority
        return column


@dataclass(frozen=True)
class Definition:
    """What a CustomResourceDefinition says beside the schema."""

    model: type[Resource]
    plural: str
    short_names: tuple[str, ...]
    columns: tuple[Column, ...]
    rules: tuple[Rule, ...] = ()
    scale: dict[str, str] | None = None

    @property
    def kind(self) -> str:
        """Kind of the resource."""
        return self.model.__name__

    @property
    def file_name(self) -> str:
        """Name of the generated file."""
        return f"{GROUP}_{self.plural}.yaml"


AGE = Column("Age", ".metadata.creationTimestamp", "date")

DEFINITIONS = (
    Definition(
        Speculator,
        "speculators",
        ("spc",),
        (
            Column("Phase", ".status.phase"),
            Column("Stable", ".status.stable.version", "integer", description="Version that serves."),
            Column("Candidate", ".status.candidate.version", "integer", description="Version on trial."),
            Column("Step", ".status.step", description="Canary step under way."),
            Column("Speedup", ".status.speedup.estimate", description="Measured, over target-only decoding."),
            Column("Mode", ".status.mode", description="How replicas decode at rest."),
            AGE,
            Column("Ready", ".status.readyReplicas", "integer", 1, "Replicas that serve."),
            Column("Lower", ".status.speedup.lower", "string", 1, "Lower confidence bound of the speedup."),
            Column("Pairs", ".status.speedup.pairs", "integer", 1, "Pairs of blocks that the speedup rests on."),
            Column("Target", ".spec.target.model", "string", 1),
            Column("Message", ".status.message", "string", 1),
        ),
        rules=(
            Rule(
                f"size(self.metadata.name) <= {NAME_LIMIT}",
                f"the name must have at most {NAME_LIMIT} characters, because pods are named after it",
            ),
            Rule(
                f"self.metadata.name.matches('^{NAME_PATTERN}$')",
                "the name must begin with a letter and have no dots, because a Service is named after it",
            ),
        ),
        scale={
            "specReplicasPath": ".spec.serving.replicas",
            "statusReplicasPath": ".status.replicas",
            "labelSelectorPath": ".status.selector",
        },
    ),
    Definition(
        SpeculatorVersion,
        "speculatorversions",
        ("spcv",),
        (
            Column("Speculator", ".spec.speculator"),
            Column("Version", ".spec.version", "integer"),
            Column("Phase", ".status.phase"),
            Column("Speedup", ".status.againstTargetOnly.estimate", description="Over target-only decoding."),
            Column("Lower", ".status.againstTargetOnly.lower", description="Lower confidence bound of the speedup."),
            Column("Accept", ".status.acceptLength", description="Tokens per verify step, bonus token included."),
            Column("Requests", ".spec.data.requestsTotal", "integer", description="Learnt from, in all."),
            AGE,
            Column("Upper", ".status.againstTargetOnly.upper", "string", 1, "Upper confidence bound of the speedup."),
            Column("Pairs", ".status.againstTargetOnly.pairs", "integer", 1, "Pairs of blocks."),
            Column("Step", ".spec.trainingStep", "integer", 1, "Training step."),
            Column("Reason", ".status.reason", "string", 1),
            Column("SHA256", ".spec.sha256", "string", 1),
        ),
    ),
    Definition(
        TrainingPolicy,
        "trainingpolicies",
        ("tpol",),
        (
            Column("Loss", ".spec.loss.type"),
            Column("TTT", ".spec.loss.tttLength", "integer", description="Steps of training-time test."),
            Column("Rate", ".spec.optimizer.learningRate", description="Learning rate."),
            Column("Batch", ".spec.batch.size", "integer", 1),
            Column("Precision", ".spec.precision", "string", 1),
            AGE,
        ),
    ),
    Definition(
        SyncPolicy,
        "syncpolicies",
        ("spol",),
        (
            Column("Every", ".spec.publish.everyRequests", "integer", description="Requests between two versions."),
            Column("Threshold", ".spec.canary.minSpeedupOverTargetOnly", description="Speedup over target-only."),
            Column("Alpha", ".spec.canary.alpha", description="Probability of a false promotion."),
            Column("Inconclusive", ".spec.canary.onInconclusive", "string", 1),
            Column("Fallback", ".spec.fallback.enabled", "boolean", 1),
            AGE,
        ),
    ),
)


def crd(definition: Definition) -> dict[str, Any]:
    """The CustomResourceDefinition as an object."""
    model = definition.model
    spec_model, status_model = _part(model, "spec"), _part(model, "status")
    if spec_model is None:
        raise TypeError(f"{model.__name__} has no spec")
    properties: dict[str, Any] = {
        "apiVersion": {"type": "string", "description": "Version of the schema of this object."},
        "kind": {"type": "string", "description": "Kind of this object."},
        "metadata": {"type": "object"},
        "spec": structural(spec_model, defaults=True),
    }
    schema: dict[str, Any] = {"type": "object", "description": model.__doc__, "properties": properties}
    if "required" in properties["spec"]:
        schema["required"] = ["spec"]
    else:
        properties["spec"]["default"] = object_default(properties["spec"])
    subresources: dict[str, Any] = {}
    if status_model is not None:
        properties["status"] = structural(status_model, defaults=False)
        subresources["status"] = {}
    if definition.scale:
        subresources["scale"] = definition.scale
    if definition.rules:
        schema["x-kubernetes-validations"] = [rule.schema() for rule in definition.rules]
    version: dict[str, Any] = {
        "name": VERSION,
        "served": True,
        "storage": True,
        "schema": {"openAPIV3Schema": schema},
        "additionalPrinterColumns": [column.wire() for column in definition.columns],
    }
    if subresources:
        version["subresources"] = subresources
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{definition.plural}.{GROUP}"},
        "spec": {
            "group": GROUP,
            "scope": "Namespaced",
            "names": {
                "kind": definition.kind,
                "listKind": f"{definition.kind}List",
                "plural": definition.plural,
                "singular": definition.kind.lower(),
                "shortNames": list(definition.short_names),
                "categories": ["speculation"],
            },
            "versions": [version],
        },
    }


def _part(model: type[Resource], name: str) -> type[BaseModel] | None:
    field = model.model_fields.get(name)
    found = field.annotation if field else None
    return found if isinstance(found, type) and issubclass(found, BaseModel) else None


class _Dumper(yaml.SafeDumper):
    """Writes out what is the same in two places: anchors read badly."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


@functools.cache
def rendered() -> dict[str, str]:
    """File name -> YAML text of every definition."""
    return {
        definition.file_name: HEADER + yaml.dump(crd(definition), Dumper=_Dumper, sort_keys=False, width=110)
        for definition in DEFINITIONS
    }


def stale_files(root: Path) -> list[Path]:
    """Files under `root` that differ from the models, are missing, or have no definition any more."""
    wanted = {root / folder / name: text for folder in FOLDERS for name, text in rendered().items()}
    there = {path for folder in FOLDERS for path in (root / folder).glob("*.yaml")}
    stale = [path for path, text in wanted.items() if not path.is_file() or path.read_text() != text]
    return sorted({*stale, *(there - wanted.keys())})


def write_files(root: Path) -> None:
    """Bring the files under `root` up to date with the models."""
    texts = rendered()
    for folder in FOLDERS:
        (root / folder).mkdir(parents=True, exist_ok=True)
        for path in (root / folder).glob("*.yaml"):
            if path.name not in texts:
                path.unlink()
        for name, text in texts.items():
            (root / folder / name).write_text(text)


def main(arguments: list[str] | None = None) -> int:
    """Command line."""
    parser = argparse.ArgumentParser(prog="python -m speculator_operator.api.crds", description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; fail when a file is out of date")
    parser.add_argument("--root", type=Path, default=Path(), help="the repository (default: the current folder)")
    options = parser.parse_args(arguments)
    if not (options.root / "pyproject.toml").is_file():
        parser.error(f"{options.root.resolve()} is not the repository: run it there, or pass --root")
    if not options.check:
        write_files(options.root)
        return 0
    stale = stale_files(options.root)
    for path in stale:
        print(f"{path} differs from the models in operator/speculator_operator/api: run `make crds`", file=sys.stderr)
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main())
