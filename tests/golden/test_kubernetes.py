"""Manifests to the letter; UPDATE_GOLDEN=1 writes them anew. What is not made from a recipe is left out."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.unit.kubernetes import launches
from tests.unit.kubernetes.builds import RECIPES, values
from trtspec.kubernetes.kinds.monitoring import PrometheusRule
from trtspec.kubernetes.manifests import manifests, to_yaml
from trtspec.kubernetes.values import Values
from trtspec.recipe.support import SERVERS

LARGE = """\
  namespace: llm
  image: registry.example.org/trtspec:0.1.0-1.2.1
  replicas: 2
  autoscaling: {max_replicas: 4}
  cache: host_path
  secrets: {store: engines-s3, api_keys: llm-keys}
  gateway: {name: public, hostnames: [llm.example.org], endpoint_picker: picker}
"""
KSERVE = """\
  form: kserve
  image: registry.example.org/trtspec:0.1.0-1.2.1
  cache: claim
"""


@pytest.mark.parametrize(
    ("recipe", "section", "name"),
    [
        ("tiny/recipe.yaml", "", "tiny"),
        ("llama-3.1-405b-8xh200.yaml", LARGE, "llama-3.1-405b-8xh200"),
        ("llama-3.3-70b-2xh100.yaml", KSERVE, "llama-3.3-70b-2xh100-kserve"),
    ],
)
def test_manifests(
    recipe: str, section: str, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    check(values(RECIPES / recipe, section), name)


@pytest.mark.parametrize("backend", SERVERS)
def test_servers_of_others(backend: str) -> None:
    section = launches.KEYS if backend == "vllm" else launches.SECTIONS["a folder of the node"]
    check(launches.values(backend, section), backend)


def check(found: Values, name: str) -> None:
    made = [
        thing
        for thing in manifests(found)
        if not isinstance(thing, PrometheusRule) and not str(thing.metadata.name).endswith("-dashboard")
    ]
    output = to_yaml(made)
    golden = Path(__file__).with_name("kubernetes") / f"{name}.yaml"
    if os.environ.get("UPDATE_GOLDEN"):
        golden.parent.mkdir(exist_ok=True)
        golden.write_text(output)
    assert output == golden.read_text()
