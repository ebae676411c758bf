"""The page of what was proven where: of `tests/proofs/named.csv`, and of self-tests' results beside it."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from itertools import groupby
from pathlib import Path
from typing import Any

from trtspec.backends.planner import Planner
from trtspec.backends.table import backends
from trtspec.measure.selftest.builds import TrialPairs
from trtspec.methods.table import METHODS
from trtspec.recipe import gpus
from trtspec.recipe.shipped import TINY

FOLDER = Path(__file__).parents[1] / "proofs"
PRECISIONS = ("plain", "fp8")
ABOUT = """\
# What was proven where

A cell has the strongest proof of a method on an engine, for each release that has another one:

| proof | meaning |
|---|---|
| GPU | a self-test on a GPU found no difference: on which, and when |
| differs | a self-test on a GPU found a difference: in which checks |
| CPU | the engine itself ran on a CPU, and the text was the target's |
| maker | judged by the maker's own code, NVIDIA's too: it read our checkpoints, command lines or options |
| stand-in | it ran against our strict stand-in for the engine |
| not tried | none of these |

NVIDIA's code is that of TensorRT-LLM 1.3.0rc3, whose sources still had engines. The tests behind each cell
are in `tests/proofs/named.csv`.

To move a row up, run `trtspec selftest --container --bundle FILE` on your GPU for `draft_model`, `eagle`,
`medusa` and `lookahead` of `tensorrt_llm`, else `trtspec verify RECIPE --json`. Open an issue with it.
"""


class Level(IntEnum):
    """The kinds of proof, the weakest first; a difference outweighs all."""

    NOT_TRIED = 0
    STAND_IN = 1
    MAKER = 2
    CPU = 3
    GPU = 4
    DIFFERS = 5

    @classmethod
    def of(cls, word: str) -> Level:
        return cls[word.upper().replace("-", "_")]

    @property
    def word(self) -> str:
        plain = self.name.lower().replace("_", "-" if self is Level.STAND_IN else " ")
        return self.name if self in (Level.CPU, Level.GPU) else plain


@dataclass(frozen=True, order=True)
class Proof:
    """A proof of a method on an engine."""

    level: Level
    detail: str = ""

    @property
    def words(self) -> str:
        return f"{self.level.word} ({self.detail})" if self.detail else self.level.word


Key = tuple[str, str, str, str]
"""Engine, method, precision and release; the release is "" for an engine that has only one."""


def named() -> list[dict[str, str]]:
    """Returns the rows of the tests, by the names of their columns."""
    with (FOLDER / "named.csv").open(encoding="utf-8") as file:
        return list(csv.DictReader(file))


def results() -> list[dict[str, Any]]:
    """Returns the results of self-tests."""
    return [json.loads(file.read_text(encoding="utf-8")) for file in sorted(FOLDER.glob("*.json"))]


def page() -> str:
    """Returns the page as Markdown."""
    return page_of(results())


def page_of(bundles: Sequence[Mapping[str, Any]]) -> str:
    """Returns the page for these results of self-tests."""
    known: dict[Key, Proof] = {}
    for key, proof in (*_of_tests(), *(one for bundle in bundles for one in _of_bundle(bundle))):
        known[key] = max(known.get(key, Proof(Level.NOT_TRIED)), proof)
    lines = [ABOUT, "| engine | method | 16 or 32 bits | FP8 |", "|---|---|---|---|"]
    for backend in backends():
        for method in METHODS:
            if releases := releases_of(backend, method):
                row = [_cell(known, backend, method, precision, releases) for precision in PRECISIONS]
                lines.append(f"| `{backend.name}` | `{method}` | {' | '.join(row)} |")
    return "\n".join(lines)


def releases_of(backend: Planner, method: str) -> list[str]:
    """Returns the releases of an engine that run the method."""
    return [one for one in backend.versions or ("",) if backend.refusal(method, one or None) is None]


def _cell(
    known: Mapping[Key, Proof], backend: Planner, method: str, precision: str, releases: Iterable[str]
) -> str:
    if precision == "fp8" and backend.name == "torch":
        return "-"
    found = [
        (known.get((backend.name, method, precision, one), Proof(Level.NOT_TRIED)), one) for one in releases
    ]
    found.sort(key=lambda one: -one[0].level)
    groups = [(", ".join(one for _, one in of), proof) for proof, of in groupby(found, lambda one: one[0])]
    if len(groups) == 1:
        words: str = groups[0][1].words
        return words
    *before, (last, weakest) = groups
    last = "others" if ", " in last else last
    return "; ".join(f"{of}: {proof.words}" for of, proof in (*before, (last, weakest)))


def _of_tests() -> Iterator[tuple[Key, Proof]]:
    versions = {backend.name: backend.versions or ("",) for backend in backends()}
    for row in named():
        engine = row["engine"]
        releases = versions[engine] if row["releases"] == "all" else row["releases"].split()
        for method in row["methods"].split():
            for precision in row["precisions"].split():
                for release in releases:
                    yield (engine, method, precision, release), Proof(Level.of(row["proof"]))


def _of_bundle(bundle: Mapping[str, Any]) -> Iterator[tuple[Key, Proof]]:
    """Yields what a self-test proved: a cell of several builds holds only if all of them do."""
    if bundle["gpu"] is None:
        return  # The tests prove as much.
    builds, where = _builds(bundle["release"]), f"{bundle['gpu']}, {bundle['date']}"
    for name, cell in builds.items():
        tried = [one for one in bundle["outcomes"] if one["build"] == name and one["state"] != "not tried"]
        wrong = [f"{name}: {one['check']}" for one in tried if one["state"] == "differs"]
        if not tried or any(one["state"] == "left out" for one in tried):
            continue
        proof = Proof(Level.DIFFERS, "; ".join([where, *wrong])) if wrong else Proof(Level.GPU, where)
        yield ("tensorrt_llm", *cell, bundle["release"]), proof


def _builds(release: str) -> dict[str, tuple[str, str]]:
    """Returns the method and the precision of each build of a self-test with GPUs."""
    made = TrialPairs(TINY, gpus.GPUS["h100"], 2, release).builds(Path("unused"))[1:]
    return {
        build.name: (
            build.values["speculation"].get("method", "draft_model"),
            "fp8" if build.numbers == "fp8" else "plain",
        )
        for build in made
    }
