"""A running server seen from outside: metrics, Prometheus, logs, traces, `trtspec top`."""

from __future__ import annotations

import http.client
import http.server
import json
import re
import shutil
import subprocess
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import openai
import pytest
import yaml

from tests.e2e.conftest import DEADLINE_S, ENDLESS, TRTSPEC, Deploy, Deployer, Until, at_work, wait_until
from tests.e2e.openai_requests import ask
from tests.support.ports import free_port
from tests.support.prometheus import Prometheus
from tests.support.promql import names
from trtspec.base.errors import ServerError
from trtspec.cli.monitoring import shipped
from trtspec.client.scrape import parse
from trtspec.deployment.figures import quantile
from trtspec.gateway.client_bounds import MAX_BODY
from trtspec.gateway.refusals import Refusal

# In the bls layout the models of the engines say how full a KV cache is; the rest is the same there.
pytestmark = pytest.mark.parametrize("tiny_recipe", ["in_process"], indirect=True)
TRACE = "0af7651916cd43dd8448eb211c80319c"
ON_GPUS = {"nv_gpu_utilization"}
"""What Triton exports where there is a GPU (`docs/user_guide/metrics.md` of the server)."""
IN_BLS = {"nv_trt_llm_kv_cache_block_metrics"}
"""What is read of the models of engines; in one process with them, the coordinator says it."""
IN_ROLLOUTS = {f"trtspec:rollout_time_per_output_token_seconds_{part}" for part in ("sum", "count")}
"""What is told of an arm of a roll-out once it has had a request."""
PROMPTS = [f"def f{number}(" for number in range(4)]


