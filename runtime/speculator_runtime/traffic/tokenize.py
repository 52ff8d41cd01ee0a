"""The target's tokenizer, for sending token ids and for counting what prompt lookup would have done.

Reads tokenizer.json and the chat template directly: importing transformers would bring torch along, which takes ten
seconds of a core that the engine may need.
"""

import json
from pathlib import Path
from typing import Any

import jinja2
from jinja2.sandbox import ImmutableSandboxedEnvironment
from tokenizers import Tokenizer

from .records import TrafficError


class TargetTokenizer:
    """Loads a checkpoint directory's tokenizer; raises TrafficError when there is none."""

    def __init__(self, directory: Path) -> None:
        if not directory.is_dir():
            raise TrafficError(f"--tokenizer {directory}: no such directory; name the target's checkpoint directory")
        file = directory / "tokenizer.json"
        if not file.is_file():
            raise TrafficError(f"--tokenizer {directory}: it holds no tokenizer.json")
        self._tokenizer = Tokenizer.from_file(str(file))
        settings = directory / "tokenizer_config.json"
        self._config: dict[str, Any] = json.loads(settings.read_text()) if settings.is_file() else {}
        separate = directory / "chat_template.jinja"
        source = separate.read_text() if separate.is_file() else self._config.get("chat_template")
        self._template = _environment().from_string(source) if isinstance(source, str) else None

    def chat(self, text: str) -> list[int]:
        """Token ids of a user's message in the model's chat template; plain text when it has no template."""
        if self._template is None:
            return self.encode(text, special=True)
        tokens = {
            name: _content(self._config.get(name)) for name in ("bos_token", "eos_token", "pad_token", "unk_token")
        }
        message = [{"role": "user", "content": text}]
        try:
            made = self._template.render(messages=message, add_generation_prompt=True, **tokens)
        except jinja2.TemplateError as error:
            raise TrafficError(f"the target's chat template cannot be rendered: {error}") from error
        return self.encode(made)

    def encode(self, text: str, special: bool = False) -> list[int]:
        """Token ids of a text."""
        return list(self._tokenizer.encode(text, add_special_tokens=special).ids)


def _environment() -> ImmutableSandboxedEnvironment:
    """As transformers renders chat templates."""

    def raise_exception(message: str) -> None:
        raise jinja2.TemplateError(message)

    made = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"])
    made.globals["raise_exception"] = raise_exception
    return made


def _content(token: Any) -> str:
    """A special token is a string, or an object with its text under `content`."""
    return str(token.get("content", "")) if isinstance(token, dict) else str(token or "")
