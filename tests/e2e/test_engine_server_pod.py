"""A pod of another engine's server as the rendered manifest says: probed, asked with its key, and drained.

A stand-in for vLLM's server is in place of its image.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterator
from contextlib import closing
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.e2e.conftest import DEADLINE_S, Until
from tests.fakes.kubelet import Pod, needs_sandbox
from tests.support import helm
from tests.support.command_line import trtspec
from tests.support.servers_of_others import write_launch
from trtspec.backends.launch import ServerLaunch

RECIPE = """
name: pair
target: {model: Qwen/Qwen3-32B}
draft: {model: Qwen/Qwen3-0.6B}
engine: {backend: vllm}
hardware: {gpu: h100}
kubernetes: {namespace: llm, secrets: {api_keys: keys, hub: hub}}
"""
SECRETS = {"keys": {"keys": "the-key"}, "hub": {"HF_TOKEN": "hf_secret"}}


@pytest.fixture
def pod(tmp_path: Path, until: Until, monkeypatch: pytest.MonkeyPatch) -> Iterator[Pod]:
    needs_sandbox()
    monkeypatch.setenv("PATH", helm.path())
    launch = ServerLaunch(
        backend="vllm",
        release="0.33.0",
        module="",
        program=("python3", "-m", "tests.fakes.openai_server"),
        arguments=("--model", "Qwen/Qwen3-32B", "--served-model-name", "pair"),
        image="vllm/vllm-openai:v0.33.0",
        served_model_name="pair",
        weights=64_000_000_000,
        metrics_path="/metrics",
    )
    write_launch(launch, tmp_path)
    (tmp_path / "recipe.yaml").write_text(RECIPE)
    said = trtspec("kubernetes", "deploy", "recipe.yaml", "--dry-run", "--output", ".", folder=tmp_path)
    assert said.returncode == 0, said.stderr
    assert not [secret for secret in ("the-key", "hf_secret") if secret in said.stdout]
    documents = list(yaml.safe_load_all(said.stdout))
    (server,) = next(
        each["spec"]["template"]["spec"]["containers"] for each in documents if each["kind"] == "Deployment"
    )
    # The times of a cluster are none of a test.
    server["startupProbe"]["periodSeconds"] = server["readinessProbe"]["periodSeconds"] = 0.1
    server["lifecycle"]["preStop"]["sleep"]["seconds"] = 0
    high, low = divmod(os.getpid() % 50_000, 200)
    made = Pod(documents, SECRETS, tmp_path / "node", f"127.{high}.{low}.9", tmp_path)
    try:
        made.start()
        until(lambda: made.is_ready, "the pod ready")
        yield made
    finally:
        made.close()


def ask(pod: Pod, path: str, body: dict[str, Any] | None = None, key: str = "") -> tuple[int, str]:
    with closing(HTTPConnection(pod.address, pod.ports["openai"], timeout=DEADLINE_S)) as line:
        headers = {"Authorization": f"Bearer {key}"}
        line.request("POST" if body else "GET", path, json.dumps(body) if body else None, headers)
        answer = line.getresponse()
        return answer.status, answer.read().decode()


def test_a_pod_from_its_start_to_its_end(pod: Pod, until: Until) -> None:
    assert [pod.probe(name).status() for name in ("startup", "readiness", "liveness")] == [200] * 3
    assert ask(pod, "/v1/models")[0] == 401
    assert ask(pod, "/v1/models", key="the-key")[0] == 200

    told = json.loads(ask(pod, "/told")[1])
    environment = told["environment"]
    assert (environment["HOME"], environment["HF_HOME"]) == ("/tmp", "/models/huggingface")
    assert environment["HF_TOKEN"] == "hf_secret"
    assert not [word for word in told["argv"] if "secret" in word or "the-key" in word]

    answers: list[tuple[int, str]] = []
    body = {"model": "pair", "prompt": [1, 2, 3], "max_tokens": 150, "stream": True}
    request = threading.Thread(target=lambda: answers.append(ask(pod, "/v1/completions", body)))
    request.start()
    until(lambda: json.loads(ask(pod, "/told")[1])["at_work"] == 1, "the request at work")
    status, seconds = pod.terminate()
    request.join()
    assert (status, pod.restarts) == (0, 0)
    assert answers[0][1].endswith("data: [DONE]\n\n")
    assert seconds < pod.spec["terminationGracePeriodSeconds"]
