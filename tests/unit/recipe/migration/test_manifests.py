"""Compose files and Kubernetes manifests become recipes: the container whose image or program is known."""

from __future__ import annotations

import contextlib
import json
import textwrap
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from trtspec.backends.importing import Imported, recipe_of
from trtspec.backends.table import loads
from trtspec.base.errors import TrtspecError
from trtspec.cli.app import app
from trtspec.recipe.schema import Recipe

HERE = Path("recipe.yaml")
SPEC = '{"method": "draft_model", "model": "org/small", "num_speculative_tokens": 4}'
VLLM = {"name": "llm", "image": "vllm/vllm-openai:v0.11.0", "args": ["org/big", "-sc", SPEC]}
PROXY = {"name": "proxy", "image": "nginx:1", "command": ["nginx", "-g", "daemon off;"]}


def recipe(found: Imported) -> Recipe:
    return loads(found.text.encode(), HERE).recipe


def read(*documents: object, container: str | None = None) -> Recipe:
    return recipe(recipe_of(yaml.safe_dump_all(documents), HERE, container=container))


def pod(*containers: object) -> dict[str, object]:
    return {"metadata": {"labels": {"app": "x"}}, "spec": {"containers": list(containers)}}


def workload(kind: str, *containers: object) -> dict[str, object]:
    """A manifest of each kind, with its containers where that kind has them."""
    spec: dict[str, object] = {"template": pod(*containers)}
    if kind == "Pod":
        spec = {"containers": list(containers)}
    elif kind == "CronJob":
        spec = {"schedule": "0 0 * * *", "jobTemplate": {"spec": spec}}
    elif kind == "LeaderWorkerSet":
        spec = {"leaderWorkerTemplate": {"size": 1, "workerTemplate": pod(*containers)}}
    return {"apiVersion": "v1", "kind": kind, "metadata": {"name": "served"}, "spec": spec}


@pytest.mark.parametrize(
    "kind", ["Deployment", "StatefulSet", "DaemonSet", "Job", "CronJob", "LeaderWorkerSet", "Pod"]
)
def test_each_kind_of_workload_has_its_container_read(kind: str) -> None:
    found = read({"kind": "Service", "spec": {"ports": [{"port": 80}]}}, workload(kind, PROXY, VLLM))
    assert (found.backend, found.target.model) == ("vllm", "org/big")
    assert found.draft
    assert (found.draft.model, found.speculation.max_draft_len) == ("org/small", 4)


def test_a_list_of_kubernetes_is_read_as_json_too() -> None:
    manifest = {"kind": "List", "items": [workload("Deployment", PROXY), workload("Job", VLLM)]}
    found = recipe_of(json.dumps(manifest, indent=1), HERE)
    assert recipe(found).target.model == "org/big"


SGLANG, TRTLLM = "lmsysorg/sglang:v0.5", "nvcr.io/nvidia/tensorrt-llm/release:1.2.0"
TRITON = "nvcr.io/nvidia/tritonserver:25.08-trtllm-python-py3"
ENTRY = "python3 -m vllm.entrypoints.openai.api_server"


@pytest.mark.parametrize(
    ("image", "command", "args", "backend"),
    [
        ("vllm/vllm-openai", (), ["--model=org/big", "--tensor-parallel-size", 2], "vllm"),
        ("vllm/vllm-openai", (), ["serve", "org/big", "-tp=2"], "vllm"),
        ("vllm/vllm-openai", ["vllm", "serve"], ["org/big", "-tp", "2"], "vllm"),
        ("own:1", ["/bin/sh", "-c"], ["exec vllm serve org/big -tp 2"], "vllm"),
        ("own:1", f"{ENTRY} --model org/big -tp 2", (), "vllm"),
        (SGLANG, (), ["--model-path", "org/big", "--tp=2"], "sglang"),
        (SGLANG, ["python3", "-m", "sglang.launch_server"], ["--model", "org/big", "--tp", "2"], "sglang"),
        (TRTLLM, (), ["org/big", "--tp_size", "2"], "tensorrt_llm_pytorch"),
        (TRITON, ["bash", "-euxc", "pip list\ntrtllm-serve org/big --tp_size 2"], (), "tensorrt_llm_pytorch"),
    ],
)
def test_the_program_is_said_or_is_the_images_own(
    image: str, command: list[str] | str, args: list[object], backend: str
) -> None:
    own = {"name": "llm", "image": image, "command": command or None, "args": list(args)}
    found = read(workload("Deployment", own))
    assert (found.backend, found.target.model, found.target.parallel.tensor) == (backend, "org/big", 2)


@pytest.mark.parametrize(
    "command", [["bash", "start.sh"], ["/start.sh"], ["sleep", "infinity"], ["python3", "x.py"]]
)
def test_an_image_that_runs_another_program_is_no_server(command: list[str]) -> None:
    with pytest.raises(TrtspecError, match="has no container of"):
        read(workload("Pod", {**VLLM, "args": command}))


