"""trtspec: speculative decoding on NVIDIA's stack, from one recipe.

This is the Python API, of which the command line is made too:

    import trtspec

    plan = trtspec.plan("recipe.yaml")
    done = trtspec.build("recipe.yaml")
    with trtspec.deploy("recipe.yaml") as served:
        print(trtspec.Client(served.api_url).generate("def fib(").text)

A name is imported when it is first used, so that `import trtspec` costs nothing.
"""

from __future__ import annotations

from importlib import import_module
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from trtspec.backends.table import load as load_recipe
    from trtspec.client.client import Client
    from trtspec.deployment.deploy import deploy
    from trtspec.pipeline.build.build import build
    from trtspec.pipeline.build.plan import make_plan as plan
    from trtspec.pipeline.store.store import Store

    __version__: str

__all__ = ["Client", "Store", "__version__", "build", "deploy", "load_recipe", "plan"]

_PLACES = {
    "Client": "client.client:Client",
    "Store": "pipeline.store.store:Store",
    "build": "pipeline.build.build:build",
    "deploy": "deployment.deploy:deploy",
    "load_recipe": "backends.table:load",
    "plan": "pipeline.build.plan:make_plan",
}
"""The module and the name, within `trtspec`, of each name of the API."""


def __getattr__(name: str) -> Any:
    if name == "__version__":
        return version("trtspec")
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module, _, own = _PLACES[name].partition(":")
    found = globals()[name] = getattr(import_module(f"{__name__}.{module}"), own)
    return found


def __dir__() -> list[str]:
    return sorted(__all__)
