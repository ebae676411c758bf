"""A pod's life as the rendered manifest says: pulled from S3, verified, served, probed, killed, drained."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from dataclasses import dataclass, field
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.e2e.conftest import DEADLINE_S, RECIPE, TINY, TRTSPEC, Until, wait_until
from tests.fakes.kubelet import Pod, needs_sandbox
from tests.support import helm, s3
from tests.support.ports import free_port
from tests.support.processes import command_line
from tests.support.prometheus import Prometheus
from trtspec.client.scrape import parse

pytestmark = pytest.mark.sweep

NODE = "/var/lib/trtspec"
SECTION = f"""
kubernetes:
  image: registry.example/trtspec:0.1.0-torch
  namespace: llm
  cache: {{kind: host_path, path: {NODE}}}
  secrets: {{store: engines}}
  autoscaling: {{by: keda, max_replicas: 4, prometheus: "http://prometheus:9090"}}
"""
STREAMS = 64
PATH = "/v2/models/speculative_llm/generate_stream"


@dataclass
class Cluster:
    """What `trtspec kubernetes deploy --dry-run` prints for a build in S3, and a node for its pods."""

    documents: list[dict[str, Any]]
    secrets: dict[str, dict[str, str]]
    node: Path
    folder: Path
    number: int = field(default_factory=free_port)
    pods: list[Pod] = field(default_factory=list)

    def of(self, kind: str) -> list[dict[str, Any]]:
        return [document for document in self.documents if document["kind"] == kind]

    def pod(self) -> Pod:
        number = len(self.pods) + 1
        folder = self.folder / f"pod-{number}"
        folder.mkdir()
        # No other test has the port, nor then the addresses that have its number.
        high, low = divmod(self.number, 256)
        pod = Pod(self.documents, self.secrets, self.node, f"127.{high}.{low}.{number}", folder)
        self.pods.append(pod)
        return pod


@dataclass
class End:
    """How a streamed request ended; `status` is 0 where nobody answered.

    What breaks off, or ends in an error, has no reason to finish.
    """

    status: int = 0
    retry_after: str | None = None
    finish_reason: str | None = None

    @property
    def is_whole(self) -> bool:
        return self.finish_reason == "length"


def _stream(pod: Pod, number: int, tokens: int) -> End:
    end = End()
    body = {"text_input": f"def f{number}(", "max_tokens": tokens, "end_id": -1, "stream": True}
    line = HTTPConnection(pod.address, pod.ports["http"], timeout=DEADLINE_S)
    with closing(line), suppress(OSError, HTTPException):
        line.request("POST", PATH, json.dumps(body))
        answer = line.getresponse()
        end.status, end.retry_after = answer.status, answer.headers["Retry-After"]
        events = answer.read().decode().split("\n\n")
        if end.status == 200:
            said = [json.loads(event.removeprefix("data: ")) for event in events if event]
            end.finish_reason = said[-1].get("finish_reason")
    return end


def _gauge(pod: Pod, name: str) -> float:
    with closing(HTTPConnection(pod.address, pod.ports["metrics"], timeout=DEADLINE_S)) as line:
        line.request("GET", "/metrics")
        return parse(line.getresponse().read().decode(), 0).total(f"trtspec:{name}")


def _engines(pod: Pod) -> int:
    """The process of the model, which has the engines in it."""
    assert pod.server is not None
    (triton,) = [pid for pid in _below(pod.server.pid) if "tritonserver" in command_line(pid)[0]]
    children = map(int, Path(f"/proc/{triton}/task/{triton}/children").read_text().split())
    (found,) = [pid for pid in children if "triton_python_backend_stub" in command_line(pid)[0]]
    return found


def _below(pid: int) -> list[int]:
    """The processes that a process has begun, and those that these have."""
    found = []
    for file in Path(f"/proc/{pid}/task").glob("*/children"):
        for child in map(int, file.read_text().split()):
            found += [child, *_below(child)]
    return found


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    needs_sandbox()
    folder = tmp_path_factory.mktemp("cluster")
    recipe, node = folder / "recipe.yaml", folder / "node"
    text = RECIPE.read_text()
    for role in ("target", "draft"):
        text = text.replace(f"./{role}", str(TINY / role))
    recipe.write_text(text + SECTION)
    (node / NODE.lstrip("/")).mkdir(parents=True)
    with s3.serve() as server:
        secret, url = s3.credentials(server), s3.new_bucket(server)
        environment = {**os.environ, **secret, "OMP_NUM_THREADS": "1", "PATH": helm.path()}

        def run(*words: str) -> str:
            line = [str(TRTSPEC), *words]
            return subprocess.run(line, env=environment, check=True, capture_output=True, text=True).stdout

        run("build", str(recipe), "--output", str(folder / "build"), "--store", url)
        said = run("kubernetes", "deploy", str(recipe), "--store", url, "--dry-run")
        cluster = Cluster(list(yaml.safe_load_all(said)), {"engines": secret}, node, folder)
        try:
            yield cluster
        finally:
            for pod in cluster.pods:
                pod.close()


@pytest.fixture(scope="module")
def pod(cluster: Cluster) -> Pod:
    pod = cluster.pod()
    pod.start()
    _wait_until_ready(pod)
    return pod


def _wait_until_ready(pod: Pod) -> None:
    def ready() -> bool:
        assert pod.failed is None, pod.failed
        assert pod.restarts < 3, pod.log.read_text()
        return pod.is_ready

    wait_until(ready, "the pod ready")


def test_two_pods_of_a_node_pull_once(cluster: Cluster, pod: Pod) -> None:
    other = cluster.pod()
    (pull,) = other.spec["initContainers"]
    folder = Path(cluster.node, NODE.lstrip("/"), *Path(pull["args"][-2]).parts[2:])
    made = folder.stat().st_ino
    assert other.run_to_its_end(pull) == 0
    said = (other.folder / "pull.log").read_text()
    assert "verify /engines/" in said
    assert "pull tiny" not in said
    assert folder.stat().st_ino == made
    assert {path.name for path in folder.parent.iterdir()} == {folder.name, f".{folder.name}.json"}


def test_probes_tell_of_a_ready_server_and_its_logs_are_json(pod: Pod) -> None:
    assert [pod.probe(name).status() for name in ("startup", "readiness", "liveness")] == [200] * 3
    lines = [json.loads(line) for line in pod.log.read_text().splitlines()]
    assert {"trtspec", "tritonserver"} <= {line["logger"] for line in lines}
    assert all(line.keys() >= {"time", "level", "logger", "message"} for line in lines)
    assert "speculative_llm is ready" in [line["message"] for line in lines]


def test_the_metrics_of_the_autoscaler_rise_and_fall_with_the_load(
    cluster: Cluster, pod: Pod, tmp_path: Path, until: Until
) -> None:
    """The manifests' rules and queries; the labels are those that the PodMonitor's operator gives."""
    (rules,) = cluster.of("PrometheusRule")
    (monitor,) = cluster.of("PodMonitor")
    (endpoint,) = monitor["spec"]["podMetricsEndpoints"]
    (job,) = endpoint["relabelings"]
    target = f"{pod.address}:{pod.ports[endpoint['port']]}"
    labels = {"namespace": "llm", "pod": "tiny-1", job["targetLabel"]: job["replacement"]}
    prometheus = Prometheus(tmp_path, target, free_port(), json.dumps(rules["spec"]), labels)
    (scaler,) = cluster.of("ScaledObject")
    asked = [trigger["metadata"] for trigger in scaler["spec"]["triggers"]]
    requests, kv = (each["query"] for each in asked)
    bound = float(asked[0]["threshold"])
    try:
        until(lambda: prometheus.value(requests) == 0, "an idle server seen")
        with ThreadPoolExecutor(STREAMS) as pool:
            answers = [pool.submit(_stream, pod, number, 60) for number in range(STREAMS)]
            until(lambda: (prometheus.value(requests) or 0) > 2 * bound, "more than two servers wanted")
            until(lambda: (prometheus.value(kv) or 0) > 0, "texts in the KV cache")
            ends = [each.result() for each in answers]
        assert [end.status for end in ends] == [200] * STREAMS
        until(lambda: prometheus.value(requests) == 0, "an idle server again")
        groups = prometheus.get("rules")["groups"]
        assert {rule["health"] for group in groups for rule in group["rules"]} == {"ok"}
    finally:
        prometheus.end()


def test_an_engine_that_is_killed_is_noticed_and_the_container_started_again(pod: Pod, until: Until) -> None:
    assert pod.server
    restarts, server = pod.restarts, pod.server
    liveness = pod.probe("liveness")
    os.kill(_engines(pod), signal.SIGKILL)

    until(lambda: liveness.status() != 200, "no word of life")
    assert pod.probe("readiness").status() != 200
    until(lambda: pod.restarts > restarts, "another container")
    assert server.process.returncode == 1
    assert "was killed by SIGKILL" in pod.log.read_text()
    _wait_until_ready(pod)
    assert _stream(pod, 0, 20).is_whole
    # What the first container left in memory is gone: of each PID there was one server.
    shared = [path.name for path in pod.volumes["shared-memory"].iterdir() if path.name.endswith("_lock")]
    assert len(shared) == 1


def test_no_request_is_lost_when_the_pod_ends(pod: Pod, until: Until) -> None:
    is_over, ends = threading.Event(), list[End]()

    def ask(number: int) -> None:
        while not is_over.is_set():
            end = _stream(pod, number, 40)
            ends.append(end)
            if end.status != 200:
                is_over.wait(0.1)

    def ask_openai() -> tuple[int, str | None]:
        """How OpenAI's API refuses who should connect again, and so come to another pod."""
        while not is_over.is_set():
            with closing(HTTPConnection(pod.address, pod.ports["openai"], timeout=DEADLINE_S)) as line:
                body = json.dumps({"model": "speculative_llm", "prompt": "a", "max_tokens": 1})
                line.request("POST", "/v1/completions", body, {"Content-Type": "application/json"})
                answer = line.getresponse()
                if answer.headers["Connection"] == "close":
                    assert pod.probe("readiness").status() != 200
                    return answer.status, answer.headers["Retry-After"]
        raise AssertionError("never refused so")

    with ThreadPoolExecutor(STREAMS + 1) as pool:
        refusal = pool.submit(ask_openai)
        asked = [pool.submit(ask, number) for number in range(STREAMS)]
        until(lambda: _gauge(pod, "num_requests_running") == 16, "all places taken")
        status, seconds = pod.terminate()
        is_over.set()
        for each in asked:
            each.result()

    said = pod.log.read_text()
    assert status == 0, said
    assert seconds < pod.spec["terminationGracePeriodSeconds"]
    assert json.loads(said.splitlines()[-1])["message"] == "stopped"
    served = [end for end in ends if end.status == 200]
    refused = [end for end in ends if end.status == 503]
    assert len(served) >= STREAMS
    assert all(end.is_whole for end in served), [end for end in served if not end.is_whole][:3]
    assert refused
    assert refusal.result() == (503, "1")
    assert all(end.retry_after == "1" for end in refused)
    # By the time that nobody listens, nobody is served.
    assert len(served) + len(refused) + sum(end.status == 0 for end in ends) == len(ends)
    assert list(pod.volumes["shared-memory"].iterdir()) == []
