"""The rooms of the house: who may import whom, and what a file and a function may be."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from fnmatch import fnmatch
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

import trtspec
from trtspec.cli.commands import TABLE
from trtspec.recipe.backends import NAMES

HOUSE = Path(trtspec.__path__[0])
CORE = (
    {"base", "serving"},
    {"methods"},
    {"recipe", "forecast"},
    {"models"},
    {"checkpoint"},
    {"backends"},
    {"pipeline"},
    {"gateway"},
    {"client"},
    {"deployment"},
    {"cli"},
)
"""From the ground: a room imports what is below it, and nothing beside it."""
PLUG_INS = {f"backends/{name}" for name in (*NAMES, "shared")}
"""The backends, and what some of them have in common; each may import all of the core but the commands."""
WINGS = ({"measure"}, {"train", "capacity", "cluster"})
"""What the core does not import. Each may import all of the core, and those that follow the first wing."""
FLOORS = (*CORE[:-1], PLUG_INS, CORE[-1], *WINGS)
MOST_LINES_OF_A_FUNCTION = 60


@cache
def parsed(file: Path) -> ast.Module:
    """The tree of a module, which nobody changes."""
    return ast.parse(file.read_text(encoding="utf-8"))


def imports(file: Path) -> Iterator[str]:
    """The rooms that a module imports from, wherever it does so."""
    yield from _rooms(parsed(file))


def _rooms(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        for name in names:
            package, _, rest = name.partition(".")
            if package == "trtspec":
                yield room_of(rest.split("."))


def room_of(parts: Sequence[str]) -> str:
    """Returns the room of a module by its path in the house; the folders of `backends` are rooms too."""
    inner = "/".join(parts[:2])
    return inner if parts[0] == "backends" and (HOUSE / inner).is_dir() else parts[0]


def files_of(room: str) -> Iterator[Path]:
    for file in HOUSE.rglob("*.py"):
        if room_of(file.relative_to(HOUSE).parts) == room:
            yield file


def at_import(file: Path) -> Iterator[str]:
    """The rooms that a module imports from when it is imported itself."""
    tree = ast.parse(file.read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) or (
            isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
        ):
            node.body = []
    yield from _rooms(tree)


def floor(room: str) -> int:
    return next(number for number, rooms in enumerate(FLOORS) if room in rooms)


def test_every_room_has_a_floor() -> None:
    folders = [path.parent for path in (*HOUSE.glob("*/__init__.py"), *HOUSE.glob("backends/*/__init__.py"))]
    rooms = {room_of(folder.relative_to(HOUSE).parts) for folder in folders}
    assert rooms == set().union(*FLOORS)


def test_the_map_has_the_rooms_in_the_order_of_their_imports() -> None:
    map_of_rooms = HOUSE.parent.joinpath("CONTRIBUTING.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(\w+)/` \|", map_of_rooms, flags=re.MULTILINE)
    plain = {room for room in set().union(*FLOORS) if "/" not in room}
    assert sorted(rows) == sorted(plain)
    core = [row for row in rows if row in set().union(*CORE) and row != "backends"]
    assert core == sorted(core, key=floor, reverse=True)


@pytest.mark.parametrize("room", sorted(set().union(*FLOORS)))
def test_nothing_is_imported_from_above(room: str) -> None:
    rooms = set().union(*FLOORS)
    wrong = [
        f"{file.relative_to(HOUSE)} imports {other}"
        for file in files_of(room)
        for other in (at_import(file) if room in ("backends", "cli") else imports(file))
        if other in rooms and other != room and floor(other) >= floor(room) and not _shares(room, other)
    ]
    assert wrong == []


def _shares(room: str, other: str) -> bool:
    """Says whether a backend may import what several have in common."""
    return room in PLUG_INS and other == "backends/shared"


def test_nothing_imports_a_backend_but_its_table() -> None:
    assert [
        f"{file.relative_to(HOUSE)} imports {other}"
        for file in HOUSE.rglob("*.py")
        for other in imports(file)
        if other in PLUG_INS and room_of(file.relative_to(HOUSE).parts) not in PLUG_INS
    ] == []


def test_nothing_compares_the_name_of_a_backend() -> None:
    """A backend answers what it is like; an `if` on its name would have to know of each new one."""
    wrong = []
    for file in HOUSE.rglob("*.py"):
        for node in ast.walk(parsed(file)):
            named = isinstance(node, ast.Compare | ast.MatchValue) and any(
                isinstance(part, ast.Constant) and part.value in NAMES for part in ast.walk(node)
            )
            if named and file.relative_to(HOUSE).parts[0] != "backends":
                wrong.append(f"{file.relative_to(HOUSE)}: {ast.unparse(node)}")
    assert wrong == []


def test_few_places_ask_of_what_kind_a_backend_is() -> None:
    """A backend says what it can do; whoever asks its kind acts for it, and must know of each new one."""
    asks = [file for file in HOUSE.rglob("*.py") if ".builds_engines" in file.read_text(encoding="utf-8")]
    assert len([file for file in asks if file.relative_to(HOUSE).parts[0] != "backends"]) <= 3


def test_a_class_name_stands_for_one_thing() -> None:
    names = Counter(
        node.name
        for file in HOUSE.rglob("*.py")
        for node in ast.walk(parsed(file))
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
    )
    # Triton asks each of its models for a class of this name.
    assert [name for name, count in names.items() if count > 1] == ["TritonPythonModel"]


def test_docstrings_are_sentences() -> None:
    """A sentence has a subject and a verb; a clause that begins with a question word has neither."""
    clause = re.compile(r"(What|Where|Who|How|Whether|Why|Whose|Whom|Of)\b")
    documented = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
    assert [
        f"{file.relative_to(HOUSE)}:{getattr(node, 'lineno', 1)}"
        for file in HOUSE.rglob("*.py")
        for node in ast.walk(parsed(file))
        if isinstance(node, documented) and clause.match(ast.get_docstring(node) or "")
    ] == []


def test_the_serving_room_that_is_copied_into_repositories_imports_no_other() -> None:
    files = (HOUSE / "serving").rglob("*.py")
    assert {room for file in files for room in imports(file)} == {"serving"}


def imported_by(file: Path) -> Iterator[Path]:
    """The modules that a module imports in any way: inside functions, for types alone, or by name."""
    for node in ast.walk(parsed(file)):
        if isinstance(node, ast.ImportFrom) and node.module:
            for name in (f"{node.module}.{alias.name}" for alias in node.names):
                yield from _module(name) or _module(node.module)
        elif isinstance(node, ast.Import):
            for alias in node.names:
                yield from _module(alias.name)
    if file == HOUSE / "backends/table.py":
        yield from (HOUSE / f"backends/{name}/backend.py" for name in NAMES)
    if file == HOUSE / "cli/commands.py":
        for entry in TABLE:
            yield from _module(f"trtspec.{entry.module}")


def _module(name: str) -> list[Path]:
    file = HOUSE.parent / f"{name.replace('.', '/')}.py"
    return [file] if file.is_file() and file.is_relative_to(HOUSE) else []


def test_no_files_import_each_other_in_a_circle() -> None:
    """Whoever reads one file of a circle must read them all."""
    house = {file: set(imported_by(file)) for file in HOUSE.rglob("*.py")}
    try:
        TopologicalSorter(house).prepare()
    except CycleError as error:
        pytest.fail(" <- ".join(str(file.relative_to(HOUSE)) for file in error.args[1]))


def test_no_function_is_long() -> None:
    """A function's lines are counted with its signature and its docstring, without its decorators."""
    assert [
        f"{file.relative_to(HOUSE)}:{node.lineno} {node.name}"
        for file in HOUSE.rglob("*.py")
        for node in ast.walk(parsed(file))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and (node.end_lineno or 0) - node.lineno >= MOST_LINES_OF_A_FUNCTION
    ] == []


def test_no_folder_of_tests_is_left_out(pytestconfig: pytest.Config) -> None:
    """A folder whose name is among pytest's `norecursedirs` would never run, and nobody would be told."""
    tests = Path(__file__).parents[1]
    folders = {path.parent for path in tests.rglob("test_*.py")}
    names = {name for folder in folders for name in folder.relative_to(tests.parent).parts}
    left_out = pytestconfig.getini("norecursedirs")
    assert not [name for name in names for pattern in left_out if fnmatch(name, pattern)]
