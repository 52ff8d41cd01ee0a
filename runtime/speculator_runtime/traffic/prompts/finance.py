"""Questions on small financial tables; a group is the kind of question."""

import random
from collections.abc import Iterator

_COMPANIES = ("Alder Energy", "Birch Foods", "Cedar Bank", "Dune Mobile", "Elm Retail", "Fjord Shipping",
              "Grove Health", "Harbor Steel", "Ivy Software", "Juniper Airways")  # fmt: skip
_ROWS = ("Revenue", "Cost of sales", "Operating expenses", "Research and development", "Marketing", "Net income")

_QUESTIONS: dict[str, str] = {
    "read": "What was {row} in {year}?",
    "change": "By how much did {row} change from {before} to {year}?",
    "percent": "What is the percentage change of {row} from {before} to {year}?",
    "total": "What is the total of {row} and {other} in {year}?",
    "larger": "Which was larger in {year}, {row} or {other}?",
    "summary": "Summarize how {company} developed from {before} to {year} in two sentences.",
    "average": "What is the average {row} over both years?",
}
HELD_OUT = frozenset({"percent", "average"})


def prompts(rng: random.Random) -> Iterator[tuple[str, str]]:
    """Endless (kind of question, prompt) pairs."""
    while True:
        for kind, question in _QUESTIONS.items():
            company, year = rng.choice(_COMPANIES), rng.randint(2015, 2024)
            rows = rng.sample(_ROWS, 4)
            lines = [f"{company}, in millions of dollars | {year - 1} | {year}"]
            for row in rows:
                base = rng.randint(12, 90) * 10
                lines.append(f"{row} | {base} | {base + rng.choice((-1, 1)) * rng.randint(1, 10) * 10}")
            asked = question.format(company=company, year=year, before=year - 1, row=rows[0], other=rows[1])
            yield kind, "Financial table:\n" + "\n".join(lines) + f"\nQuestion: {asked}"
