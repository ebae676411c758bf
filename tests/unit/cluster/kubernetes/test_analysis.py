"""What Argo Rollouts is given to judge a new build: Argo's schemas take it, and promtool its queries."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support import helm
from tests.support.prometheus import judged
from tests.support.promql import names
from tests.unit.cluster.kubernetes.builds import ROOT
from tests.unit.cluster.kubernetes.rendered import CHART
from tests.unit.cluster.kubernetes.schemas import check
from trtspec.serving.metrics import FAMILIES

BOUNDS = {"prometheus": "http://p:9090", "acceptance": 0.4, "firstTokenSeconds": 5, "errors": 0.01}
ARGO = ("--api-versions", "argoproj.io/v1alpha1/AnalysisTemplate")
NEW, OLD = (f'namespace="serving",pod="llama-{each}-x7k2p",model="m"' for each in ("6cf78c66c5", "5d9f6b7c4"))


def by_helm(*options: str, bounds: dict[str, Any] = BOUNDS) -> list[dict[str, Any]]:
    given = ("--namespace", "serving", "--set-json", f"analysis={json.dumps(bounds)}")
    made = helm.objects(helm.run("helm", "template", "llama", CHART, *given, *options))
    return [each for each in made if each["kind"] == "AnalysisTemplate"]


@pytest.fixture(scope="module")
def metrics() -> dict[str, dict[str, Any]]:
    (template,) = by_helm(*ARGO)
    return {each["name"]: each for each in template["spec"]["metrics"]}


def test_argo_takes_the_template_whole() -> None:
    (template,) = by_helm(*ARGO)
    check(template)
    assert template["spec"]["args"] == [{"name": "latest-hash"}]


def test_a_cluster_without_argo_and_a_chart_without_bounds_have_none() -> None:
    assert by_helm() == []
    (left,) = by_helm(*ARGO, bounds={**BOUNDS, "acceptance": None})
    assert [each["name"] for each in left["spec"]["metrics"]] == ["first-token", "errors"]


def test_servers_without_our_metrics_are_not_judged() -> None:
    given = f"analysis={json.dumps(BOUNDS)},kserve=true"
    said = helm.run("helm", "template", "llama", CHART, "--set-json", given, fails=True)
    assert "an analysis reads the metrics of a Deployment of engines" in said


def test_a_query_that_reads_no_metric_of_ours_is_found(metrics: dict[str, dict[str, Any]]) -> None:
    read = set().union(*(names(each["provider"]["prometheus"]["query"]) for each in metrics.values()))
    assert len(read) == 5
    assert read <= {*FAMILIES}


def served(labels: str, accepted: int, fast: int, failed: int, cancelled: int = 50) -> dict[str, str]:
    """What the pods of a build add in a minute, of 1000 draft tokens and 100 requests."""
    first = "trtspec:time_to_first_token_seconds_bucket"
    return {
        f'trtspec:spec_decode_num_draft_tokens_total{{{labels},origin="engine"}}': "0+1000x20",
        f'trtspec:spec_decode_num_accepted_tokens_total{{{labels},origin="engine"}}': f"0+{accepted}x20",
        f'{first}{{{labels},le="5.0"}}': f"0+{fast}x20",
        f'{first}{{{labels},le="10.0"}}': "0+100x20",
        f'{first}{{{labels},le="+Inf"}}': "0+100x20",
        f'trtspec:request_errors_total{{{labels},kind="engine_failure"}}': f"0+{failed}x20",
        f'trtspec:request_errors_total{{{labels},kind="cancelled"}}': f"0+{cancelled}x20",
        f'trtspec:request_success_total{{{labels},finished_reason="stop"}}': f"0+{100 - failed}x20",
    }


GOOD = served(NEW, 700, 100, 0)
BAD = served(OLD, 0, 0, 100)


@pytest.mark.parametrize(
    ("series", "name", "value"),
    [
        (GOOD, "acceptance", 0.7),
        (GOOD, "first-token", 4.75),
        (GOOD, "errors", 0.0),
        (served(NEW, 300, 100, 0), "acceptance", 0.3),
        (served(NEW, 700, 90, 0), "first-token", 7.5),
        (served(NEW, 700, 100, 50, 0), "errors", 0.5),
        # Nothing came to the new build, or it has not told anything yet.
        (served(NEW, 0, 0, 0, 0) | dict.fromkeys(GOOD, "0x20"), "errors", None),
        (dict.fromkeys(GOOD, "0x20"), "acceptance", None),
        (dict.fromkeys(GOOD, "0x20"), "first-token", None),
        ({}, "acceptance", None),
        ({}, "first-token", None),
        ({}, "errors", None),
    ],
)
def test_a_new_build_is_judged_by_its_own_pods(
    metrics: dict[str, dict[str, Any]],
    tmp_path: Path,
    series: dict[str, str],
    name: str,
    value: float | None,
) -> None:
    """The old build beside it is as bad as can be. `value` is None where nothing may be concluded."""
    metric = metrics[name]
    query = metric["provider"]["prometheus"]["query"].replace("{{args.latest-hash}}", "6cf78c66c5")
    rules = tmp_path / "analysis.yaml"
    rules.write_text(yaml.safe_dump({"groups": [{"name": "a", "rules": [{"record": "b", "expr": query}]}]}))
    # Not a number is equal to nothing, so such a sample is none here.
    expected = [] if value is None else [{"labels": "{}", "value": value}]
    rounded = f"round({query}, 0.0001)"
    test = {"expr": f"{rounded} == {rounded}", "eval_time": "15m", "exp_samples": expected}
    said = judged(rules, series | BAD, {"promql_expr_test": [test]})
    assert said.returncode == 0, said.stdout + said.stderr
    outcomes = {kind: holds(metric[f"{kind}Condition"], value) for kind in ("success", "failure")}
    bound = {"acceptance": 0.4, "first-token": 5, "errors": 0.01}[name]
    is_good = value is not None and (value >= bound if name == "acceptance" else value <= bound)
    assert outcomes == {"success": is_good, "failure": value is not None and not is_good}


def holds(condition: str, value: float | None) -> bool:
    """What a condition says of what Prometheus answers; both may be an empty answer or not a number."""
    answers = [[value]] if value is not None else [[], [float("nan")]]
    (found,) = {eval(condition.replace("&&", "and"), {"len": len, "result": answer}) for answer in answers}
    return bool(found)


def test_the_objects_of_the_guide_are_argos_and_the_charts(tmp_path: Path) -> None:
    page = (ROOT / "docs/how-to/canary.md").read_text(encoding="utf-8")
    blocks = re.findall(r"^```yaml\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    values, rollout = map(yaml.safe_load, blocks)
    check(rollout)
    file = tmp_path / "ours.yaml"
    file.write_text(yaml.safe_dump(values))
    made = helm.objects(
        helm.run("helm", "template", "llama", CHART, "--namespace", "serving", *ARGO, "--values", file)
    )
    found = {each["kind"]: each for each in made}
    spec = rollout["spec"]
    assert found["Deployment"]["spec"]["replicas"] == 0
    assert spec["workloadRef"]["name"] == found["Deployment"]["metadata"]["name"]
    labels = found["Deployment"]["spec"]["template"]["metadata"]["labels"]
    assert spec["selector"]["matchLabels"].items() <= labels.items()
    assert found["Service"]["spec"]["selector"].items() <= labels.items()
    steps = [step["analysis"] for step in spec["strategy"]["canary"]["steps"] if "analysis" in step]
    assert {each["templateName"] for step in steps for each in step["templates"]} == {
        found["AnalysisTemplate"]["metadata"]["name"]
    }
    assert {each["name"] for step in steps for each in step["args"]} == {"latest-hash"}
