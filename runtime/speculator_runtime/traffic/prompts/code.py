"""Small Python functions to write; a group is a kind of task."""

import random
from collections.abc import Iterator

_NAMES = ("numbers", "values", "items", "data", "scores", "prices", "sizes", "weights", "counts", "samples")

# kind -> (function name, what it does)
_TASKS: dict[str, tuple[tuple[str, str], ...]] = {
    "reduce": (
        ("sum_of_{list}", "return the sum of all numbers in the list {list}"),
        ("largest_of_{list}", "return the largest number in the list {list}"),
        ("smallest_of_{list}", "return the smallest number in the list {list}"),
        ("average_of_{list}", "return the average of the list {list}"),
        ("product_of_{list}", "return the product of all numbers in the list {list}"),
    ),
    "filter": (
        ("even_{list}", "return the even numbers of the list {list}"),
        ("odd_{list}", "return the odd numbers of the list {list}"),
        ("{list}_above_{k}", "return the numbers of the list {list} that are greater than {k}"),
        ("{list}_below_{k}", "return the numbers of the list {list} that are less than {k}"),
        ("multiples_of_{k}_in_{list}", "return the numbers of the list {list} that are divisible by {k}"),
    ),
    "map": (
        ("squares_of_{list}", "return a list with the square of every number in {list}"),
        ("add_{k}_to_{list}", "return a list with {k} added to every number in {list}"),
        ("multiply_{list}_by_{k}", "return a list with every number in {list} multiplied by {k}"),
    ),
    "count": (
        ("count_even_{list}", "return how many numbers in the list {list} are even"),
        ("count_{list}_above_{k}", "return how many numbers in the list {list} are greater than {k}"),
        ("count_{k}_in_{list}", "return how many times {k} is in the list {list}"),
    ),
    "order": (
        ("sort_{list}", "return the list {list} sorted in ascending order"),
        ("reverse_{list}", "return the list {list} in reverse order"),
        ("first_{k}_of_{list}", "return the first {k} elements of the list {list}"),
        ("last_{k}_of_{list}", "return the last {k} elements of the list {list}"),
    ),
    "check": (
        ("has_{k}_in_{list}", "return True if the list {list} holds the number {k} and False otherwise"),
        ("all_{list}_above_{k}", "return True if all numbers in the list {list} are greater than {k}"),
        ("is_sorted_{list}", "return True if the list {list} is sorted and False otherwise"),
    ),
}
HELD_OUT = frozenset({"check", "map"})


def prompts(rng: random.Random) -> Iterator[tuple[str, str]]:
    """Endless (kind, prompt) pairs."""
    kinds = [(kind, task) for kind, tasks in _TASKS.items() for task in tasks]
    while True:
        for kind, (name, text) in kinds:
            words = {"list": rng.choice(_NAMES), "k": rng.randint(2, 12)}
            yield kind, f"Write a Python function `{name.format(**words)}` to {text.format(**words)}."
