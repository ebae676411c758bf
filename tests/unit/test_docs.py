"""The documentation: its links, its commands, and its generated pages."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from tests.docs import commands
from tests.docs.blocks import PAGES as DOCUMENTED
from tests.docs.blocks import ROOT, blocks, command_lines
from tests.docs.reference import FOLDER, text_of
from tests.docs.reference import PAGES as GENERATED

FOLDERS = (".", "recipes", "recipes/tiny", "charts/trtspec", "tests/perf")
PAGES = sorted({page for folder in FOLDERS for page in (ROOT / folder).glob("*.md")} | set(DOCUMENTED))
REASONS = ("Needs ", "Installs from ", "In the clone", "Runs until ", "Takes ", "Output of ")

"""How the title of a block begins that the suite does not run."""


def name(page: Path) -> str:
    return str(page.relative_to(ROOT))


def prose(page: Path) -> str:
    """The page without what is fenced off as code."""
    return re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)


def anchors(page: Path) -> set[str]:
    """The headings as GitHub links to them."""
    headings = re.findall(r"^#+ (.*)$", prose(page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_links_lead_somewhere(page: Path) -> None:
    for link in re.findall(r"\]\(([^)\s]+)\)", prose(page)):
        if "://" in link:
            continue
        file, _, heading = link.partition("#")
        found = page.parent / file if file else page
        assert found.exists(), link
        assert not heading or heading in anchors(found), link


def test_the_map_names_modules_that_are_there() -> None:
    modules = [f"/{name(file)}" for room in ("trtspec", "tests") for file in (ROOT / room).rglob("*.py")]
    named = re.findall(r"`([\w/]+\.py)`", prose(ROOT / "CONTRIBUTING.md"))
    assert [each for each in named if not any(module.endswith(f"/{each}") for module in modules)] == []


def test_the_site_has_every_page_once() -> None:
    navigation = re.findall(r": (\S+\.md)$", (ROOT / "mkdocs.yml").read_text(encoding="utf-8"), re.MULTILINE)
    assert sorted(navigation) == sorted(str(page.relative_to(ROOT / "docs")) for page in DOCUMENTED[1:])


def test_the_home_page_links_to_every_guide() -> None:
    guides = {f"how-to/{page.name}" for page in (ROOT / "docs" / "how-to").glob("*.md")}
    assert guides <= set(re.findall(r"\]\(([^)#]+)\)", prose(ROOT / "docs" / "index.md")))


@pytest.mark.parametrize("page", GENERATED)
def test_a_generated_page_is_current(page: str) -> None:
    assert (FOLDER / page).read_text(encoding="utf-8") == text_of(page), "make docs-reference"


KNOWN = dict(commands.named())


@pytest.mark.parametrize("page", DOCUMENTED, ids=name)
def test_commands_and_their_options_exist(page: Path) -> None:
    for words in command_lines(page):
        assert problem(words) is None, f"trtspec {' '.join(words)}: {problem(words)}"


@pytest.mark.parametrize("page", DOCUMENTED, ids=name)
def test_a_block_that_is_not_run_says_why(page: Path) -> None:
    assert [
        block.title for block in blocks(page) if block.title and not block.title.startswith(REASONS)
    ] == []


def problem(words: list[str]) -> str | None:
    """Why the command line would not take these words; values of files and models are not looked at."""
    if not words or words[0].startswith(("-", "…", "COMMAND")):
        return None
    found = [size for size in (3, 2, 1) if " ".join(words[:size]) in KNOWN]
    if not found:
        is_group = any(known.startswith(f"{words[0]} ") for known in KNOWN) and len(words) == 1
        return None if is_group else "there is no such command"
    command, rest = KNOWN[" ".join(words[: found[0]])], [word for word in words[found[0] :] if word != "…"]
    context = command.context_class(command)
    try:
        values, _, _ = command.make_parser(context).parse_args(rest)
        for parameter in command.params:
            _check(parameter, values.get(parameter.name), context)
    except Exception as error:
        return str(getattr(error, "message", error))
    return None


def _check(parameter: Any, value: Any, context: Any) -> None:
    """Raises what the command line does of a value that is none of a choice, or is no number of a range."""
    is_choice = "|" in str(parameter.get_help_record(context))
    if isinstance(value, str) and (is_choice or parameter.min is not None or parameter.max is not None):
        parameter.process_value(context, value)


def test_a_command_with_an_unknown_option_is_found() -> None:
    assert problem(["build", "recipe.yaml", "--container"]) is None
    assert problem(["build", "recipe.yaml", "--contaner"]) is not None
    assert problem(["bild", "recipe.yaml"]) is not None
    assert problem(["build", "recipe.yaml", "--on", "nomad"]) is not None
    assert problem(["generate", "text", "--max-tokens", "none"]) is not None
