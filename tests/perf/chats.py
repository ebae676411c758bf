"""What is asked of a real model: answers that quote what they were given, and answers that do not."""

from __future__ import annotations

import random
import string

AREA = """def total_area(shapes):
    result = 0
    for shape in shapes:
        width = shape["width"]
        height = shape["height"]
        if width < 0 or height < 0:
            raise ValueError("a negative length")
        result += width * height
    return result"""

STACK = """class Stack:
    def __init__(self):
        self.items = []

    def push(self, item):
        self.items.append(item)

    def pop(self):
        if not self.items:
            raise IndexError("pop from an empty stack")
        return self.items.pop()

    def __len__(self):
        return len(self.items)"""

WORDS = """def count_words(path):
    counts = {}
    with open(path) as file:
        for line in file:
            for word in line.split():
                word = word.lower().strip(".,")
                counts[word] = counts.get(word, 0) + 1
    return counts"""

ROWS = """[{"name": "Alice", "age": 31, "city": "Berlin"}, {"name": "Bob", "age": 27, "city": "Madrid"},
{"name": "Carol", "age": 45, "city": "Oslo"}, {"name": "David", "age": 38, "city": "Lisbon"}]"""

TABLE = """| fruit | price | stock |
|---|---|---|
| apple | 1.20 | 150 |
| banana | 0.55 | 320 |
| cherry | 4.80 | 40 |
| grape | 2.10 | 95 |"""

LIGHTHOUSE = """The lighthouse at Cape Morrow was built in 1874 by a company of stonemasons from the north. \
For ninety years a keeper lived in its tower with his family and lit the lamp each evening. In 1964 the \
lamp was replaced by an electric one, and the last keeper, John Harding, moved to the village. Today the \
tower is a small museum that is open from April to October, and visitors can climb its 142 steps to see the \
old lens."""

BEES = """Honey bees tell each other where food is by dancing. A bee that has found flowers close to the \
hive dances in a circle. If the flowers are far away, she dances in the shape of an eight, and the angle of \
the middle line shows the direction with respect to the sun. The longer she shakes her body on that line, \
the farther away the flowers are. The other bees touch her with their antennae to follow the dance in the \
dark."""

LETTER = """Dear Mr. Keller, thank you for you're order of three oak chairs. We is sorry to say that the \
chairs will arrive a week later then planned, because our supplier in Sweden have closed for the holidays. \
We will send you a message as soon as the chairs leaves our warehouse. Best regards, Anna Lind"""

QUOTING = {
    "rename": f"Rename the variable result to area in this function and show the whole function:\n\n{AREA}",
    "type hints": f"Repeat this function with type hints:\n\n{WORDS}",
    "summary": f"Summarize this paragraph in two sentences:\n\n{LIGHTHOUSE}",
    "docstrings": f"Add a docstring to each method of this class and show the whole class:\n\n{STACK}",
    "correction": f"Correct the grammar of this letter and change nothing else:\n\n{LETTER}",
    "question": f"Which sentence says how the bees show the direction? Quote the text.\n\n{BEES}",
    "rename class": f"Rename the class to Pile and show the whole class:\n\n{STACK}",
    "summary of bees": f"Summarize this paragraph in two sentences:\n\n{BEES}",
}
"""Edits of code, corrections, summaries and answers from a text."""

STRUCTURED = {
    "JSON": f"Write this JSON again with each object on its own line and nothing else:\n\n{ROWS}",
    "table": f"Write this table as comma separated values:\n\n{TABLE}",
    "JSON of people": "Write a JSON array of five people with the keys name, age and city.",
    "table of planets": "Make a Markdown table of the planets with the columns name, diameter and moons.",
    "JSON of a table": f"Write this table as a JSON array of objects:\n\n{TABLE}",
    "CSV": "Write ten lines of comma separated values with the columns date, product and price.",
}
"""JSON and tables, of given data and of none."""

SHORT = {
    "capital": "What is the capital of France?",
    "arithmetic": "What is 17 plus 25?",
    "colour": "What colour is the sky? Answer in one word.",
    "yes": "Is water wet? Answer yes or no.",
    "opposite": "What is the opposite of hot? Answer in one word.",
    "legs": "How many legs does a spider have? Answer with a number.",
}


def letters(seed: int = 0) -> str:
    """Returns 60 words of random letters."""
    dice = random.Random(seed)
    return " ".join("".join(dice.choices(string.ascii_lowercase, k=dice.randrange(2, 9))) for _ in range(60))


RANDOM = {
    "letters": letters(),
    "story": "Write a short story about a dragon who is afraid of the dark.",
    "more letters": letters(1),
    "poem": "Write a poem about autumn in the mountains.",
    "other letters": letters(2),
    "words": "Write down whatever words come to your mind.",
}
"""Random letters, and what is asked for at a high temperature."""

OTHER = {
    "explanation": "Explain why the sky is blue.",
    "story": "Write a short story about a dragon who is afraid of the dark.",
    "poem": "Write a poem about autumn in the mountains.",
    "advice": "How can I sleep better at night?",
    "history": "Tell me something about the life of Marie Curie.",
    "sums": "Explain step by step how to compute 17 times 25.",
}
"""Free writing."""

WARM_UP = (
    f"Show this function again with shorter names:\n\n{AREA}",
    "Write a letter to a friend who lives far away.",
)
