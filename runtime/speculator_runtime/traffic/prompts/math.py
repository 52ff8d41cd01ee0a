"""Short word problems with whole-number answers; a group is a story."""

import random
from collections.abc import Iterator

_PEOPLE = ("Anna", "Ben", "Clara", "David", "Emma", "Felix", "Grace", "Henry", "Iris", "Jack", "Laura", "Omar")
_THINGS = ("apples", "books", "pencils", "stickers", "cookies", "marbles", "flowers", "cards", "oranges", "coins")

_STORIES: dict[str, str] = {
    "buy-more": "{who} has {a} {things}. {who} buys {b} more {things}. How many {things} does {who} have now?",
    "give-away": "{who} has {c} {things}. {who} gives {a} to a friend. How many {things} does {who} have left?",
    "boxes": "{who} has {a} boxes. Each box holds {b} {things}. How many {things} does {who} have in total?",
    "share": "{who} shares {d} {things} equally among {a} friends. How many {things} does each friend get?",
    "price": "{who} buys {a} {things} for {b} dollars each. How many dollars does {who} pay in total?",
    "change": "{who} pays {e} dollars for {a} {things} that cost {b} dollars each. How much change is that?",
    "two-people": "{who} has {a} {things} and {other} has {b} {things} more. How many {things} do they have together?",
    "days": "{who} collects {a} {things} every day. How many {things} does {who} collect in {b} days?",
    "walk": "{who} walks {a} kilometers in the morning and {b} kilometers in the evening. How many kilometers is that "
    "in {few} days?",
    "twice": "{who} has {a} {things}. {other} has twice as many. How many {things} does {other} have?",
}
HELD_OUT = frozenset({"change", "twice"})


def prompts(rng: random.Random) -> Iterator[tuple[str, str]]:
    """Endless (story, prompt) pairs."""
    while True:
        for story, text in _STORIES.items():
            who, other = rng.sample(_PEOPLE, 2)
            a, b = rng.randint(2, 9), rng.randint(3, 12)
            numbers = {"a": a, "b": b, "c": a + b, "d": a * b, "e": a * b + rng.randint(1, 20)}
            yield story, text.format(who=who, other=other, things=rng.choice(_THINGS), few=rng.randint(2, 7), **numbers)