def test_variables_of_a_pod_are_those_of_its_words_and_of_its_server() -> None:
    own = {
        "name": "llm",
        "image": "vllm/vllm-openai",
        "command": ["sh", "-c", 'vllm serve "$MODEL" -tp ${TP:-1} --seed $SEED --max-model-len $(LONGEST)'],
        "env": [
            {"name": "OWNER", "value": "org"},
            {"name": "MODEL", "value": "$(OWNER)/big"},
            {"name": "TP", "value": "2"},
            {"name": "LONGEST", "value": "2048"},
            {"name": "HF_TOKEN", "valueFrom": {"secretKeyRef": {"name": "hub", "key": "token"}}},
            {"name": "NCCL_DEBUG", "value": "INFO"},
        ],
        "resources": {"limits": {"nvidia.com/gpu": "4"}},
    }
    found = recipe_of(yaml.safe_dump(workload("Deployment", own)), HERE)
    read = recipe(found)
    assert (read.target.model, read.target.parallel.tensor) == ("org/big", 2)
    assert (read.engine.max_seq_len, read.hardware.count) == (2048, 4)
    assert read.engine.environment["NCCL_DEBUG"] == "INFO"
    assert "HF_TOKEN" not in read.engine.environment
    told = {note.subject: note.fate for note in found.notes}
    assert told["HF_TOKEN"].startswith("left out: ")
    assert told["--seed"].startswith("left out: ")


def test_folders_of_a_host_are_named_as_they_are_here() -> None:
    own = {**VLLM, "args": ["/models/big"], "volumeMounts": [{"name": "disk", "mountPath": "/models"}]}
    manifest = workload("Pod", own)
    manifest["spec"]["volumes"] = [{"name": "disk", "hostPath": {"path": "/data"}}]  # type: ignore[index]
    assert read(manifest).target.model == "/data/big"
    service = {
        "image": "vllm/vllm-openai",
        "command": "/models/big",
        "volumes": ["/data:/models", "hub:/root"],
    }
    assert read({"services": {"llm": service}}).target.model == "/data/big"


COMPOSE = """
x-gpus: &gpus
  deploy: {resources: {reservations: {devices: [{driver: nvidia, count: 2, capabilities: [gpu]}]}}}
services:
  db: {image: "postgres:16", command: postgres -c max_connections=10}
  llm:
    <<: *gpus
    image: vllm/vllm-openai:latest
    ENVIRONMENT
    COMMAND
"""


@pytest.mark.parametrize(
    "environment",
    ["environment: [NCCL_DEBUG=INFO, HF_TOKEN]", "environment: {NCCL_DEBUG: INFO, HF_TOKEN: }"],
)
@pytest.mark.parametrize(
    "command",
    [
        "command: --model ${MODEL:-org/big} --tensor-parallel-size ${TP-2}",
        "command: ['${MODEL:-org/big}', '-tp', '2']",
        "command: >\n      --model=org/big\n      -tp 2",
        "entrypoint: [bash, -c]\n    command: ['M=org/big; vllm serve $$M -tp 2']",
        "entrypoint: vllm serve\n    command: [org/big, -tp=2]",
    ],
)
def test_a_service_of_compose_is_read(environment: str, command: str) -> None:
    found = recipe_of(COMPOSE.replace("ENVIRONMENT", environment).replace("COMMAND", command), HERE)
    read = recipe(found)
    assert (read.target.model, read.target.parallel.tensor, read.hardware.count) == ("org/big", 2, 2)
    assert read.engine.environment == {"NCCL_DEBUG": "INFO"}
    assert "HF_TOKEN" in {note.subject for note in found.notes}


def test_a_variable_without_a_default_is_asked_for() -> None:
    with pytest.raises(TrtspecError, match=r"\$\{MODEL\}.*is a variable"):
        read({"services": {"llm": {"image": "vllm/vllm-openai", "command": "--model ${MODEL}"}}})


def test_a_file_that_a_containers_script_writes_is_read() -> None:
    script = """\
    cat > /tmp/options.yml <<EOF
    speculative_config: {decoding_type: NGram, max_draft_len: 3}
    EOF
    trtllm-serve org/big --extra_llm_api_options /tmp/options.yml
    """
    own = {"name": "llm", "image": "own:1", "command": ["bash", "-c", textwrap.dedent(script)]}
    found = read(workload("Deployment", own))
    assert (found.speculation.method.kind, found.speculation.max_draft_len) == ("ngram", 3)


def test_a_file_of_a_config_map_is_read() -> None:
    own = {
        "name": "llm",
        "image": "own:1",
        "command": ["trtllm-serve", "org/big", "--extra_llm_api_options", "/etc/llm/options.yml"],
        "volumeMounts": [{"name": "options", "mountPath": "/etc/llm"}],
    }
    text = "speculative_config: {decoding_type: NGram, max_draft_len: 3}"
    data = {"kind": "ConfigMap", "metadata": {"name": "llm-options"}, "data": {"options.yml": text}}
    manifest = workload("Deployment", own)
    volumes = [{"name": "options", "configMap": {"name": "llm-options"}}]
    manifest["spec"]["template"]["spec"]["volumes"] = volumes  # type: ignore[index]
    assert read(data, manifest).speculation.max_draft_len == 3


