"""The page of methods and engines, from the table that recipes are checked by."""

from __future__ import annotations

from pathlib import Path

from trtspec.backends.table import backends
from trtspec.methods.table import METHODS
from trtspec.recipe.backends import NAMES

ABOUT = """\
# Methods and engines

A recipe may name any method with any engine that has a "yes" here, or one of the releases that stand in its
place. `trtspec check` refuses the rest with the reason, before anything is downloaded.

- [Choose a method](../how-to/choose-a-method.md) says what each method is for.
- [Serve with vLLM, SGLang or trtllm-serve](../how-to/serve-with-other-engines.md) is about other engines.
"""
NEWER = Path(__file__).with_name("newer_methods.md")
REASONS = """\
## Why not

Each number in the table has its reason here. The refusal of `trtspec check` has the place in the source.
"""


def page() -> str:
    """Returns the page as Markdown, each reason once."""
    notes: dict[str, int] = {}
    head = f"| method | {' | '.join(f'`{name}`' for name in NAMES)} |"
    lines = [ABOUT, head, "|---" * (len(NAMES) + 1) + "|"]
    for method in METHODS:
        shown = []
        for backend in backends():
            cell = backend.refusal(method, None)
            if cell is None:
                shown.append("yes")
                continue
            number = notes.setdefault(cell.reason, len(notes) + 1)
            shown.append(f"{', '.join(cell.releases) or 'no'} ({number})")
        lines.append(f"| `{method}` | {' | '.join(shown)} |")
    reasons = [f"{number}. {reason}" for reason, number in notes.items()]
    return "\n".join([*lines, "", REASONS, *reasons, "", NEWER.read_text().rstrip()])
