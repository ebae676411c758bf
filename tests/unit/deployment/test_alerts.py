"""The alert rules, judged by promtool: each fires for what it is about, and none for a healthy server."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.prometheus import judged, tool
from tests.support.promql import names
from trtspec.cli.monitoring import shipped
from trtspec.deployment.rollout.bounds import LEAST_OF_USUAL, MOST_ACCEPTANCE
from trtspec.gateway.refusals import NAME
from trtspec.serving.metrics import FAMILIES

WHERE = 'instance="a:8002",job="trtspec",model="pair",version="1"'
PER_TOKEN = "trtspec:rollout_time_per_output_token_seconds"
# By what a minute adds.
HEALTHY = {
    f'trtspec:spec_decode_num_draft_tokens_total{{{WHERE},origin="engine"}}': "0+900x110",
    f'trtspec:spec_decode_num_draft_tokens_total{{{WHERE},origin="lookup"}}': "0+100x110",
    f'trtspec:spec_decode_num_accepted_tokens_total{{{WHERE},origin="engine"}}': "0+700x110",
    f'trtspec:spec_decode_num_accepted_tokens_total{{{WHERE},origin="lookup"}}': "0+10x110",
    f"trtspec:draft_available{{{WHERE}}}": "1x110",
    f'trtspec:rounds_total{{{WHERE},num_draft_tokens="0"}}': "0+20x110",
    f'trtspec:rounds_total{{{WHERE},num_draft_tokens="4"}}': "0+250x110",
    f'trtspec:fallbacks_total{{{WHERE},reason="draft_failed"}}': "0+1x110",
    f'trtspec:fallbacks_total{{{WHERE},reason="draft_at_rest"}}': "0x110",
    f'trtspec:fallbacks_total{{{WHERE},reason="policy"}}': "0+20x110",
    f"trtspec:num_requests_running{{{WHERE}}}": "4x110",
    f"trtspec:num_requests_waiting{{{WHERE}}}": "10x110",
    f"trtspec:max_num_requests_waiting{{{WHERE}}}": "256x110",
    f'trtspec:request_errors_total{{{WHERE},kind="refused"}}': "0x110",
    f'trtspec:request_errors_total{{{WHERE},kind="engine_failure"}}': "0x110",
    f'trtspec:request_errors_total{{{WHERE},kind="timed_out"}}': "0x110",
    f'trtspec:request_errors_total{{{WHERE},kind="cancelled"}}': "0+50x110",
    f'trtspec:front_refusals_total{{{WHERE},api="openai",reason="too_many_requests"}}': "0x110",
    f'trtspec:front_refusals_total{{{WHERE},api="openai",reason="invalid_request"}}': "0+50x110",
    f'trtspec:request_success_total{{{WHERE},finished_reason="stop"}}': "0+100x110",
    f'trtspec:kv_cache_usage_perc{{{WHERE},engine="target"}}': "0.8x110",
    'nv_trt_llm_kv_cache_block_metrics{instance="b",kv_cache_block_type="fraction",model="e"}': "0.8x110",
    f"trtspec:generation_tokens_total{{{WHERE}}}": "0+1000x110",
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
VLLM = 'instance="v:8000",job="vllm",model_name="pair",engine="0"'
SGLANG = 'instance="s:30000",job="sglang",model_name="pair",engine_type="unified",tp_rank="0"'
HEALTHY |= {
    f"vllm:spec_decode_num_draft_tokens_total{{{VLLM}}}": "0+900x110",
    f"vllm:spec_decode_num_accepted_tokens_total{{{VLLM}}}": "0+700x110",
    f"sglang:spec_accept_rate{{{SGLANG}}}": "0.6x110",
    f"sglang:spec_accept_length{{{SGLANG}}}": "2.8x110",
    f"sglang:num_running_reqs{{{SGLANG}}}": "4x110",
    # One without drafts has these two gauges at 0.
    'sglang:spec_accept_rate{instance="p:30000",model_name="plain"}': "0x110",
    'sglang:spec_accept_length{instance="p:30000",model_name="plain"}': "0x110",
    'sglang:num_running_reqs{instance="p:30000",model_name="plain"}': "4x110",
}
ENGINES = 'spec_decode_num_accepted_tokens_total{%s,origin="engine"}'
VLLMS, SGLANGS = (
    f"vllm:spec_decode_num_accepted_tokens_total{{{VLLM}}}",
    f"sglang:spec_accept_rate{{{SGLANG}}}",
)
ON_ACCEPTANCE: dict[str, tuple[dict[str, str], ...]] = {
    "TrtspecAcceptancePerfect": (
        {ENGINES: "0+899x110"},
        {VLLMS: "0+899x110"},
        {SGLANGS: "1.0x110"},
    ),
    "TrtspecAcceptanceLost": (
        {ENGINES: "0+5x110", 'spec_decode_num_draft_tokens_total{%s,origin="lookup"}': "0+1x110"},
        {VLLMS: "0+5x110"},
        {SGLANGS: "0.01x110"},
    ),
    # The last 40 minutes are other than the hour before.
    "TrtspecAcceptanceHalved": (
        {ENGINES: "0+870x60 52620+420x50"},
        {VLLMS: "0+800x60 48300+300x50"},
        {SGLANGS: "0.8x60 0.3x50"},
    ),
}
TROUBLES: dict[str, dict[str, str]] = {
    **{name: by_server[0] for name, by_server in ON_ACCEPTANCE.items()},
    "TrtspecAcceptanceLow": {ENGINES: "0+350x110"},
    "TrtspecDraftAtRest": {"draft_available{%s}": "0x110"},
    "TrtspecDraftFails": {'fallbacks_total{%s,reason="draft_at_rest"}': "0+30x110"},
    "TrtspecDraftsDoNotPay": {
        'rounds_total{%s,num_draft_tokens="4"}': "0+1x110",
        'fallbacks_total{%s,reason="draft_failed"}': "0x110",
    },
    "TrtspecQueueFillsUp": {"trtspec:num_requests_waiting{%s}": "200x110"},
    "TrtspecRefuses": {'request_errors_total{%s,kind="refused"}': "0+60x110"},
    "TrtspecFrontRefuses": {'reason="too_many_requests"': "0+60x110"},
    "TrtspecKvCacheFull": {'kv_cache_usage_perc{%s,engine="target"}': "0.99x110"},
    "TrtspecFirstTokenSlow": {
        'bucket{%s,le="2.5"}': "0+80x110",
        'bucket{%s,le="5.0"}': "0+90x110",
    },
    "TrtspecGpuUseInBursts": {"nv_gpu_utilization": "0 1 " * 55},
    "TrtspecRolloutSlower": {'_sum{%s,arm="speculate"}': "0+0.22x110"},
    "TrtspecRolloutFileBroken": {"rollout_file_malformed": "1x110"},
    "TrtspecErrors": {'request_errors_total{%s,kind="engine_failure"}': "0+5x110"},
    "TrtspecStalls": {"generation_tokens_total{%s}": "1000x110"},
    "TrtspecDown": {"up{": "0x110"},
}


def rules() -> list[dict[str, Any]]:
    groups = yaml.safe_load(shipped("alerts.yaml"))["groups"]
    return [rule for group in groups for rule in group["rules"] if "alert" in rule]


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
        "SUCCESS: 19 rules found" in subprocess.run(line, check=True, capture_output=True, text=True).stdout
    )


def test_a_healthy_server_is_left_alone(rule_file: Path) -> None:
    assert fires(rule_file, {}) == set()


def test_an_engines_own_model_tells_that_its_kv_cache_is_full(rule_file: Path) -> None:
    assert fires(rule_file, {"nv_trt_llm_kv_cache_block_metrics": "0.99x110"}) == {"TrtspecKvCacheFull"}


@pytest.mark.parametrize("name", TROUBLES)
def test_a_trouble_has_its_alert_alone(rule_file: Path, name: str) -> None:
    assert fires(rule_file, TROUBLES[name]) == {name}


@pytest.mark.parametrize(
    ("name", "changed"),
    [(name, changed) for name, by_server in ON_ACCEPTANCE.items() for changed in by_server[1:]],
)
def test_vllm_and_sglang_have_the_alerts_on_acceptance_too(
    rule_file: Path, name: str, changed: dict[str, str]
) -> None:
    assert fires(rule_file, changed) == {name}


@pytest.mark.parametrize(
    "changed",
    [
        # A lookup that is always right copies, and one that is never right costs nothing to speak of.
        {'accepted_tokens_total{%s,origin="lookup"}': "0+100x110"},
        {'accepted_tokens_total{%s,origin="lookup"}': "0x110"},
        # A few tokens tell nothing.
        {VLLMS: "0+20x110", f"vllm:spec_decode_num_draft_tokens_total{{{VLLM}}}": "0+20x110"},
        # SGLang's gauges keep their last value.
        {SGLANGS: "1.0x110", f"sglang:num_running_reqs{{{SGLANG}}}": "0x110"},
        # A share that falls, but by less than half.
        {VLLMS: "0+800x60 48450+450x50"},
    ],
)
def test_ordinary_acceptance_raises_no_alert(rule_file: Path, changed: dict[str, str]) -> None:
    assert fires(rule_file, changed) == set()


def test_a_roll_out_goes_back_at_the_bounds_of_the_alerts() -> None:
    found = {rule["alert"]: rule["expr"] for rule in rules()}
    assert found["TrtspecAcceptancePerfect"].endswith(f"> {MOST_ACCEPTANCE}")
    assert f"< {LEAST_OF_USUAL} * " in found["TrtspecAcceptanceHalved"]


def test_every_rule_is_tried_and_says_what_to_do() -> None:
    assert [rule["alert"] for rule in rules()] == list(TROUBLES)
    for rule in rules():
        assert rule["labels"]["severity"] in ("info", "warning", "critical")
        is_on_acceptance = {"runbook"} if rule["alert"] in ON_ACCEPTANCE else set()
        assert set(rule["annotations"]) == {"summary", "description"} | is_on_acceptance


def test_the_names_of_others_are_those_of_their_sources() -> None:
    """vllm/v1/spec_decode/metrics.py of 0.32, sglang/srt/observability/metrics_collector.py of 0.5.23.

    A counter of prometheus_client ends in _total.
    """
    read = set(re.findall(r"\b(?:vllm|sglang):\w+", shipped("alerts.yaml")))
    assert read == {
        "vllm:spec_decode_num_draft_tokens_total",
        "vllm:spec_decode_num_accepted_tokens_total",
        "sglang:spec_accept_rate",
        "sglang:spec_accept_length",
        "sglang:num_running_reqs",
    }


def test_every_metric_of_the_rules_is_ours_or_tritons() -> None:
    """Whether a server exports them is for tests/e2e/test_watched.py to say."""
    read = set().union(*(names(rule["expr"]) for rule in rules()))
    assert len(read) > 12
    assert read - {"nv_gpu_utilization"} <= {*FAMILIES, f"{NAME}_total"}
