"""Structural OpenAPI v3 schemas from the models, as apiextensions.k8s.io/v1 wants them.

Inlines references, turns optional into absent, gives every optional object a default of `{}` so that the defaults
within it are filled in, and refuses what an API should not have: floats, and fields without a description.
"""

import copy
from typing import Any, TypeAlias

from pydantic import BaseModel

from .base import Later

Schema: TypeAlias = dict[str, Any]

LATER = " Accepted, and not acted on by this release yet."
_KEPT = (
    "description",
    "default",
    "enum",
    "format",
    "pattern",
    "minimum",
    "maximum",
    "minLength",
    "maxLength",
    "minItems",
    "maxItems",
)


class NotStructural(Exception):
    """A model has something that a custom resource's schema cannot say; the message names the field."""


def structural(model: type[BaseModel], *, defaults: bool) -> Schema:
    """The schema of a spec (with defaults and rules) or of a status (without: nothing appears there by itself)."""
    schema = model.model_json_schema(by_alias=True, mode="validation")
    definitions = _with_later_marks(model, schema)
    return _Converter(definitions, defaults).convert(schema, model.__name__)


class _Converter:
    def __init__(self, definitions: dict[str, Schema], defaults: bool) -> None:
        self._definitions = definitions
        self._defaults = defaults

    def convert(self, node: Schema, path: str) -> Schema:
        node = self._resolve(node, path)
        if node.get("x-kubernetes-int-or-string"):
            return self._int_or_string(node)
        if "const" in node:
            node = node | {"enum": [node["const"]]}
        kind = node.get("type")
        if kind is None and "enum" in node:
            kind = "string"
        converted: Schema = {"type": kind}
        converted |= {key: node[key] for key in _KEPT if key in node}
        converted |= {key: value for key, value in node.items() if key.startswith("x-kubernetes-")}
        if not self._defaults:
            converted.pop("default", None)
            converted.pop("x-kubernetes-validations", None)
        match kind:
            case "object":
                self._object(node, converted, path)
            case "array":
                converted["items"] = self._items(node, path)
            case "integer":
                converted.setdefault("format", "int64")
            case "string" | "boolean":
                pass
            case _:
                raise NotStructural(f"{path}: type {kind!r} has no place in a custom resource; use a decimal string")
        if converted.get("default") is not None:
            converted["default"] = _without_none(converted["default"])
        return {key: value for key, value in converted.items() if value is not None}

    def _resolve(self, node: Schema, path: str) -> Schema:
        """Inline a reference and take `null` out of a union; what is said beside the reference wins."""
        while "$ref" in node or "anyOf" in node or "allOf" in node:
            beside = {key: value for key, value in node.items() if key not in ("$ref", "anyOf", "allOf")}
            if beside.get("x-kubernetes-int-or-string"):
                return beside
            options = [n for n in node.get("anyOf") or node.get("allOf") or [node] if n.get("type") != "null"]
            if len(options) != 1:
                raise NotStructural(f"{path}: a union of {len(options)} types has no structural schema")
            inner = options[0]
            if "$ref" in inner:
                inner = self._definitions[inner["$ref"].rsplit("/", 1)[1]]
            node = inner | beside
            if node.get("default") is None:
                node = {key: value for key, value in node.items() if key != "default"}
        return node

    def _int_or_string(self, node: Schema) -> Schema:
        kept: Schema = {key: node[key] for key in ("description", "pattern", "maxLength") if key in node}
        if self._defaults and node.get("default") is not None:
            kept["default"] = node["default"]
        return {
            "anyOf": [{"type": "integer"}, {"type": "string"}],
            "x-kubernetes-int-or-string": True,
            **kept,
        }

    def _object(self, node: Schema, converted: Schema, path: str) -> None:
        if node.get("x-kubernetes-preserve-unknown-fields"):
            return
        values = node.get("additionalProperties")
        if isinstance(values, dict):
            converted["additionalProperties"] = self.convert(values, f"{path}.*")
            return
        required = node.get("required", [])
        properties: dict[str, Schema] = {}
        for name, raw in node.get("properties", {}).items():
            here = f"{path}.{name}"
            child = self.convert(raw, here)
            if not child.get("description"):
                raise NotStructural(f"{here} has no description: kubectl explain would have nothing to say")
            optional = "anyOf" in raw and any(option.get("type") == "null" for option in raw["anyOf"])
            if self._defaults and name not in required and not optional and "properties" in child:
                child.setdefault("default", object_default(child))
            properties[name] = child
        converted["properties"] = properties
        if required:
            converted["required"] = required

    def _items(self, node: Schema, path: str) -> Schema:
        if "items" not in node:
            raise NotStructural(f"{path}: an array needs one schema for all its items")
        return self.convert(node["items"], f"{path}[]")


def object_default(schema: Schema) -> Schema:
    """Default of an optional object. `{}` would do, as the defaults within it are filled in; but where there are rules
    the API server checks them against the default as it is written here, so that it must be complete.
    """
    if not _has_rules(schema):
        return {}
    return {name: child["default"] for name, child in schema["properties"].items() if "default" in child}


def _has_rules(schema: Schema) -> bool:
    children = list(schema.get("properties", {}).values())
    return "x-kubernetes-validations" in schema or any(_has_rules(child) for child in children)


def _with_later_marks(model: type[BaseModel], schema: Schema) -> dict[str, Schema]:
    """The definitions, with a note in the description of each field that is marked `Later`."""
    definitions: dict[str, Schema] = copy.deepcopy(schema.get("$defs", {}))
    pending, seen = [model], {model}
    while pending:
        current = pending.pop()
        shown = schema if current is model else definitions.get(current.__name__, {})
        for name, field in current.model_fields.items():
            if any(isinstance(item, Later) for item in field.metadata):
                shown["properties"][field.alias or name]["description"] = (field.description or "") + LATER
            for found in _models_in(field.annotation):
                if found not in seen:
                    seen.add(found)
                    pending.append(found)
    return definitions


def _models_in(annotation: Any) -> list[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [model for part in getattr(annotation, "__args__", ()) for model in _models_in(part)]


def _without_none(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_none(item) for key, item in value.items() if item is not None}
    if isinstance(value, list):
        return [_without_none(item) for item in value]
    return value
