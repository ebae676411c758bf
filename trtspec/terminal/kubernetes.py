"""What a deployment on a cluster is made of, as commands find it."""

from __future__ import annotations

from importlib.metadata import version

from trtspec.errors import RecipeError, StoreError
from trtspec.kubernetes.deriving import Asked, derive
from trtspec.kubernetes.stored import find_build
from trtspec.kubernetes.values import Values
from trtspec.recipe.loader import LoadedRecipe
from trtspec.store.address import Address
from trtspec.store.store import Store
from trtspec.terminal.output import out


def find_values(loaded: LoadedRecipe, store: str | None, namespace: str | None) -> Values:
    """Returns the values of a recipe's deployment; raises RecipeError, and StoreError for what a store lacks.

    `store` and `namespace` stand in place of the recipe's.
    """
    url = store or loaded.recipe.kubernetes.store
    if url is None:
        problem = loaded.problem("kubernetes.store", "is missing: the URL of the store that has the build")
        raise RecipeError(loaded.path, [problem])
    if str(Address(url)) != url:
        repair = "put it into a Secret, and name that in kubernetes.secrets.store"
        raise StoreError(str(Address(url)), "its URL has a secret, which every manifest would show", repair)
    if Address(url).protocol == "file":
        out.warning(f"{url} is a folder of this machine, which pods do not have")
    build = find_build(Store(url), loaded.recipe)
    text = loaded.path.read_text(encoding="utf-8")
    values = derive(loaded, text, build, Asked(url, namespace), version("trtspec"))
    if loaded.recipe.kubernetes.image is None:
        out.warning(f"kubernetes.image is not written: every node must have {values.image} already")
    return values
