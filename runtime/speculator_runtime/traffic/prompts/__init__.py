"""The project's own prompts: five domains, made by templates, the same on every machine.

For a first run, tests and demos; not a benchmark. Each domain module yields (group, prompt): a group is a database, a
kind of task or a story, and whole groups are held out, so that held-out prompts share no schema and no template with
the training ones.
"""

import random
from collections.abc import Callable, Iterator
from typing import Literal

from speculator_runtime.traffic.records import Prompt

from . import chat, code, finance, math, sql

Split = Literal["train", "heldout", "all"]
DOMAINS: tuple[str, ...] = ("math", "sql", "code", "finance", "chat")
PER_DOMAIN = 400
"""Distinct prompts of a domain, both splits together."""

_MAKERS: dict[str, Callable[[random.Random], Iterator[tuple[str, str]]]] = {
    "math": math.prompts,
    "sql": sql.prompts,
    "code": code.prompts,
    "finance": finance.prompts,
    "chat": chat.prompts,
}
_HELD_OUT: dict[str, frozenset[str]] = {
    "math": math.HELD_OUT,
    "sql": sql.HELD_OUT,
    "code": code.HELD_OUT,
    "finance": finance.HELD_OUT,
    "chat": chat.HELD_OUT,
}


def builtin(domain: str, split: Split = "all") -> list[Prompt]:
    """The prompts of a domain, in a fixed shuffled order; raises ValueError for an unknown domain."""
    if domain not in _MAKERS:
        raise ValueError(f"unknown domain {domain!r}: the built-in ones are {', '.join(DOMAINS)}")
    made: dict[str, str] = {}
    for group, text in _MAKERS[domain](random.Random(f"prompts of {domain}")):
        made.setdefault(text, group)
        if len(made) == PER_DOMAIN:
            break
    items = list(made.items())
    random.Random(f"order of {domain}").shuffle(items)
    numbered = [
        Prompt(id=f"{domain}-{index:04d}", domain=domain, source=f"builtin/{group}", prompt=text)
        for index, (text, group) in enumerate(items)
    ]
    held_out = {f"builtin/{group}" for group in _HELD_OUT[domain]}
    return [p for p in numbered if split == "all" or (p.source in held_out) == (split == "heldout")]
