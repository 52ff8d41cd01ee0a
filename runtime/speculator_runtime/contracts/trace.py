"""A trace: one finished request as the trainer needs it. Tensors travel as raw bytes beside their dtype and shape.

On the wire a trace is one msgpack map (`speculator_runtime.traces.codec`): the fields of `TraceHeader` under `header`
and the tensors under `tensors`, name -> {dtype, shape, data}. Names and shapes, T tokens in all, P of them prompt:

| tensor | shape | dtype | what |
|---|---|---|---|
| `tokens` | [T] | int32 | prompt and committed output |
| `hidden_rows` | [R] | int32 | positions that have a hidden row (cached prefixes have none), ascending |
| `hidden` | [R, 3H] | bfloat16 or float16 or float32 | inputs of the captured layers, low to high |
| `teacher_rows` | [Q] | int32 | positions whose next-token teacher row was kept, ascending |
| `teacher_ids` | [Q, k] | int32 | ids of the top-k target logits, descending by logit |
| `teacher_logits` | [Q, k] | bfloat16 or float16 or float32 | those logits, before temperature |
| `teacher_lse` | [Q] | float32 | log-sum-exp of the full row: the tail mass is 1 - sum(exp(logits - lse)) |
| `tree_step` | [N] | int32 | verify step a draft node belongs to (rejected nodes only) |
| `tree_position` | [N] | int32 | position the node would have had |
| `tree_parent` | [N] | int32 | parent node's index in these arrays; -1: the committed token before it |
| `tree_tokens` | [N] | int32 | draft token |
| `tree_hidden` | [N, 3H] | as hidden | empty unless the policy captures rejected branches |
| `tree_teacher_ids/_logits/_lse` | [N, k] / [N, k] / [N] | as above | |
"""

from pydantic import Field

from .base import VersionedContract


class TraceHeader(VersionedContract):
    """Everything about a request but its tensors."""

    request_id: str
    domain: str = "default"
    prompt_length: int = Field(ge=1)
    total_length: int = Field(ge=1)
    hidden_size: int = Field(ge=1, description="H of the target.")
    vocab_size: int = Field(ge=1, description="V of the target.")
    capture_layers: tuple[int, int, int]
    draft_version: int = Field(ge=0, description="Drafter that served when the request ended; 0 for none.")
    target_digest: str
    mode: str = Field(description="DecodeMode when the request ended.")
    verify_steps: int = 0
    accepted_draft_tokens: int = 0
    temperature: float = 0.0
    opt_out: bool | None = Field(
        default=None, description="What the request said; None: nothing, and the agent's `opt_out_default` decides."
    )
    arrived: float = Field(description="Unix seconds.")
    finished: float
    pod: str = ""
    reward: float | None = None
