"""Bodies of the HTTP API as clients send them, checked.

OpenAI clients send many parameters at values that change nothing; these are accepted. A parameter that would change
the answer and is not implemented is an error that names it: an answer that ignored it would be wrong without a sign.
"""

from typing import Any, Self

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from .errors import BadRequest
from .request import Labels

# Parameters that say nothing about the answer.
_IGNORED = frozenset(
    {"user", "metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key", "parallel_tool_calls"}
)
# Parameters that are not implemented, at the values that change nothing. null changes nothing anywhere.
_NEUTRAL: dict[str, tuple[Any, ...]] = {
    "best_of": (1,),
    "echo": (False,),
    "frequency_penalty": (0,),
    "logit_bias": ({},),
    "logprobs": (False,),
    "min_new_tokens": (0,),
    "min_p": (0,),
    "min_tokens": (0,),
    "n": (1,),
    "no_stop_trim": (False,),
    "presence_penalty": (0,),
    "repetition_penalty": (1,),
    "response_format": ({"type": "text"},),
    "return_hidden_states": (False,),
    "return_logprob": (False,),
    "skip_special_tokens": (True,),
    "spaces_between_special_tokens": (True,),
    "suffix": ("",),
    "tool_choice": ("none", "auto"),
    "tools": ([],),
}
_MAX_STOPS = 16


class CustomParams(BaseModel):
    """SGLang's `custom_params`: a flat object. The keys below mean something here, others pass unread."""

    model_config = ConfigDict(extra="allow")

    domain: str | None = Field(default=None, min_length=1, max_length=64)
    opt_out: bool | None = None
    reward_key: str | None = Field(default=None, max_length=256)

    def labels(self) -> Labels:
        """As the engine keeps them."""
        return Labels(self.domain or "default", self.opt_out, self.reward_key)


class _Body(BaseModel):
    model_config = ConfigDict(extra="allow")

    def reject_unsupported(self) -> None:
        """Raises BadRequest for the first parameter that is not implemented and would change the answer."""
        for name, value in (self.model_extra or {}).items():
            if value is not None and name not in _IGNORED and value not in _NEUTRAL.get(name, ()):
                raise BadRequest(
                    f"{name}={str(value)[:100]!r} is not supported by this engine; leave the parameter out", name
                )


class StreamOptions(BaseModel):
    """OpenAI's `stream_options`."""

    include_usage: bool = False


class _OpenAI(_Body):
    model: str | None = None
    max_tokens: int | None = Field(default=None, ge=1)
    temperature: float = Field(default=1.0, ge=0, le=2)
    top_p: float = Field(default=1.0, gt=0, le=1)
    top_k: int | None = Field(default=None, ge=-1)
    seed: int | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    ignore_eos: bool = False
    n: int = 1
    stream: bool = False
    stream_options: StreamOptions | None = None
    rid: str | None = Field(default=None, min_length=1, max_length=256)
    custom_params: CustomParams | None = None
    # Also understood at top level, beside `custom_params`.
    domain: str | None = Field(default=None, min_length=1, max_length=64)
    opt_out: bool | None = None
    reward_key: str | None = Field(default=None, max_length=256)

    @field_validator("temperature", "top_p", mode="before")
    @classmethod
    def _null_is_default(cls, value: Any) -> Any:
        return 1.0 if value is None else value

    @field_validator("n")
    @classmethod
    def _one_answer(cls, value: int) -> int:
        if value != 1:
            raise ValueError(f"n is {value}; this engine gives one answer a request, send several requests")
        return value

    @field_validator("stop")
    @classmethod
    def _stops(cls, value: str | list[str] | None) -> list[str]:
        return stop_list(value)

    def labels(self) -> Labels:
        """From `custom_params`, else from the top level."""
        labels = (self.custom_params or CustomParams()).labels()
        if self.domain is not None and labels.domain == "default":
            labels.domain = self.domain
        labels.opt_out = self.opt_out if labels.opt_out is None else labels.opt_out
        labels.reward_key = self.reward_key if labels.reward_key is None else labels.reward_key
        return labels


def stop_list(value: str | list[str] | None) -> list[str]:
    """Stop strings as a list; raises ValueError for empty ones or too many."""
    stops = [] if value is None else [value] if isinstance(value, str) else value
    if len(stops) > _MAX_STOPS or "" in stops:
        raise ValueError(f"stop takes up to {_MAX_STOPS} strings, none of them empty")
    return stops


class CompletionBody(_OpenAI):
    """`POST /v1/completions`."""

    prompt: str | list[str] | list[int]

    @field_validator("prompt")
    @classmethod
    def _one_prompt(cls, value: str | list[str] | list[int]) -> str | list[str] | list[int]:
        if isinstance(value, list) and value and isinstance(value[0], str) and len(value) != 1:
            raise ValueError(f"{len(value)} prompts were given; this engine takes one a request, send several requests")
        return value


class Message(BaseModel):
    """A chat message; content parts must be text."""

    model_config = ConfigDict(extra="allow")

    role: str = Field(min_length=1)
    content: str | list[dict[str, Any]] | None = None

    def plain(self) -> dict[str, Any]:
        """With its text in one piece; raises BadRequest for images and the like."""
        if not isinstance(self.content, list):
            return {"role": self.role, "content": self.content or ""}
        other = [part.get("type") for part in self.content if part.get("type") != "text"]
        if other:
            raise BadRequest(f"a message has content of type {other[0]!r}; only text is supported", "messages")
        return {"role": self.role, "content": "".join(str(part.get("text", "")) for part in self.content)}


class ChatBody(_OpenAI):
    """`POST /v1/chat/completions`."""

    messages: list[Message] = Field(min_length=1)
    max_completion_tokens: int | None = Field(default=None, ge=1)


class SglangParams(_Body):
    """SGLang's `sampling_params`, with its defaults."""

    max_new_tokens: int | None = Field(default=128, ge=1)
    temperature: float = Field(default=1.0, ge=0)
    top_p: float = Field(default=1.0, gt=0, le=1)
    top_k: int = Field(default=-1, ge=-1)
    stop: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    ignore_eos: bool = False
    sampling_seed: int | None = None
    custom_params: CustomParams | None = None

    @field_validator("stop")
    @classmethod
    def _stops(cls, value: str | list[str] | None) -> list[str]:
        return stop_list(value)


class GenerateBody(_Body):
    """SGLang's `POST /generate`, one request at a time."""

    text: str | None = None
    input_ids: list[int] | None = None
    sampling_params: SglangParams = Field(default_factory=SglangParams)
    stream: bool = False
    rid: str | None = Field(default=None, min_length=1, max_length=256)

    @field_validator("text", "input_ids", mode="before")
    @classmethod
    def _no_batches(cls, value: Any) -> Any:
        if isinstance(value, list) and value and not isinstance(value[0], int):
            raise ValueError("a batch was given; this engine takes one prompt a request, send several requests")
        return value

    @model_validator(mode="after")
    def _one_of(self) -> Self:
        if (self.text is None) == (self.input_ids is None):
            raise ValueError("give exactly one of text and input_ids")
        return self
