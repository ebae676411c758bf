"""What real Helm makes of the chart, by the values that sections of recipes come to.

UPDATE_GOLDEN=1 writes the objects anew. Alerts and the dashboard, which are alike, are left out.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.unit.cluster.kubernetes import launches
from tests.unit.cluster.kubernetes.builds import RECIPES, values
from tests.unit.cluster.kubernetes.rendered import rendered
from tests.unit.cluster.kubernetes.value_sets import VALUE_SETS
from trtspec.cluster.kubernetes.values import Values

GOLDEN = Path(__file__).with_name("chart")
SERVERS = {
    "vllm": ("vllm", launches.KEYS),
    **{f"trtllm-serve, {name}": ("tensorrt_llm_pytorch", each) for name, each in launches.SECTIONS.items()},
}


@pytest.mark.parametrize("name", VALUE_SETS)
def test_engines(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    found = values(RECIPES / "llama-3.3-70b-2xh100.yaml", VALUE_SETS[name], "serving")
    assert found.engines
    check(
        name,
        found.model_copy(update={"engines": found.engines.model_copy(update={"recipe": "name: a\n"})}),
    )


@pytest.mark.parametrize("name", SERVERS)
def test_the_chart_renders_servers_of_other_engines_as_recorded(name: str) -> None:
    check(name, launches.values(*SERVERS[name], "serving"))


def check(name: str, found: Values) -> None:
    objects = [
        each
        for each in rendered(found)
        if each["kind"] != "PrometheusRule" and not each["metadata"]["name"].endswith("-dashboard")
    ]
    file = GOLDEN / f"{name.replace(', ', '_').replace(' ', '-')}.yaml"
    if os.environ.get("UPDATE_GOLDEN"):
        file.write_text(yaml.safe_dump_all(sorted(objects, key=_key), width=110, default_flow_style=None))
    with file.open() as stream:
        assert sorted(objects, key=_key) == list(yaml.safe_load_all(stream))


def _key(thing: dict[str, Any]) -> tuple[str, str]:
    return thing["kind"], thing["metadata"]["name"]