def test_the_gpus_of_a_manifest_count_only_with_gpus() -> None:
    own = {**VLLM, "resources": {"limits": {"nvidia.com/gpu": 4}}}
    text = yaml.safe_dump(workload("Pod", own))
    assert recipe(recipe_of(text, HERE)).hardware.count == 4
    for command in (text, "vllm serve org/big"):
        assert recipe(recipe_of(command, HERE, gpu="none")).hardware.count == 1


def test_a_manifest_of_several_servers_needs_the_choice_of_a_container() -> None:
    leader, worker = pod(VLLM), pod({**VLLM, "args": ["org/other"]})
    template = {"size": 2, "leaderTemplate": leader, "workerTemplate": worker}
    group = {
        "kind": "LeaderWorkerSet",
        "metadata": {"name": "group"},
        "spec": {"leaderWorkerTemplate": template},
    }
    text = yaml.safe_dump_all([group, workload("Deployment", VLLM)])
    with pytest.raises(TrtspecError) as refused:
        recipe_of(text, HERE)
    names = ("group/leader/llm", "group/worker/llm", "served/llm")
    assert refused.value.repair == f"choose one with --container: {', '.join(names)}"
    for name, model in (("worker", "org/other"), (names[0], "org/big"), ("served", "org/big")):
        assert recipe(recipe_of(text, HERE, container=name)).target.model == model
    with pytest.raises(TrtspecError, match="has several servers"):
        recipe_of(text, HERE, container="llm")
    with pytest.raises(TrtspecError, match="has no server nobody"):
        recipe_of(text, HERE, container="nobody")


@pytest.mark.parametrize(
    ("text", "problem", "repair"),
    [
        ("services: {db: {image: postgres}}", "has no container of", "it has db"),
        ("spec:\n  containers:\n  - args: [{{ .Values.model }}]\n", "cannot be read", "helm template … | "),
        ("services: {a: [", "cannot be read", "correct the file"),
    ],
)
def test_a_manifest_without_a_server_is_told(text: str, problem: str, repair: str) -> None:
    with pytest.raises(TrtspecError, match=problem) as refused:
        recipe_of(text, HERE)
    assert (refused.value.repair or "").startswith(repair)


@pytest.mark.parametrize("wrong", [7, "text", [7], {"a": 7}, [[]], {"a": {}}])
@pytest.mark.parametrize(
    "key",
    ["args", "command", "env", "image", "resources", "volumeMounts", "environment", "volumes", "deploy"],
)
def test_a_key_of_a_wrong_type_is_an_error_or_left(key: str, wrong: object) -> None:
    own = {**VLLM, "command": ["vllm", "serve", "org/big"], key: wrong}
    for manifest in (workload("Pod", own), {"services": {"llm": own}}, wrong, {"services": wrong}):
        text = yaml.safe_dump_all([manifest, {"kind": "Pod", "spec": {"containers": wrong}}])
        with contextlib.suppress(TrtspecError):
            recipe_of(text, HERE)


def test_values_that_multiply_without_end_are_refused() -> None:
    lines = ["a0: &a0 {x: 1}"]
    lines += [f"a{i}: &a{i} {{<<: [{', '.join([f'*a{i - 1}'] * 9)}], z{i}: 1}}" for i in range(1, 9)]
    with pytest.raises(TrtspecError, match="more than 30 values"):
        recipe_of("\n".join([*lines, "services: {llm: {<<: *a8}}"]), HERE)


def test_a_file_is_read_and_a_path_is_no_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("compose.yaml").write_text(yaml.safe_dump({"services": {"llm": {**VLLM, "command": "org/big"}}}))
    Path("start.sh").write_text("exec vllm serve org/script")
    Path("vllm serve org").mkdir()
    Path("image.png").write_bytes(b"\x89PNG")
    for file, model in (("compose.yaml", "org/big"), ("./start.sh", "org/script")):
        result = CliRunner().invoke(app, ["init", "--force", "--from", file])
        assert result.exit_code == 0, result.exception
        assert loads(HERE.read_bytes(), HERE).recipe.target.model == model
    for path in ("vllm serve org", "image.png"):
        result = CliRunner().invoke(app, ["init", "--force", "--from", path])
        assert isinstance(result.exception, TrtspecError)
        assert str(result.exception).startswith(f"{path}: cannot be read")
    long = CliRunner().invoke(app, ["init", "--force", "--from", f"vllm serve org/big --x {'x' * 5000}"])
    assert not isinstance(long.exception, OSError)
    chosen = CliRunner().invoke(app, ["init", "--force", "--from", "compose.yaml", "--container", "llm"])
    assert chosen.exit_code == 0, chosen.exception
    alone = CliRunner().invoke(app, ["init", "--force", "--container", "llm"])
    assert "goes with --from" in alone.stderr
