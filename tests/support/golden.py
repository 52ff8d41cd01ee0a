"""Golden pairs of the builders: `input.yaml` (a Speculator, perhaps policies) and `output.yaml` (what is built)."""

import itertools
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from speculator_operator.api.speculator import Speculator
from speculator_operator.api.sync_policy import SyncPolicy, SyncPolicySpec
from speculator_operator.api.training_policy import TrainingPolicy, TrainingPolicySpec
from speculator_operator.resources import build_objects
from speculator_operator.settings import ImageDefaults

FOLDER = Path(__file__).parents[1] / "unit/resources/golden"
CASES = sorted(path.parent.name for path in FOLDER.glob("*/input.yaml"))
IMAGES = ImageDefaults(runtime="registry.example/runtime:1", sglang="registry.example/sglang:1")
UID = "11111111-2222-3333-4444-555555555555"
HEADER = "# Generated from input.yaml by the builders: UPDATE_GOLDEN=1 pytest tests/unit/resources. Read the diff.\n"


@dataclass(frozen=True)
class Golden:
    """A pair, the input parsed."""

    name: str
    speculator: Speculator
    training: TrainingPolicySpec
    sync: SyncPolicySpec
    inputs: list[dict[str, Any]]

    @property
    def output(self) -> Path:
        return FOLDER / self.name / "output.yaml"

    def build(self) -> list[dict[str, Any]]:
        return build_objects(self.speculator, self.training, self.sync, {}, IMAGES, counting_bytes())[0]


def load(name: str) -> Golden:
    """Read the input of a case."""
    inputs = list(yaml.safe_load_all((FOLDER / name / "input.yaml").read_text()))
    by_kind = {obj["kind"]: obj for obj in inputs}
    raw = by_kind["Speculator"]
    training, sync = by_kind.get("TrainingPolicy"), by_kind.get("SyncPolicy")
    return Golden(
        name,
        Speculator.parse({**raw, "metadata": {**raw["metadata"], "uid": UID}}),
        TrainingPolicy.parse(training).spec if training else TrainingPolicySpec(),
        SyncPolicy.parse(sync).spec if sync else SyncPolicySpec(),
        inputs,
    )


def counting_bytes():
    """Bytes that are the same in every run: 01 01 01..., 02 02 02..., and so on."""
    numbers = itertools.count(1)
    return lambda count: bytes([next(numbers)]) * count


class _Dumper(yaml.SafeDumper):
    def ignore_aliases(self, data: Any) -> bool:
        return True


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    style = "|" if "\n" in text else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _text)


def dump(objects: list[dict[str, Any]]) -> str:
    """As people read it: settings files as blocks of text, nothing folded."""
    return HEADER + yaml.dump_all(objects, Dumper=_Dumper, sort_keys=False, width=1000)
