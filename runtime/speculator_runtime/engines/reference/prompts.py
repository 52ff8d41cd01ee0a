"""From what a client sent to token ids: chat templates, plain prompts, special tokens."""

from typing import Any

from jinja2 import TemplateError
from transformers import PreTrainedTokenizerBase

from .errors import BadRequest


class TargetTokenizer:
    """The target's tokenizer, as the engine uses it."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, vocab_size: int, eos: int | list[int] | None) -> None:
        """eos: the end-of-sequence ids of the target's configuration; the tokenizer's own is added."""
        self._tokenizer: Any = tokenizer
        self.vocab_size = vocab_size
        ids = {tokenizer.eos_token_id, *(eos if isinstance(eos, list) else [eos])}
        self.eos_ids = frozenset(i for i in ids if isinstance(i, int))

    def encode(self, text: str, special: bool = True) -> list[int]:
        """Token ids of a text; `special`: with what the tokenizer puts in front of a text (BOS, for some)."""
        return [int(i) for i in self._tokenizer.encode(text, add_special_tokens=special)]

    def decode(self, ids: list[int]) -> str:
        """Text of tokens, special tokens left out. Ids that the tokenizer does not know yield nothing."""
        text: str = self._tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)
        return text

    def chat(self, messages: list[dict[str, Any]]) -> list[int]:
        """Token ids of a conversation, up to where the assistant begins; raises BadRequest (the template refused)."""
        if not self._tokenizer.chat_template:
            lines = [f"{message['role']}: {message['content']}\n" for message in messages]
            return self.encode("".join(lines) + "assistant: ")
        try:
            text = self._tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        except TemplateError as error:
            raise BadRequest(f"the target's chat template refuses these messages: {error}", "messages") from error
        return self.encode(text, special=False)
