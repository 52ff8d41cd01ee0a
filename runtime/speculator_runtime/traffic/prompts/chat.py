"""Everyday requests: short letters, lists, explanations; a group is the kind of request."""

import random
from collections.abc import Iterator

_TOPICS = ("healthy eating", "saving money", "learning to cook", "growing tomatoes", "riding a bicycle",
           "reading books", "sleeping well", "planning a trip", "keeping a dog", "learning a language",
           "working from home", "playing chess", "recycling", "painting a room", "running", "time management",
           "public speaking", "taking photographs", "baking bread", "camping", "volunteering")  # fmt: skip
_EVENTS = ("meeting", "birthday party", "dinner", "workshop", "concert", "picnic", "interview", "lunch")
_DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
_PEOPLE = ("a friend", "my boss", "a colleague", "my teacher", "a neighbor", "my cousin")

_REQUESTS: dict[str, str] = {
    "list": "List {n} tips for {topic}.",
    "reasons": "Give {n} reasons why {topic} is a good idea.",
    "email": "Write a short and polite email to {who} to invite them to a {event} on {day}.",
    "steps": "Explain {topic} to a beginner in {n} numbered steps.",
    "reschedule": "Write a short email to {who} to move the {event} from {day} to next week.",
    "questions": "Write {n} simple questions about {topic}.",
    "thanks": "Write a short thank-you note to {who} for the {event} on {day}.",
}
HELD_OUT = frozenset({"thanks", "questions"})


def prompts(rng: random.Random) -> Iterator[tuple[str, str]]:
    """Endless (kind of request, prompt) pairs."""
    while True:
        for kind, text in _REQUESTS.items():
            yield (
                kind,
                text.format(
                    n=rng.randint(3, 5),
                    topic=rng.choice(_TOPICS),
                    who=rng.choice(_PEOPLE),
                    event=rng.choice(_EVENTS),
                    day=rng.choice(_DAYS),
                ),
            )
