"""Commands in a Python that has trtspec and none of its extras: each names the one that it needs."""

from __future__ import annotations

import re
import subprocess
import sys
import sysconfig
import venv
from collections.abc import Callable
from importlib.metadata import requires
from pathlib import Path
from subprocess import CompletedProcess

import pytest

from trtspec.base.extras import EXTRAS, require

TINY = Path(__file__).parents[3] / "recipes/tiny/recipe.yaml"
# Those that are not called by the name they are imported by.
DISTRIBUTIONS = {
    "jinja2": "Jinja2",
    "markupsafe": "MarkupSafe",
    "modelopt": "nvidia-modelopt",
    "pytriton": "nvidia-pytriton",
}

Bare = Callable[..., CompletedProcess[str]]


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Bare:
    """Runs `trtspec` in an environment with the packages of this one, but for those of the extras."""
    return environment(tmp_path_factory.mktemp("bare"), set(EXTRAS))


@pytest.fixture(scope="module")
def serving(tmp_path_factory: pytest.TempPathFactory) -> Bare:
    """Runs `trtspec` in one that has the extra `serve` alone."""
    return environment(tmp_path_factory.mktemp("serve"), {name for name in EXTRAS if EXTRAS[name] != "serve"})


def environment(folder: Path, left_out: set[str]) -> Bare:
    venv.create(folder, symlinks=True)
    python = Path("lib", f"python{sys.version_info.major}.{sys.version_info.minor}", "site-packages")
    for package in Path(sysconfig.get_paths()["purelib"]).iterdir():
        if package.name not in left_out:
            (folder / python / package.name).symlink_to(package)

    def run(*words: object) -> CompletedProcess[str]:
        command = [folder / "bin/python", "-m", "trtspec", *words]
        return subprocess.run(
            list(map(str, command)), cwd=folder, capture_output=True, text=True, timeout=300
        )

    return run


@pytest.mark.parametrize(
    ("words", "package", "extra"),
    [
        (("generate", "hello"), "yarl", "serve"),
        (("deploy", TINY), "yarl", "serve"),
        (("demo",), "yarl", "serve,torch,triton"),
        (("selftest",), "yarl", "measure,torch"),
        (("tune", TINY, "--workload", "synthetic:input=8,output=16"), "torch", "torch"),
        (("distill", TINY, "--workload", "prompts.jsonl"), "torch", "train"),
        (("kubernetes", "status"), "kubernetes", "cluster"),
        (("store", "list", "s3://engines"), "s3fs", "s3"),
    ],
    ids=lambda value: value[0] if isinstance(value, tuple) else value,
)
def test_the_extra_is_named(bare: Bare, words: tuple[object, ...], package: str, extra: str) -> None:
    said = bare(*words)
    assert said.returncode == 1, said.stderr
    assert re.search(
        f"error: extra {extra}: is not installed, and .* needs its package {package}\n", said.stderr
    )
    assert f"hint: pip install '.[{extra}]'" in said.stderr
    assert "Traceback" not in said.stderr


def test_a_pair_is_built_and_stored_without_extras(bare: Bare, tmp_path: Path) -> None:
    there = "--output", tmp_path / "build"
    for words in (
        ("check", TINY),
        ("plan", TINY),
        ("convert", TINY, "--output", tmp_path / "checkpoints"),
        ("build", TINY, *there),
        ("build", TINY, *there, "--dry-run"),
        ("store", "push", tmp_path / "store", TINY, *there),
        ("store", "list", tmp_path / "store"),
    ):
        said = bare(*words)
        assert said.returncode == 0, said.stderr


def test_a_package_that_is_imported_late_names_its_extra_when_missing(serving: Bare, tmp_path: Path) -> None:
    assert serving("build", TINY, "--output", tmp_path / "build").returncode == 0
    for draws, package, extra in ((100, "scipy", "measure"), (0, "torch", "torch")):
        said = serving("verify", TINY, "--output", tmp_path / "build", "--draws", draws)
        assert said.returncode == 1
        assert re.search(
            f"error: extra {extra}: is not installed, and .* needs its package {package}\n", said.stderr
        )
        assert f"hint: pip install '.[{extra}]'" in said.stderr
        assert "Traceback" not in said.stderr


def test_no_extra_brings_more_than_ten_packages() -> None:
    wanted = requires("trtspec") or []
    assert len([one for one in wanted if "extra ==" not in one]) <= 10


def test_the_extras_are_those_of_the_package() -> None:
    wanted = requires("trtspec") or []
    for package, extra in EXTRAS.items():
        line = re.compile(rf"{DISTRIBUTIONS.get(package, package)}\b[^;]*;.*extra == .{extra}\b", re.I)
        assert any(line.match(one) for one in wanted), package


def test_checking_for_an_installed_package_does_not_import_it() -> None:
    imported = "import sys; from trtspec.base.extras import require"
    code = f"{imported}; require('x', 'torch'); print('torch' in sys.modules)"
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert said.stdout == "False\n"
    require("x", "torch")