class Collector(http.server.ThreadingHTTPServer):
    """Takes in what OpenTelemetry's exporters send."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Post)
        self.heard = b""


class _Post(http.server.BaseHTTPRequestHandler):
    server: Collector

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.server.heard += body
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_: object) -> None: ...


@dataclass(frozen=True)
class Watched:
    deploy: Deploy
    collector: Collector
    log: Path

    def lines(self) -> list[dict[str, Any]]:
        """What the log says in JSON."""
        found = [line for line in self.log.read_text().splitlines() if line.startswith("{")]
        return [json.loads(line) for line in found]


@pytest.fixture(scope="module")
def watched(
    tiny_recipe: Path, tiny_build: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Watched]:
    folder = tmp_path_factory.mktemp("watched")
    shutil.copytree(tiny_build, folder / "build", ignore=shutil.ignore_patterns("tritonserver.log"))
    deployer = Deployer(folder)
    with Collector() as collector:
        threading.Thread(target=collector.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{collector.server_port}/v1/traces"
        tracing = ("mode=opentelemetry", "level=TIMESTAMPS", "rate=1", f"opentelemetry,url={url}")
        options = [
            f"--trace-config={option}" for option in (*tracing, "opentelemetry,bsp_schedule_delay=100")
        ]
        try:
            deploy = deployer(
                folder / "build", "--log-format", "json", *options, recipe=tiny_recipe, with_api=True
            )
            wait_until(lambda: deploy.is_ready, "the server ready")
            yield Watched(deploy, collector, folder / "build" / "tritonserver.log")
            assert deploy.stop() == 0
        finally:
            deployer.end_all()
            collector.shutdown()


def expressions(document: Any) -> Iterator[str]:
    """Every `expr` and every query of a variable, however deep."""
    if isinstance(document, dict):
        for key, value in document.items():
            if key in ("expr", "definition") and isinstance(value, str):
                yield value
            else:
                yield from expressions(value)
    if isinstance(document, list):
        for each in document:
            yield from expressions(each)


@pytest.mark.parametrize(
    "document",
    [json.loads(shipped("dashboard.json")), yaml.safe_load(shipped("alerts.yaml"))],
    ids=["Grafana", "alerts"],
)
def test_dashboard_and_alerts_read_only_metrics_that_a_server_exports(
    watched: Watched, document: Any, until: Until
) -> None:
    read = set().union(*map(names, expressions(document)))
    assert len(read) > 10
    watched.deploy.generate(PROMPTS[0], max_tokens=20, num_draft_tokens=4)

    def exported() -> set[str]:
        _, text = watched.deploy.request("GET", "/metrics", port=2)
        return {name for name, _, _ in parse(text, 0).rows}

    until(lambda: "trtspec:rounds" in exported(), "the counters of the answer")
    assert read - exported() <= ON_GPUS | IN_ROLLOUTS


def test_requests_refused_before_the_model_are_counted_by_api_and_reason(watched: Watched) -> None:
    deploy, path = watched.deploy, f"/v2/models/{watched.deploy.model}/generate"

    def refused() -> dict[tuple[str, str], float]:
        _, text = deploy.request("GET", "/metrics", port=2)
        rows = list(parse(text, 0).of("trtspec:front_refusals", model=deploy.model))
        assert len(rows) == 2 * len(Refusal)
        return {(labels["api"], labels["reason"]): number for labels, number in rows if number}

    before, failed = refused(), deploy.metric("request_errors")
    # The body of a refused request is not read, so a client that goes on sending may be cut off.
    with closing(http.client.HTTPConnection("127.0.0.1", deploy.ports[0], timeout=DEADLINE_S)) as connection:
        connection.putrequest("POST", path)
        connection.putheader("Content-Length", str(MAX_BODY + 1))
        connection.endheaders()
        assert connection.getresponse().status == 413
    for body in (b"[" * 2000, b"no JSON", b'{"text_input": "a", "max_tokens": "two"}'):
        deploy.request("POST", path, body)
    deploy.request("POST", "/v2/logging", b"{}")
    assert deploy.request("GET", "/v2/logging")[0] == 403
    for route, body in (("/v1/completions", b"no JSON"), ("/v1/chats", b"{}"), ("/v1/chats", b"{}")):
        assert ask(deploy.api_port, route, body)[0] in (400, 404)
    assert ask(deploy.api_port, "/v1/chats", None, "GET")[0] == 404

    found = {key: number - before.get(key, 0) for key, number in refused().items()}
    assert found == {
        ("triton", "body_too_large"): 1,
        ("triton", "invalid_request"): 3,
        ("triton", "unauthorized"): 1,
        ("openai", "invalid_request"): 3,
    }
    assert deploy.metric("request_errors") == failed


def test_requests_refused_by_the_model_are_counted_over_each_api(watched: Watched, until: Until) -> None:
    deploy, client = watched.deploy, watched.deploy.client()

    def refused() -> tuple[float, float]:
        kind = "invalid_request"
        return deploy.metric("request_errors", kind=kind), deploy.metric("front_refusals", reason=kind)

    errors, others = refused()
    assert deploy.post({"text_input": "a", "max_tokens": 0})[0] == 400
    assert deploy.post({"text_input": "a", "max_tokens": 0, "stream": True}, "generate_stream")[0] == 400
    with pytest.raises(ServerError, match="max_tokens is 0"):
        list(client.generate({"text_input": "a", "max_tokens": 0}))
    client.close()
    until(lambda: refused() == (errors + 3, others), "three refusals of the model's")


def test_the_endpoint_picker_finds_its_three_gauges(watched: Watched, until: Until) -> None:
    """The names by which it reads servers of the type triton-tensorrt-llm (its `core-metrics-extractor`)."""

    def gauges() -> dict[str, float]:
        _, text = watched.deploy.request("GET", "/metrics", port=2)
        rows = re.findall(r'^nv_trt_llm_\w+{.*_type="(\w+)".*} (\S+)$', text, re.MULTILINE)
        return {kind: float(value) for kind, value in rows}

    with at_work(watched.deploy, *PROMPTS):
        found = until(
            lambda: (now := gauges())["scheduled"] == 4 and now["fraction"] > 0 and now, "all at work"
        )
    assert set(found) == {"waiting", "scheduled", "fraction"}
    assert 0 < found["fraction"] < 1
    until(lambda: gauges() == {"waiting": 0, "scheduled": 0, "fraction": 0}, "an idle server")


def test_each_request_is_a_line_of_json(watched: Watched, until: Until) -> None:
    path = f"/v2/models/{watched.deploy.model}/generate"
    body = {"text_input": "a secret prompt", "max_tokens": 8, "end_id": -1}
    headers = {"X-Request-Id": "from-a-header"}
    assert _post(watched.deploy, path, body, headers) == 200
    assert _post(watched.deploy, path, {**body, "id": "from-the-body"}, headers) == 200
    assert _post(watched.deploy, path, {**body, "id": "wrong", "max_tokens": 0}) == 400
    with closing(watched.deploy.client()) as client:
        for _ in client.generate({"text_input": "a secret prompt", "max_tokens": 8}):
            pass

    def ended() -> dict[str, dict[str, Any]]:
        return {
            line["request_id"]: line for line in watched.lines() if line["message"] == "a request is over"
        }

    found = until(
        lambda: (now := ended()).keys() >= {"from-a-header", "from-the-body", "wrong"} and now, "lines"
    )
    assert found["wrong"]["outcome"] == "invalid_request"
    assert found["from-a-header"]["outcome"] == "length"
    assert found["from-the-body"]["num_output_tokens"] == 8
    assert "secret" not in watched.log.read_text()


def test_openais_answer_and_the_log_have_one_name(watched: Watched, until: Until) -> None:
    port, names = watched.deploy.api_port, dict[str, str]()
    good = {"model": watched.deploy.model, "prompt": "a secret prompt", "max_tokens": 2, "ignore_eos": True}
    too_long = {**good, "prompt": "a secret prompt " * ENDLESS}
    for outcome, status, body in (
        ("length", 200, good),
        ("invalid_request", 400, too_long),
        ("invalid_request", 400, {**too_long, "stream": True}),
    ):
        found, headers, _ = ask(port, "/v1/completions", json.dumps(body).encode())
        assert found == status
        names[headers["x-request-id"]] = outcome

    def ended() -> dict[str, str]:
        over = [line for line in watched.lines() if line["message"] == "a request is over"]
        return {line["request_id"]: line["outcome"] for line in over}

    until(lambda: names.items() <= ended().items(), "lines")
    assert len(names) == 3


def test_a_clients_trace_goes_on_in_triton(watched: Watched, until: Until) -> None:
    headers = {"traceparent": f"00-{TRACE}-b7ad6b7169203331-01"}
    body = {"text_input": PROMPTS[0], "max_tokens": 8}
    assert _post(watched.deploy, f"/v2/models/{watched.deploy.model}/generate", body, headers) == 200
    until(lambda: TRACE.encode() in watched.collector.heard, "the spans of the trace")
    assert b"COMPUTE" in watched.collector.heard


def test_a_trace_of_openais_client_goes_on_in_triton(watched: Watched, until: Until) -> None:
    trace = TRACE[::-1]
    with openai.OpenAI(base_url=watched.deploy.api, api_key="none") as client:
        client.completions.create(
            model=watched.deploy.model,
            prompt=PROMPTS[0],
            max_tokens=4,
            extra_headers={"traceparent": f"00-{trace}-b7ad6b7169203331-01"},
        )
    until(lambda: trace.encode() in watched.collector.heard, "the spans of the trace")


def test_prometheus_alarms_when_acceptance_falls(watched: Watched, until: Until, tmp_path: Path) -> None:
    """The rules as they are shipped but for their times, and a bound that the tiny pair crosses."""
    rules = re.sub(r"\[\d+m\]", "[5s]", re.sub(r"for: \w+", "for: 1s", shipped("alerts.yaml"))).replace(
        "< 0.4", "< 0.55"
    )
    prometheus = Prometheus(tmp_path, f"127.0.0.1:{watched.deploy.ports[2]}", free_port(), rules)
    acceptance = "sum(rate(trtspec:spec_decode_num_accepted_tokens[5s]))"
    acceptance += " / sum(rate(trtspec:spec_decode_num_draft_tokens[5s]))"

    def until_under_load(happens: Callable[[], object], what: str, **values: Any) -> None:
        is_over = threading.Event()

        def ask(prompt: str) -> None:
            while not is_over.is_set():
                watched.deploy.generate(prompt, max_tokens=100, end_id=-1, num_draft_tokens=4, **values)

        with ThreadPoolExecutor(2) as pool:
            asked = [pool.submit(ask, prompt) for prompt in PROMPTS[:2]]
            try:
                until(lambda: bool(happens()), what)
            finally:
                is_over.set()
            for each in asked:
                each.result()

    try:
        until_under_load(lambda: (prometheus.value(acceptance) or 0) > 0.55, "a good acceptance")
        assert "TrtspecAcceptanceLow" not in prometheus.firing()
        until_under_load(
            lambda: "TrtspecAcceptanceLow" in prometheus.firing(), "the alarm", temperature=1.5, seed=1
        )
        groups = prometheus.get("rules")["groups"]
        assert {rule["health"] for group in groups for rule in group["rules"]} == {"ok"}
        _check_panels(prometheus, f"127.0.0.1:{watched.deploy.ports[2]}")
        until(lambda: watched.deploy.metric("num_requests_running") == 0, "an idle server")
        ended = watched.deploy.metric("request_success")
        until(lambda: watched.deploy.metric("e2e_request_latency_seconds_count") == ended, "all histograms")
        for name in ("time_to_first_token_seconds", "inter_token_latency_seconds"):
            _same_quantiles(prometheus, watched.deploy, f"trtspec:{name}", until)
    finally:
        prometheus.end()


def _check_panels(prometheus: Prometheus, instance: str) -> None:
    """Prometheus answers each query of the dashboard, with values where there are any."""
    variables = {"$model": "speculative_llm", "$instance": instance, "$__rate_interval": "10s"}
    for panel in json.loads(shipped("dashboard.json"))["panels"]:
        for target in panel.get("targets", ()):
            query = target["expr"]
            for name, value in variables.items():
                query = query.replace(name, value)
            found = prometheus.get("query", query=query)
            assert found is not None, query
            may_be_empty = (
                names(query) <= ON_GPUS | IN_ROLLOUTS or names(query) & IN_BLS or query.endswith("> 0")
            )
            assert found["result"] or may_be_empty, query


def _same_quantiles(prometheus: Prometheus, deploy: Deploy, name: str, until: Until) -> None:
    """Prometheus reads a histogram, and ours of it are its quantiles."""
    _, text = deploy.request("GET", "/metrics", port=2)
    buckets = sorted((float(labels["le"]), value) for labels, value in parse(text, 0).of(f"{name}_bucket"))
    until(lambda: prometheus.value(f"{name}_count") == buckets[-1][1], "the last scrape")
    for share in (0.5, 0.95):
        theirs = prometheus.value(f"histogram_quantile({share}, {name}_bucket)")
        assert theirs == pytest.approx(quantile(share, buckets), rel=1e-6)
        assert theirs is not None
        assert 0 < theirs < 60


def test_top_shows_what_runs(watched: Watched) -> None:
    with at_work(watched.deploy, *PROMPTS[:2], num_draft_tokens=4):
        url = f"http://127.0.0.1:{watched.deploy.ports[2]}/metrics"
        line = [str(TRTSPEC), "top", "--once", "--json", "--url", url, "--interval", "5"]
        said = json.loads(subprocess.run(line, check=True, capture_output=True).stdout)
    assert (said["model"], said["places"], said["draft_available"]) == (watched.deploy.model, 16, True)
    assert said["tokens_per_second"] > 10
    assert 0 < said["acceptance"] <= 1
    assert 3 < said["mean_k"] <= 4


def _post(deploy: Deploy, path: str, body: dict[str, Any], headers: dict[str, str] | None = None) -> int:
    with closing(http.client.HTTPConnection("127.0.0.1", deploy.ports[0], timeout=DEADLINE_S)) as connection:
        connection.request("POST", path, json.dumps(body), headers or {})
        answer = connection.getresponse()
        answer.read()
        return answer.status
