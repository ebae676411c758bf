"""What the pods of servers of others are told, what they see, and what is refused of a recipe."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import Any

import pytest

from tests.support.servers_of_others import SERVERS
from tests.unit.cluster.kubernetes.launches import KEYS, SECTIONS, TARGET, WEIGHTS, launch, loaded, values
from tests.unit.cluster.kubernetes.rendered import rendered
from trtspec.backends.table import loads
from trtspec.base.errors import RecipeError
from trtspec.base.units import GIB
from trtspec.cluster.kubernetes.recipe_values import from_launch
from trtspec.cluster.kubernetes.values import Values
from trtspec.deployment.container import container_of
from trtspec.deployment.deployment import Deployment, kind_of
from trtspec.deployment.engine_server import EngineServerLaunch
from trtspec.gateway.ports import OPENAI, Ports

NODE = SECTIONS["a folder of the node"]


def kinds(made: Values) -> dict[str, Any]:
    return {each["kind"]: each for each in rendered(made)}


def pod(made: Values) -> dict[str, Any]:
    found: dict[str, Any] = kinds(made)["Deployment"]["spec"]["template"]["spec"]
    return found


def server(made: Values) -> dict[str, Any]:
    (found,) = pod(made)["containers"]
    return dict(found)


@pytest.mark.parametrize("backend", SERVERS)
def test_a_pod_is_told_what_a_container_of_docker_is_told(backend: str) -> None:
    """But for the folder of the build."""
    made, there = launch(backend), Path("/builds/pair")
    ports, name = Ports(openai=OPENAI), made.served_model_name
    deployment = Deployment("pair", there, name, kind_of(backend), ports=ports, grace_s=60)
    docker = container_of(deployment, EngineServerLaunch(made), made.image, ())
    found = server(values(backend))
    words = [word.replace(str(there), "/etc/trtspec/launch") for word in docker.command]
    assert [*found["command"], *found["args"]] == [docker.entrypoint, *words]
    assert found["image"] == docker.image
    assert "initContainers" not in pod(values(backend))


def test_models_of_the_hub_are_pinned_and_kept_in_the_volume() -> None:
    found = server(values("vllm", NODE))
    assert found["args"][found["args"].index("--revision") + 1] == "9216db5781bf21249d130ec9da846c4624c16137"
    environment = {each["name"]: each.get("value") for each in found["env"]}
    assert environment["HF_HOME"] == "/mnt/models/huggingface"
    (mount,) = (each for each in found["volumeMounts"] if each["name"] == "models")
    assert mount == {"name": "models", "mountPath": "/mnt/models"}
    assert server(values("vllm"))["env"][2] == {"name": "HF_HOME", "value": "/models/huggingface"}


def test_secrets_of_a_server_are_referenced_by_name_alone() -> None:
    found = server(values("vllm", KEYS))
    key = {"name": "VLLM_API_KEY", "valueFrom": {"secretKeyRef": {"name": "keys", "key": "keys"}}}
    assert found["env"][-1] == key
    assert found["envFrom"] == [{"secretRef": {"name": "hf-token"}}]
    assert not [each for each in pod(values("vllm", KEYS))["volumes"] if "secret" in each]


def test_files_that_the_arguments_name_are_there() -> None:
    made = values("tensorrt_llm_pytorch")
    found, there = server(made), kinds(made)["ConfigMap"]
    path = PurePosixPath(found["args"][found["args"].index("--extra_llm_api_options") + 1])
    (mount,) = (each for each in found["volumeMounts"] if each["mountPath"] == str(path.parent))
    (volume,) = (each for each in pod(made)["volumes"] if each["name"] == mount["name"])
    assert volume["configMap"]["name"] == there["metadata"]["name"]
    assert there["data"].keys() == {path.name}
    assert "ConfigMap" not in kinds(values("vllm"))


def test_another_launch_has_another_config_map_and_another_build() -> None:
    backend = "tensorrt_llm_pytorch"
    made, old = loaded(backend), launch(backend)
    new = replace(old, files={name: f"{text}# more\n" for name, text in old.files.items()})
    digests = {from_launch(made, each).digest for each in (old, new, launch(backend))}
    assert len(digests) == 2
    both = [values(backend).model_copy(update={"digest": digest}) for digest in digests]
    assert len({kinds(each)["ConfigMap"]["metadata"]["name"] for each in both}) == 2


def test_kubernetes_replaces_no_variables_in_arguments() -> None:
    odd = replace(launch("vllm"), arguments=("--served-model-name", "$(HF_TOKEN) $$ $x"))
    served = from_launch(loaded("vllm"), odd)
    assert served.server
    # What Kubernetes' documentation says of "args": $$(VAR) is $(VAR).
    assert served.server.arguments[1] == "$$(HF_TOKEN) $$ $x"


@pytest.mark.parametrize("backend", SERVERS)
def test_probes_ask_the_server_itself_and_metrics_are_its_own(backend: str) -> None:
    found, monitor = server(values(backend)), kinds(values(backend))["PodMonitor"]
    probes = [found[f"{name}Probe"] for name in ("startup", "readiness", "liveness")]
    assert {json.dumps(each["httpGet"]) for each in probes} == {'{"path": "/health", "port": "openai"}'}
    # Half an hour, and the time of a slow download.
    assert probes[0]["failureThreshold"] * probes[0]["periodSeconds"] >= 1800 + WEIGHTS / 200e6
    (endpoint,) = monitor["spec"]["podMetricsEndpoints"]
    paths = {"vllm": "/metrics", "sglang": "/metrics", "tensorrt_llm_pytorch": "/prometheus/metrics"}
    assert (endpoint["port"], endpoint["path"]) == ("openai", paths[backend])
    assert found["ports"] == [{"name": "openai", "containerPort": 9000}]
    port = found["args"].index("--port")
    assert found["args"][port + 1] == "9000"


def test_a_server_without_metrics_is_not_scraped() -> None:
    silent = replace(launch("tensorrt_llm_pytorch"), metrics_path=None)
    found = from_launch(loaded("tensorrt_llm_pytorch"), silent).monitoring
    assert (found.pod_monitor, found.rules) == (False, False)
    assert values("vllm").monitoring.rules


def test_requests_in_flight_have_the_recipes_time_to_end_in() -> None:
    made = values("vllm", "  grace_seconds: 120\n")
    found = server(made)
    assert found["args"][found["args"].index("--shutdown-timeout") + 1] == "120"
    before = found["lifecycle"]["preStop"]["sleep"]["seconds"]
    assert pod(made)["terminationGracePeriodSeconds"] > before + 120


def test_a_server_requests_memory_and_disk_for_its_weights_and_cache() -> None:
    found = server(values("sglang"))["resources"]
    assert found["limits"]["nvidia.com/gpu"] == 2
    memory = int(found["limits"]["memory"].removesuffix("Gi"))
    assert 0 <= memory - WEIGHTS / GIB - 6 - 2 * 4 - 3 < 1
    # Models of the Hub come to the node's disk with an empty_dir, and nowhere else.
    disks = [server(values("sglang", each))["resources"]["requests"] for each in ("", NODE)]
    room, little = (int(each["ephemeral-storage"].removesuffix("Gi")) for each in disks)
    assert room - little >= WEIGHTS / GIB > little
    on_cpu = loaded("vllm")
    recipe = on_cpu.recipe.model_copy(
        update={"hardware": on_cpu.recipe.hardware.model_copy(update={"gpu": "none"})}
    )
    served = from_launch(replace(on_cpu, recipe=recipe), replace(launch("vllm"), kv_bytes=100 * GIB))
    assert served.resources.cpu_limit == served.resources.cpu
    assert int(served.resources.memory.removesuffix("Gi")) > 100 + WEIGHTS / GIB


def test_the_memory_of_a_pod_includes_its_shared_memory() -> None:
    resources = from_launch(loaded("vllm", "  resources: {shared_memory: 64Gi}\n"), launch("vllm")).resources
    assert int(resources.memory.removesuffix("Gi")) > 64 + WEIGHTS / GIB


def test_a_folder_of_ones_own_is_read_where_the_recipe_says_that_it_is() -> None:
    section = "  cache: {kind: host_path, path: /mnt/models}\n"
    made = values("tensorrt_llm_pytorch", section, target="/mnt/models/llama")
    found = server(made)
    assert "/mnt/models/llama" in found["args"]
    (mount,) = (each for each in found["volumeMounts"] if each["name"] == "models")
    assert mount == {"name": "models", "mountPath": "/mnt/models", "readOnly": True}
    # Nothing of the Hub is needed, so nothing is written there.
    assert {"name": "HF_HOME", "value": "/tmp/huggingface"} in found["env"]
    there = values("tensorrt_llm_pytorch", "  cache: {kind: claim, name: ours}\n", target="/models/llama")
    assert server(there)["volumeMounts"][0]["mountPath"] == "/models"


@pytest.mark.parametrize(
    ("section", "target"),
    [
        ("", "/mnt/models/llama"),
        ("  cache: claim\n", "/models/llama"),
        ("  cache: {kind: claim, name: ours}\n", "/mnt/models/llama"),
        ("  cache: {kind: host_path, path: /mnt/models}\n", "/mnt/other/llama"),
    ],
)
def test_a_folder_that_pods_do_not_see_is_refused(section: str, target: str) -> None:
    with pytest.raises(RecipeError) as raised:
        values("vllm", section, target=target)
    (finding,) = raised.value.findings
    assert finding.subject == "target.model"
    assert finding.problem == f"{target} is a folder of this machine, which pods do not see"
    assert finding.repair
    assert "below /models on a claim of kubernetes.cache" in finding.repair


@pytest.mark.parametrize(
    ("draft", "key"),
    [
        ("draft: {layers_of_target: [0, 1, 2, 63]}", "draft.layers_of_target"),
        ("draft: {model: org/heads}\nspeculation: {method: medusa}", "draft.model"),
    ],
)
def test_a_draft_that_the_build_makes_is_refused(draft: str, key: str) -> None:
    text = f"""\
