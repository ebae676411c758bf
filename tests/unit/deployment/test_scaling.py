"""The recording rules of autoscaling, judged by promtool."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.prometheus import judged, tool
from tests.support.promql import names
from trtspec.cli.monitoring import shipped
from trtspec.serving.metrics import FAMILIES

POD = 'instance="10.0.0.7:8002",job="trtspec",namespace="llm",pod="{pod}"'
REQUESTS, KV = "trtspec:requests_per_place:ratio", "trtspec:kv_cache_usage:ratio"


def in_one_process(pod: str, running: str, waiting: str, kv: str) -> dict[str, str]:
    where = f'{POD.format(pod=pod)},model="m",version="1"'
    return {
        f"trtspec:num_requests_running{{{where}}}": running,
        f"trtspec:num_requests_waiting{{{where}}}": waiting,
        f"trtspec:max_num_requests_running{{{where}}}": "16x10",
        f'trtspec:kv_cache_usage_perc{{{where},engine="draft"}}': "0.1x10",
        f'trtspec:kv_cache_usage_perc{{{where},engine="target"}}': kv,
        # The name that the endpoint picker reads.
        f'nv_trt_llm_kv_cache_block_metrics{{{where},kv_cache_block_type="fraction"}}': kv,
    }


def in_models(pod: str, running: str, target: str) -> dict[str, str]:
    """The bls layout, where NVIDIA's C++ backend tells of its caches."""
    where = POD.format(pod=pod)
    block = "nv_trt_llm_kv_cache_block_metrics"
    return {
        f'trtspec:num_requests_running{{{where},model="m",version="1"}}': running,
        f'trtspec:num_requests_waiting{{{where},model="m",version="1"}}': "0x10",
        f'trtspec:max_num_requests_running{{{where},model="m",version="1"}}': "16x10",
        f'{block}{{{where},model="tensorrt_llm",version="1",kv_cache_block_type="fraction"}}': target,
        f'{block}{{{where},model="tensorrt_llm_draft",version="1",kv_cache_block_type="fraction"}}': "0.2x10",
        f'{block}{{{where},model="tensorrt_llm",version="1",kv_cache_block_type="max"}}': "4000x10",
    }


@pytest.fixture
def rule_file(tmp_path: Path) -> Path:
    file = tmp_path / "scaling.yaml"
    file.write_text(shipped("scaling.yaml"))
    return file


def test_promtool_accepts_the_recording_rules_of_autoscaling(rule_file: Path) -> None:
    line = [tool("promtool"), "check", "rules", "--lint-fatal", str(rule_file)]
    assert "SUCCESS: 2 rules found" in subprocess.run(line, check=True, capture_output=True, text=True).stdout


@pytest.mark.parametrize(
    ("series", "expected"),
    [
        (in_one_process("a", "4x10", "0x10", "0.3x10"), {("a", REQUESTS): 0.25, ("a", KV): 0.3}),
        (in_one_process("a", "16x10", "32x10", "0.9x10"), {("a", REQUESTS): 3, ("a", KV): 0.9}),
        (in_one_process("a", "0x10", "0x10", "0x10"), {("a", REQUESTS): 0, ("a", KV): 0.1}),
        (in_models("b", "8x10", "0.7x10"), {("b", REQUESTS): 0.5, ("b", KV): 0.7}),
        (
            in_one_process("a", "4x10", "0x10", "0.3x10") | in_models("b", "8x10", "0.7x10"),
            {("a", REQUESTS): 0.25, ("a", KV): 0.3, ("b", REQUESTS): 0.5, ("b", KV): 0.7},
        ),
    ],
    ids=["some", "a queue", "idle", "bls", "two servers"],
)
def test_they_say_how_full_each_server_is(
    rule_file: Path, series: dict[str, str], expected: dict[tuple[str, str], float]
) -> None:
    tests: list[dict[str, Any]] = []
    for name in (REQUESTS, KV):
        found = [
            {"labels": f"{name}{{{POD.format(pod=pod)}}}", "value": value}
            for (pod, other), value in expected.items()
            if other == name
        ]
        tests.append({"expr": name, "eval_time": "5m", "exp_samples": found})
    said = judged(rule_file, series, {"promql_expr_test": tests})
    assert said.returncode == 0, said.stdout + said.stderr


def test_every_metric_is_one_that_is_exported() -> None:
    (group,) = yaml.safe_load(shipped("scaling.yaml"))["groups"]
    assert [rule["record"] for rule in group["rules"]] == [REQUESTS, KV]
    read = set().union(*(names(rule["expr"]) for rule in group["rules"]))
    assert len(read) == 5
    assert read <= set(FAMILIES)
