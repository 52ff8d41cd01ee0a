"""The target's tokenizer, for sending token ids and for counting what prompt lookup would have done."""

from pathlib import Path
from typing import Any

from .records import TrafficError


class TargetTokenizer:
    """Loads a checkpoint directory's tokenizer; raises TrafficError when there is none."""

    def __init__(self, directory: Path) -> None:
        if not directory.is_dir():
            raise TrafficError(f"--tokenizer {directory}: no such directory; name the target's checkpoint directory")
        from transformers import AutoTokenizer  # seconds to import: only who needs it pays

        try:
            self._tokenizer: Any = AutoTokenizer.from_pretrained(str(directory))
        except (OSError, ValueError) as error:
            raise TrafficError(f"--tokenizer {directory}: {error}") from error

    def chat(self, text: str) -> list[int]:
        """Token ids of a user's message in the model's chat template; plain text when it has no template."""
        if not self._tokenizer.chat_template:
            return self.encode(text, special=True)
        message = [{"role": "user", "content": text}]
        made = self._tokenizer.apply_chat_template(message, add_generation_prompt=True, tokenize=False)
        return self.encode(made)

    def encode(self, text: str, special: bool = False) -> list[int]:
        """Token ids of a text."""
        return [int(i) for i in self._tokenizer.encode(text, add_special_tokens=special)]