name: pair
target: {{model: Qwen/Qwen3-32B}}
{draft}
engine: {{backend: vllm, release: 0.32.0}}
hardware: {{gpu: h100}}
"""
    made = replace(launch("vllm"), models=("/build/pair/draft/model",))
    with pytest.raises(RecipeError) as raised:
        from_launch(loads(text.encode(), Path("recipe.yaml")), made)
    (finding,) = raised.value.findings
    assert (finding.subject, finding.line) == (key, 3)
    assert "pods do not see" in finding.problem
    assert finding.repair
    assert finding.repair.startswith("copy the build's draft/model to a folder below /models on a claim")


@pytest.mark.parametrize(
    ("backend", "section", "key", "reason"),
    [
        ("vllm", "  store: s3://engines\n", "store", "no engine is in a store"),
        ("vllm", "  secrets: {store: s3}\n", "secrets.store", "no engine is in a store"),
        ("vllm", "  autoscaling: {max_replicas: 3}\n", "autoscaling", "trtspec's own coordinator"),
        (
            "sglang",
            "  hosts: {gpus_per_host: 1, leader: [a], worker: [b]}\n",
            "hosts",
            "sglang has no such thing: its ranks are on one host",
        ),
        ("sglang", "  form: kserve\n", "form", "trtspec's own server, and sglang is another"),
        ("sglang", KEYS, "secrets.api_keys", "SGLang takes its key only on the command line"),
        ("vllm", "  monitoring: {dashboard: true}\n", "monitoring.dashboard", "the server has others"),
    ],
)
def test_kubernetes_keys_that_another_engines_server_lacks_are_refused(
    backend: str, section: str, key: str, reason: str
) -> None:
    with pytest.raises(RecipeError) as raised:
        values(backend, section)
    (finding,) = raised.value.findings
    assert finding.subject == f"kubernetes.{key}"
    assert reason in finding.problem
    assert finding.line


def test_triton_with_vllm_is_not_on_a_cluster() -> None:
    found = loaded("vllm")
    recipe = found.recipe.model_copy(
        update={"serving": found.recipe.serving.model_copy(update={"layout": "triton"})}
    )
    with pytest.raises(RecipeError, match=r"serving\.layout"):
        from_launch(replace(found, recipe=recipe), launch("vllm", TARGET))
