"""What traffic is made of: prompts in, one record per request out. JSON Lines both ways."""

import json
from collections.abc import Iterable
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, ValidationError


class TrafficError(Exception):
    """The input or the server cannot be used; the message says which and what to do."""


class Prompt(BaseModel):
    """One line of a traffic file."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    id: str = Field(min_length=1)
    domain: str = Field(default="default", min_length=1)
    source: str = ""
    prompt: str = Field(min_length=1)


class Record(BaseModel):
    """What one request did. Times in seconds; None where it was not measured or not given."""

    model_config = ConfigDict(extra="forbid")

    id: str
    domain: str
    started: float = Field(description="Unix seconds when the request was sent.")
    seconds: float = Field(description="From sending to the last byte, or to the failure.")
    ttft: float | None = Field(default=None, description="To the first piece of text.")
    tpot: float | None = Field(default=None, description="Mean time of an output token after the first.")
    tokens_in: int = 0
    tokens_out: int = 0
    accept_length: float | None = Field(
        default=None, description="Tokens per verify step, bonus included, as the server reported it."
    )
    verify_steps: int | None = None
    prompt_lookup_tokens: int | None = Field(default=None, description="Tokens that prompt lookup was scored on.")
    prompt_lookup_steps: int | None = Field(
        default=None, description="Verify steps that prompt lookup would have taken for them."
    )
    error: str = ""


def read_prompts(path: Path) -> list[Prompt]:
    """Prompts of a JSONL file, empty lines skipped; raises TrafficError naming the file and the line."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise TrafficError(f"cannot read prompts from {path}: {error}") from error
    prompts = []
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.strip():
            continue
        try:
            prompts.append(Prompt.model_validate(json.loads(line)))
        except json.JSONDecodeError as error:
            raise TrafficError(f"{path}:{number}: not JSON ({error.msg}); one object per line is wanted") from error
        except ValidationError as error:
            problem = error.errors()[0]
            field = ".".join(map(str, problem["loc"])) or "(line)"
            raise TrafficError(
                f"{path}:{number}: {field}: {problem['msg']}; a line needs `id` and `prompt` (and `domain`, `source`)"
            ) from error
    if not prompts:
        raise TrafficError(f"{path} holds no prompts")
    return prompts


def write_records(path: Path, records: Iterable[Record]) -> None:
    """One JSON object a line."""
    with path.open("w", encoding="utf-8") as file:
        for record in records:
            file.write(record.model_dump_json() + "\n")
