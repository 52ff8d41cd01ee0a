"""In which order prompts are sent, and when. Pure: randomness comes in as a seed."""

import itertools
import random
from collections.abc import Iterator, Sequence
from typing import Literal

from .records import Prompt

Order = Literal["mixed", "sequential"]


def stream(prompts: Sequence[Prompt], order: Order, seed: int, per_domain: int | None = None) -> Iterator[Prompt]:
    """An endless stream of prompts.

    mixed: all of them shuffled by the seed, shuffled anew each time round. sequential: one domain after another, in the
    order in which the domains first appear, `per_domain` prompts of each (all of them when None), then round again with
    the next ones: abrupt shifts of domain.
    """
    if order == "mixed":
        yield from _mixed(prompts, seed)
        return
    domains: dict[str, list[Prompt]] = {}
    for prompt in prompts:
        domains.setdefault(prompt.domain, []).append(prompt)
    turns = {domain: itertools.cycle(members) for domain, members in domains.items()}
    while True:
        for domain, members in domains.items():
            yield from itertools.islice(turns[domain], per_domain or len(members))


def _mixed(prompts: Sequence[Prompt], seed: int) -> Iterator[Prompt]:
    rng = random.Random(seed)
    while True:
        turn = list(prompts)
        rng.shuffle(turn)
        yield from turn


def poisson_gaps(rate: float, seed: int) -> Iterator[float]:
    """Seconds between arrivals of a Poisson process of `rate` requests per second."""
    rng = random.Random(f"arrivals {seed}")
    while True:
        yield rng.expovariate(rate)
