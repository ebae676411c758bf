"""trtspec's own prompts, for where a user names none.

Code and lists that a draft foresees, prose that it does not, letters outside of ASCII.
"""

from __future__ import annotations

from collections.abc import Mapping

OWN: Mapping[str, tuple[str, ...]] = {
    "code": (
        'def fib(n):\n    """Return the nth Fibonacci number."""\n',
        "class Stack:\n    def __init__(self):\n        self.items = []\n\n    def push(self, item):\n",
        "import json\nfrom pathlib import Path\n\n\ndef load(path):\n",
        "for (int i = 0; i < n; i++) {\n    if (values[i] > largest) {\n",
        "SELECT name, count(*) FROM orders\nWHERE",
    ),
    "prose": (
        "The harbour was empty that morning, and",
        "A short history of the bicycle begins with",
        "She opened the letter, read it twice, and then",
        "Water boils at a lower temperature on a mountain because",
    ),
    "list": (
        "Things to pack for a week in the mountains:\n1. a tent\n2. warm socks\n3.",
        "name,age,city\nAda,36,London\nBo,29,Oslo\n",
        "red, green, blue, red, green, blue, red,",
        '{"users": [{"id": 1, "name": "Ann"}, {"id": 2, "name":',
    ),
    "letters": (
        "Der Bäcker öffnet früh, weil die Brötchen",
        "東京は日本の首都で、",
        "Été comme hiver, le marché sent le café et",
    ),
}
"""The beginnings of texts, by what they are."""
