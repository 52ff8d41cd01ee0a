"""What all custom resources share: camelCase on the wire, strict fields, rules, and the string types of the API.

Numbers that are not whole travel as decimal strings, spans of time as durations (`90s`, `1h30m`), sizes as quantities
(`2Gi`): floats and unit-less numbers do not survive every client of an API server.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from typing import Annotated, Any, ClassVar, Self

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    GetJsonSchemaHandler,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)
from pydantic.alias_generators import to_camel
from pydantic_core import CoreSchema

GROUP = "speculator.dev"
VERSION = "v1alpha1"
API_VERSION = f"{GROUP}/{VERSION}"
FIELD_MANAGER = "speculator-operator"
FINALIZER = f"{GROUP}/cleanup"


class InvalidResource(Exception):
    """A custom resource does not fit its model. `problems` has one readable line per field."""

    def __init__(self, kind: str, name: str, problems: list[str]) -> None:
        self.problems = problems
        super().__init__(f"{kind} {name!r} is not valid: " + "; ".join(problems))


@dataclass(frozen=True)
class Rule:
    """A rule over several fields, checked by the API server (CEL) and, where `holds` is given, by us again.

    A rule that names `oldSelf` compares with the object as it was: only the API server can check it.
    """

    cel: str
    message: str
    holds: Callable[[Any], bool] | None = None
    field_path: str | None = None

    def schema(self) -> dict[str, str]:
        """The entry under `x-kubernetes-validations`."""
        entry = {"rule": self.cel, "message": self.message}
        return entry | ({"fieldPath": self.field_path} if self.field_path else {})


@dataclass(frozen=True)
class Later:
    """Marks a field that the API already has and that this release does not act on yet.

    The generated description says so, and `unused_settings` lists those that somebody set: nothing is ignored silently.
    """


class ApiModel(BaseModel):
    """Part of a spec: unknown fields are errors, instances are frozen."""

    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        alias_generator=to_camel,
        validate_by_name=True,
        validate_by_alias=True,
        serialize_by_alias=True,
    )
    rules: ClassVar[tuple[Rule, ...]] = ()

    @model_validator(mode="after")
    def _check_rules(self) -> Self:
        for rule in self.rules:
            if rule.holds is not None and not rule.holds(self):
                raise ValueError(rule.message)
        return self

    @classmethod
    def __get_pydantic_json_schema__(cls, core_schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        schema = handler.resolve_ref_schema(handler(core_schema))
        if cls.rules:
            schema["x-kubernetes-validations"] = [rule.schema() for rule in cls.rules]
        return schema

    def wire(self) -> dict[str, Any]:
        """The JSON object for the API server: camelCase, without fields that are None."""
        return self.model_dump(mode="json", by_alias=True, exclude_none=True)


class StatusModel(ApiModel):
    """Part of a status: fields of a newer operator are passed over, so that a roll-back of the operator can read it."""

    model_config = ConfigDict(extra="ignore")


class ObjectMeta(StatusModel):
    """The parts of `metadata` that we read."""

    name: str
    namespace: str = ""
    uid: str = ""
    generation: int = 0
    resource_version: str = ""
    creation_timestamp: str | None = None
    deletion_timestamp: str | None = None
    labels: dict[str, str] = Field(default_factory=dict)
    annotations: dict[str, str] = Field(default_factory=dict)
    finalizers: list[str] = Field(default_factory=list)


class Resource(BaseModel):
    """A custom resource as a whole. Subclasses set `kind`, `spec` and `status`."""

    model_config = ConfigDict(extra="ignore", frozen=True, validate_by_name=True, validate_by_alias=True)
    kind: str
    api_version: str = Field(default=API_VERSION, alias="apiVersion")
    metadata: ObjectMeta

    @field_validator("api_version", "kind")
    @classmethod
    def _ours(cls, value: str, info: ValidationInfo) -> str:
        expected = API_VERSION if info.field_name == "api_version" else cls.__name__
        if value != expected:
            raise ValueError(f"is {value!r}, expected {expected!r}")
        return value

    @classmethod
    def parse(cls, obj: Mapping[str, Any]) -> Self:
        """Read an object of the API server; raises InvalidResource with one line per problem."""
        try:
            return cls.model_validate({"kind": cls.__name__, **obj})
        except ValidationError as error:
            lines = [f"{'.'.join(map(str, e['loc'])) or '(object)'}: {_text(e['msg'])}" for e in error.errors()]
            raise InvalidResource(cls.__name__, str(obj.get("metadata", {}).get("name", "")), lines) from error

    def wire(self) -> dict[str, Any]:
        """The object as JSON for the API server."""
        return self.model_dump(mode="json", by_alias=True, exclude_none=True)


def _text(message: str) -> str:
    return message.removeprefix("Value error, ")


_UNITS = {"ms": Decimal("0.001"), "s": Decimal(1), "m": Decimal(60), "h": Decimal(3600)}
_DURATION = re.compile(r"([0-9]+(?:\.[0-9]+)?)(ms|s|m|h)")
DURATION_PATTERN = r"^([0-9]+(\.[0-9]+)?(ms|s|m|h))+$"
DECIMAL_PATTERN = r"^[0-9]+(\.[0-9]+)?$"
QUANTITY_PATTERN = r"^[0-9]+(\.[0-9]+)?([KMGTPE]i|[mkMGTPE]|[eE][0-9]+)?$"
_QUANTITY = re.compile(r"([0-9]+(?:\.[0-9]+)?)([KMGTPE]i|[mkMGTPE]|[eE][0-9]+)?")
_BINARY = {f"{letter}i": Decimal(1024) ** (power + 1) for power, letter in enumerate("KMGTPE")}
_DECIMAL = {letter: Decimal(1000) ** (power + 1) for power, letter in enumerate("kMGTPE")} | {"m": Decimal("0.001")}

Duration = Annotated[str, Field(pattern=DURATION_PATTERN, max_length=32)]
DecimalString = Annotated[str, Field(pattern=DECIMAL_PATTERN, max_length=32)]
Name = Annotated[str, Field(pattern=r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$", max_length=253)]
Sha256 = Annotated[str, Field(pattern=r"^([0-9a-f]{64})?$")]
Quantity = Annotated[
    str,
    Field(pattern=QUANTITY_PATTERN, max_length=32, coerce_numbers_to_str=True),
    Field(json_schema_extra={"x-kubernetes-int-or-string": True}),
]
AnyObject = Annotated[dict[str, Any], Field(json_schema_extra={"x-kubernetes-preserve-unknown-fields": True})]


def seconds(duration: str) -> float:
    """Seconds of a duration such as `90s`, `1h30m` or `500ms`; raises ValueError on anything else."""
    if not re.fullmatch(DURATION_PATTERN, duration):
        raise ValueError(f"{duration!r} is not a duration: use numbers with ms, s, m or h, for example 90s or 1h30m")
    return float(sum(Decimal(number) * _UNITS[unit] for number, unit in _DURATION.findall(duration)))


def quantity(value: str) -> Decimal:
    """Value of a Kubernetes quantity such as `2Gi`, `500m` or `1e9`, in its base unit; raises ValueError."""
    match = _QUANTITY.fullmatch(value)
    if match is None:
        raise ValueError(f"{value!r} is not a quantity: use for example 2Gi, 500M or 1500m")
    number, suffix = Decimal(match[1]), match[2] or ""
    if suffix[:1] in ("e", "E") and suffix[1:].isdigit():
        return number * Decimal(10) ** int(suffix[1:])
    return number * _BINARY.get(suffix, _DECIMAL.get(suffix, Decimal(1)))


def number(value: str) -> float:
    """Value of a decimal string; raises ValueError."""
    try:
        return float(Decimal(value))
    except InvalidOperation as error:
        raise ValueError(f"{value!r} is not a decimal number") from error


def decimal_string(value: float, digits: int = 4) -> str:
    """A finite, non-negative float as the API writes it, for example 1.2346; raises ValueError otherwise."""
    text = f"{Decimal(repr(value)):.{digits}f}"
    if not re.fullmatch(DECIMAL_PATTERN, text):
        raise ValueError(f"{value!r} cannot be written as a decimal string: it must be finite and not negative")
    return text


def unused_settings(model: ApiModel, path: str = "spec") -> Iterator[str]:
    """Paths of settings that differ from their default and that this release does not act on."""
    for name, field in type(model).model_fields.items():
        value = getattr(model, name)
        here = f"{path}.{field.alias or name}"
        later = any(isinstance(item, Later) for item in field.metadata)
        if later and value != field.get_default(call_default_factory=True):
            yield here
        elif isinstance(value, ApiModel):
            yield from unused_settings(value, here)
        elif isinstance(value, (list, tuple)):
            for index, item in enumerate(value):
                if isinstance(item, ApiModel):
                    yield from unused_settings(item, f"{here}[{index}]")
