"""The optional packages of trtspec: which extra of pip's has each, and the error where one is missing."""

from __future__ import annotations

from importlib.util import find_spec

from trtspec.base.errors import UnavailableError

EXTRAS = {
    "aiohttp": "serve",
    "httptools": "serve",
    "jinja2": "serve",
    "multidict": "serve",
    "orjson": "serve",
    "starlette": "serve",
    "uvicorn": "serve",
    "uvloop": "serve",
    "yarl": "serve",
    "torch": "torch",
    "llvmlite": "torch",
    "numba": "torch",
    "safetensors": "torch",
    "xgrammar": "guides",
    "modelopt": "fp8",
    "transformers": "train",
    "accelerate": "train",
    "markupsafe": "measure",
    "matplotlib": "measure",
    "pyarrow": "measure",
    "scipy": "measure",
    "kubernetes": "cluster",
    "s3fs": "s3",
    "gcsfs": "gcs",
    "pytriton": "triton",
}
"""The smallest extra that has a package, by the name that the package is imported by."""


def require(who: str, *packages: str, extra: str | None = None) -> None:
    """Raises `UnavailableError` for the first of these packages that is not installed; imports none.

    `who` is what needs them. `extra` has them all, where they are of several extras.
    """
    for package in packages:
        if find_spec(package) is None:
            raise not_installed(package, who, extra or EXTRAS[package])


def not_installed(package: str, who: str, extra: str) -> UnavailableError:
    """Returns the error for a package that is not installed, which `extra` has and `who` needs."""
    problem = f"is not installed, and {who} needs its package {package}"
    return UnavailableError(f"extra {extra}", problem, how_to_install(extra))


def how_to_install(extra: str) -> str:
    """Returns how an extra is installed; no package index has trtspec."""
    return f"pip install '.[{extra}]' in a clone of trtspec, or 'WHEEL[{extra}]' with the file of its wheel"


def missing_extra(error: ModuleNotFoundError) -> UnavailableError | None:
    """Returns what an import failed for, as such an error; None for a package that is no optional one."""
    package = (error.name or "").partition(".")[0]
    return not_installed(package, "this command", EXTRAS[package]) if package in EXTRAS else None
