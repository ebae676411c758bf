"""The rooms of the house: who may import whom, and how long a file may be."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path

import pytest

import trtspec

HOUSE = Path(trtspec.__path__[0])
FLOORS = (
    {"serving", "containers", "recipe", "forecast", "workloads"},
    {"models", "repository", "openai", "endpoints", "servers", "migration"},
    {"checkpoint"},
    {"engine"},
    {"store"},
    {"machine", "inspection"},
    {"plan", "run", "deploy", "monitoring"},
    {"steps"},
    {"build"},
    {"rollout", "bench", "jobs"},
    {"kubernetes", "slurm", "fleet"},
    {"ci", "report", "verify"},
    {"tune"},
    {"distill"},
    {"terminal"},
    {"cli"},
)
"""From the ground: a room imports what is below it, and nothing beside it."""
MOST_LINES = 400


def imports(file: Path) -> Iterator[str]:
    """The rooms that a module imports from, wherever it does so."""
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        for name in names:
            package, _, rest = name.partition(".")
            if package == "trtspec":
                yield rest.partition(".")[0]


def floor(room: str) -> int:
    return next(number for number, rooms in enumerate(FLOORS) if room in rooms)


def test_every_room_has_a_floor() -> None:
    rooms = {folder.name for folder in HOUSE.iterdir() if (folder / "__init__.py").exists()}
    assert rooms == set().union(*FLOORS)


def test_the_map_has_the_floors() -> None:
    said = HOUSE.parent.joinpath("CONTRIBUTING.md").read_text(encoding="utf-8")
    _, rooms, _ = said.split("## The rooms")[1].split("```\n", 2)
    floors = [{line.split()[0] for line in floor.splitlines()} for floor in rooms.split("\n\n")]
    assert floors == list(reversed(FLOORS))


@pytest.mark.parametrize("room", sorted(set().union(*FLOORS)))
def test_nothing_is_imported_from_above(room: str) -> None:
    rooms = set().union(*FLOORS)
    wrong = [
        f"{file.relative_to(HOUSE)} imports {other}"
        for file in (HOUSE / room).rglob("*.py")
        for other in imports(file)
        if other in rooms and other != room and floor(other) >= floor(room)
    ]
    assert wrong == []


def test_what_is_copied_into_repositories_stands_alone() -> None:
    files = (HOUSE / "serving").rglob("*.py")
    assert {room for file in files for room in imports(file)} == {"serving"}


def test_no_file_is_a_drawer() -> None:
    files = [*HOUSE.rglob("*.py"), *HOUSE.parent.joinpath("tests").rglob("*.py")]
    assert [file.name for file in files if len(file.read_text().splitlines()) > MOST_LINES] == []


def test_no_folder_of_tests_is_left_out(pytestconfig: pytest.Config) -> None:
    """A folder whose name is among pytest's `norecursedirs` would never run, and nobody would be told."""
    tests = Path(__file__).parents[1]
    folders = {path.parent for path in tests.rglob("test_*.py")}
    names = {name for folder in folders for name in folder.relative_to(tests.parent).parts}
    left_out = pytestconfig.getini("norecursedirs")
    assert not [name for name in names for pattern in left_out if fnmatch(name, pattern)]
