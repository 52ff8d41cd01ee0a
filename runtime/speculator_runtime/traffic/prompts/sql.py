"""SQL questions over small schemas; a group is a database."""

import random
from collections.abc import Iterator

# database -> tables: name, (key, label, category, number columns), plural in words
_DATABASES: dict[str, list[tuple[str, str, str, str, tuple[str, ...]]]] = {
    "cinema": [("film", "film_id", "title", "genre", ("year", "length", "rating")),
               ("cinema", "cinema_id", "name", "city", ("seats", "opened"))],
    "school": [("student", "student_id", "name", "grade", ("age", "score")),
               ("teacher", "teacher_id", "name", "subject", ("salary", "years"))],
    "shop": [("product", "product_id", "name", "category", ("price", "stock", "weight")),
             ("customer", "customer_id", "name", "country", ("age", "orders"))],
    "airline": [("flight", "flight_id", "code", "destination", ("distance", "price")),
                ("aircraft", "aircraft_id", "model", "maker", ("seats", "range"))],
    "library": [("book", "book_id", "title", "author", ("year", "pages")),
                ("member", "member_id", "name", "city", ("age", "loans"))],
    "hospital": [("doctor", "doctor_id", "name", "department", ("salary", "years")),
                 ("patient", "patient_id", "name", "city", ("age", "weight", "height"))],
    "music": [("album", "album_id", "title", "genre", ("year", "sales")),
              ("singer", "singer_id", "name", "country", ("age", "awards"))],
    "football": [("player", "player_id", "name", "position", ("age", "goals", "height")),
                 ("team", "team_id", "name", "league", ("points", "founded"))],
    "restaurant": [("dish", "dish_id", "name", "cuisine", ("price", "calories")),
                   ("waiter", "waiter_id", "name", "shift", ("age", "tips"))],
    "bank": [("account", "account_id", "owner", "branch", ("balance", "opened")),
             ("loan", "loan_id", "owner", "purpose", ("amount", "rate", "months"))],
    "museum": [("painting", "painting_id", "title", "style", ("year", "width", "height")),
               ("visitor", "visitor_id", "name", "country", ("age", "visits"))],
    "garage": [("car", "car_id", "model", "maker", ("year", "price", "mileage")),
               ("mechanic", "mechanic_id", "name", "skill", ("age", "wage"))],
    "farm": [("field", "field_id", "name", "crop", ("area", "yield")),
             ("animal", "animal_id", "name", "species", ("age", "weight"))],
    "hotel": [("room", "room_id", "number", "type", ("price", "floor")),
              ("guest", "guest_id", "name", "country", ("age", "nights"))],
}  # fmt: skip
HELD_OUT = frozenset({"museum", "hotel", "garage"})

_QUESTIONS = (
    "How many {table}s are there?",
    "What is the average {number} of all {table}s?",
    "What are the {label} and {number} of all {table}s, sorted by {number} in descending order?",
    "List the {label} of every {table} whose {number} is greater than {value}.",
    "How many {table}s are there for each {category}?",
    "What is the highest {number} for each {category}?",
    "Show the {label} of the {table} with the lowest {number}.",
    "What are the distinct values of {category} among the {table}s?",
    "What are the minimum and maximum {number} of the {table}s?",
    "Which {category} has more than {few} {table}s?",
    "Show the {label} and {category} of the {table}s whose {number} is between {value} and {more}.",
)


def _schema(database: str) -> str:
    tables = []
    for table, key, label, category, numbers in _DATABASES[database]:
        columns = [f"{key} number", f"{label} text", f"{category} text", *(f"{number} number" for number in numbers)]
        tables.append(f"{table}({', '.join(columns)})")
    return "; ".join(tables)


def prompts(rng: random.Random) -> Iterator[tuple[str, str]]:
    """Endless (database, prompt) pairs."""
    names = sorted(_DATABASES)
    while True:
        for question in _QUESTIONS:
            database = rng.choice(names)
            table, _, label, category, numbers = rng.choice(_DATABASES[database])
            value = rng.choice((5, 10, 20, 50, 100, 200))
            asked = question.format(
                table=table,
                label=label,
                category=category,
                number=rng.choice(numbers),
                value=value,
                more=value * 3,
                few=rng.choice((2, 3, 5)),
            )
            yield database, f"Database schema: {_schema(database)}\nWrite one SQL query that answers: {asked}"
