"""The alert rules, judged by promtool: each fires for what it is about, and none for a healthy server."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.prometheus import judged, tool
from tests.support.promql import names
from trtspec.cli.monitoring import shipped
from trtspec.gateway.refusals import NAME
from trtspec.serving.metrics import FAMILIES

WHERE = 'instance="a:8002",job="trtspec",model="pair",version="1"'
PER_TOKEN = "trtspec:rollout_time_per_output_token_seconds"
# By what a minute adds.
HEALTHY = {
    f'trtspec:spec_decode_num_draft_tokens{{{WHERE},origin="engine"}}': "0+900x110",
    f'trtspec:spec_decode_num_draft_tokens{{{WHERE},origin="lookup"}}': "0+100x110",
    f'trtspec:spec_decode_num_accepted_tokens{{{WHERE},origin="engine"}}': "0+700x110",
    f'trtspec:spec_decode_num_accepted_tokens{{{WHERE},origin="lookup"}}': "0+10x110",
    f"trtspec:draft_available{{{WHERE}}}": "1x110",
    f'trtspec:rounds{{{WHERE},num_draft_tokens="0"}}': "0+20x110",
    f'trtspec:rounds{{{WHERE},num_draft_tokens="4"}}': "0+250x110",
    f'trtspec:fallbacks{{{WHERE},reason="draft_failed"}}': "0+1x110",
    f'trtspec:fallbacks{{{WHERE},reason="draft_at_rest"}}': "0x110",
    f'trtspec:fallbacks{{{WHERE},reason="policy"}}': "0+20x110",
    f"trtspec:num_requests_running{{{WHERE}}}": "4x110",
    f"trtspec:num_requests_waiting{{{WHERE}}}": "10x110",
    f"trtspec:max_num_requests_waiting{{{WHERE}}}": "256x110",
    f'trtspec:request_errors{{{WHERE},kind="refused"}}': "0x110",
    f'trtspec:request_errors{{{WHERE},kind="engine_failure"}}': "0x110",
    f'trtspec:request_errors{{{WHERE},kind="timed_out"}}': "0x110",
    f'trtspec:request_errors{{{WHERE},kind="cancelled"}}': "0+50x110",
    f'trtspec:front_refusals{{{WHERE},api="openai",reason="too_many_requests"}}': "0x110",
    f'trtspec:front_refusals{{{WHERE},api="openai",reason="invalid_request"}}': "0+50x110",
    f'trtspec:request_success{{{WHERE},finished_reason="stop"}}': "0+100x110",
    f'trtspec:kv_cache_usage_perc{{{WHERE},engine="target"}}': "0.8x110",
    'nv_trt_llm_kv_cache_block_metrics{instance="b",kv_cache_block_type="fraction",model="e"}': "0.8x110",
    f"trtspec:generation_tokens{{{WHERE}}}": "0+1000x110",
    f'trtspec:time_to_first_token_seconds_bucket{{{WHERE},le="2.5"}}': "0+99x110",
    f'trtspec:time_to_first_token_seconds_bucket{{{WHERE},le="5.0"}}': "0+100x110",
    f'trtspec:time_to_first_token_seconds_bucket{{{WHERE},le="10.0"}}': "0+100x110",
    f'trtspec:time_to_first_token_seconds_bucket{{{WHERE},le="+Inf"}}': "0+100x110",
    'nv_gpu_utilization{gpu_uuid="GPU-1",instance="a:8002",job="trtspec"}': "0.6+0x110",
    'up{instance="a:8002",job="trtspec"}': "1x110",
    f"trtspec:rollout_file_malformed{{{WHERE}}}": "0x110",
    f'{PER_TOKEN}_sum{{{WHERE},arm="plain"}}': "0+2x110",
    f'{PER_TOKEN}_count{{{WHERE},arm="plain"}}': "0+100x110",
    f'{PER_TOKEN}_sum{{{WHERE},arm="speculate"}}': "0+0.1x110",
    f'{PER_TOKEN}_count{{{WHERE},arm="speculate"}}': "0+10x110",
}
TROUBLES: dict[str, dict[str, str]] = {
    "TrtspecAcceptanceLow": {'num_accepted_tokens{%s,origin="engine"}': "0+350x110"},
    "TrtspecDraftAtRest": {"draft_available{%s}": "0x110"},
    "TrtspecDraftFails": {'fallbacks{%s,reason="draft_at_rest"}': "0+30x110"},
    "TrtspecDraftsDoNotPay": {
        'rounds{%s,num_draft_tokens="4"}': "0+1x110",
        'fallbacks{%s,reason="draft_failed"}': "0x110",
    },
    "TrtspecQueueFillsUp": {"trtspec:num_requests_waiting{%s}": "200x110"},
    "TrtspecRefuses": {'request_errors{%s,kind="refused"}': "0+60x110"},
    "TrtspecFrontRefuses": {'reason="too_many_requests"': "0+60x110"},
    "TrtspecKvCacheFull": {'kv_cache_usage_perc{%s,engine="target"}': "0.99x110"},
    "TrtspecFirstTokenSlow": {
        'bucket{%s,le="2.5"}': "0+80x110",
        'bucket{%s,le="5.0"}': "0+90x110",
    },
    "TrtspecGpuUseInBursts": {"nv_gpu_utilization": "0 1 " * 55},
    "TrtspecRolloutSlower": {'_sum{%s,arm="speculate"}': "0+0.22x110"},
    "TrtspecRolloutFileBroken": {"rollout_file_malformed": "1x110"},
    "TrtspecErrors": {'request_errors{%s,kind="engine_failure"}': "0+5x110"},
    "TrtspecStalls": {"generation_tokens{%s}": "1000x110"},
    "TrtspecDown": {"up{": "0x110"},
}


def rules() -> list[dict[str, Any]]:
    groups = yaml.safe_load(shipped("alerts.yaml"))["groups"]
    return [rule for group in groups for rule in group["rules"]]


@pytest.fixture(scope="module")
def rule_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("rules") / "alerts.yaml"
    file.write_text(shipped("alerts.yaml"))
    return file


def fires(rule_file: Path, changed: dict[str, str]) -> set[str]:
    """Which rules fire after 100 minutes, when these series are other than in `HEALTHY`."""
    series = dict(HEALTHY)
    for part, values in changed.items():
        (name,) = [name for name in series if (part % WHERE if "%s" in part else part) in name]
        series[name] = values
    expected = [{"eval_time": "100m", "alertname": rule["alert"], "exp_alerts": []} for rule in rules()]
    said = judged(rule_file, series, {"alert_rule_test": expected})
    found = {rule["alert"] for rule in rules() if f"alertname: {rule['alert']}, time" in said.stderr}
    assert (said.returncode == 0) == (not found), said.stderr
    return found


def test_promtool_accepts_all_alert_rules(rule_file: Path) -> None:
    line = [tool("promtool"), "check", "rules", "--lint-fatal", str(rule_file)]
    assert (
        "SUCCESS: 15 rules found" in subprocess.run(line, check=True, capture_output=True, text=True).stdout
    )


def test_a_healthy_server_is_left_alone(rule_file: Path) -> None:
    assert fires(rule_file, {}) == set()


def test_an_engines_own_model_tells_that_its_kv_cache_is_full(rule_file: Path) -> None:
    assert fires(rule_file, {"nv_trt_llm_kv_cache_block_metrics": "0.99x110"}) == {"TrtspecKvCacheFull"}


@pytest.mark.parametrize("name", TROUBLES)
def test_a_trouble_has_its_alert_alone(rule_file: Path, name: str) -> None:
    assert fires(rule_file, TROUBLES[name]) == {name}


def test_every_rule_is_tried_and_says_what_to_do() -> None:
    assert [rule["alert"] for rule in rules()] == list(TROUBLES)
    for rule in rules():
        assert rule["labels"]["severity"] in ("info", "warning", "critical")
        assert set(rule["annotations"]) == {"summary", "description"}


def test_every_metric_of_the_rules_is_ours_or_tritons() -> None:
    """Whether a server exports them is for tests/e2e/test_watched.py to say."""
    read = set().union(*(names(rule["expr"]) for rule in rules()))
    assert len(read) > 12
    assert read - {"nv_gpu_utilization"} <= {*FAMILIES, NAME}
