"""What every contract model shares: strict fields, frozen instances, an explicit schema version.

Contracts are the only thing that two programs of ours have in common. This package imports no torch, no numpy and
nothing else of ours, so that the operator can use it.
"""

from typing import Literal

from pydantic import BaseModel, ConfigDict


class Contract(BaseModel):
    """A frozen model that rejects unknown fields: a typo is an error, never ignored."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class VersionedContract(Contract):
    """A contract that crosses a process boundary or is stored; readers refuse a schema version they do not know."""

    schema_version: Literal[1] = 1
