"""The links of the documentation: files, and headings in them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FOLDERS = (".", "docs", "recipes", "recipes/tiny", "charts/trtspec", "tests/perf")
PAGES = sorted(page for folder in FOLDERS for page in (ROOT / folder).glob("*.md"))


def prose(page: Path) -> str:
    """The page without what is fenced off as code."""
    return re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)


def anchors(page: Path) -> set[str]:
    """The headings as GitHub links to them."""
    headings = re.findall(r"^#+ (.*)$", prose(page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    for link in re.findall(r"\]\(([^)\s]+)\)", prose(page)):
        if "://" in link:
            continue
        name, _, heading = link.partition("#")
        found = page.parent / name if name else page
        assert found.exists(), link
        assert not heading or heading in anchors(found), link


def test_every_chapter_is_linked_from_the_readme() -> None:
    linked = set(re.findall(r"\]\((docs/\w+\.md)\)", prose(ROOT / "README.md")))
    assert linked == {f"docs/{page.name}" for page in (ROOT / "docs").glob("*.md")}
