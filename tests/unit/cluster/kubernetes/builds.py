"""What a store has of the builds of `recipes/`: their sizes, and no content."""

from __future__ import annotations

import json
from hashlib import sha256
from pathlib import Path

from trtspec.backends.table import load
from trtspec.base.roles import Role
from trtspec.cluster.kubernetes.recipe_values import BuildEngine, StoredBuild, derive, from_build
from trtspec.cluster.kubernetes.values import Values
from trtspec.pipeline.store.store import Chunk, Entry, StoredFile, platform_of
from trtspec.recipe.releases import release_of
from trtspec.recipe.schema import Recipe

ROOT = Path(__file__).parents[4]
RECIPES = ROOT / "recipes"
PUBLISHED = sorted(RECIPES.glob("*.yaml"))
EVERY = (*PUBLISHED, RECIPES / "tiny/recipe.yaml")
ENGINES = ROOT / "tests/data/stored_engines.json"
"""What `find_build` would say of the engines of each recipe; the tests of the recipes hold it to the plan."""

STORE = "s3://engines/pairs"


def stored(recipe: Recipe) -> StoredBuild:
    """The build of one of these recipes."""
    found = json.loads(ENGINES.read_text())[recipe.name]
    engines = {Role(role): BuildEngine(**values) for role, values in found.items()}
    files = {
        f"{role}/engine/rank{rank}.engine": _file(f"{recipe.name} {role} {rank}", engine)
        for role, engine in engines.items()
        for rank in range(engine.ranks)
    }
    release = release_of(recipe.engine.release) if recipe.backend == "tensorrt_llm" else None
    manifest = {"name": recipe.name, "recipe": recipe.digest, "backend": recipe.backend}
    platform, created = platform_of(recipe.hardware.gpu, release), "2026-01-01T00:00:00+00:00"
    return StoredBuild(Entry("pair", recipe.name, platform, "1" * 64, created, files, (), manifest), engines)


def _file(name: str, engine: BuildEngine) -> StoredFile:
    digest = sha256(name.encode()).hexdigest()
    return StoredFile(digest, (Chunk(digest, engine.weights // engine.ranks),))


def values(recipe: Path, section: str = "", namespace: str | None = None) -> Values:
    """The values of a recipe's deployment; `section` is its section `kubernetes:`, if any.

    The recipe with the section is written into the current folder.
    """
    text = recipe.read_text()
    if section:
        text += f"kubernetes:\n{section}"
    file = Path(recipe.name)
    file.write_text(text)
    loaded = load(file)
    served = from_build(loaded.recipe, text, stored(loaded.recipe), STORE, "0.1.0")
    return derive(loaded, served, namespace)
