"""Servers of others in containers, and vLLM as a model of Triton's backend, to the letter.

UPDATE_GOLDEN=1 writes them anew.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2 as pb

from tests.golden.test_containers import DOCKER_OF_ROOT, KINDS, engine, options_of
from tests.support.servers_of_others import SERVERS
from trtspec.backends.launch import ServerLaunch
from trtspec.backends.vllm import triton as triton_vllm
from trtspec.deployment.container import container_of, run_words
from trtspec.deployment.deployment import Deployment, kind_of
from trtspec.deployment.engine_server import EngineServerLaunch
from trtspec.deployment.triton.launch import TritonLaunch
from trtspec.gateway.ports import OPENAI, Ports
from trtspec.pipeline.build.plan import make_plan
from trtspec.pipeline.containers.engine import ContainerEngine

GOLDEN = Path(__file__).parent
RECIPE = """
name: pair
target: {model: ./target, dtype: bfloat16, parallel: {tensor: 2}}
draft: {model: ./draft}
speculation: {num_draft_tokens: 3}
engine: {max_seq_len: 128, enable_chunked_context: false}
hardware: {gpu: h100, count: 2}
"""
HUB = Path("/home/somebody/.cache/huggingface/hub")
BUILD = Path("/builds/pair")


def golden(name: str, output: str) -> None:
    if os.environ.get("UPDATE_GOLDEN"):
        (GOLDEN / name).parent.mkdir(exist_ok=True, parents=True)
        (GOLDEN / name).write_text(output)
    assert output == (GOLDEN / name).read_text()


@pytest.fixture
def launched(llama_folder: Callable[..., Path], tmp_path: Path) -> Callable[[str], ServerLaunch]:
    llama_folder("target", hidden_size=64)
    llama_folder("draft", num_hidden_layers=1)

    def plan(backend: str) -> ServerLaunch:
        named = "" if backend == "tensorrt_llm_pytorch" else "serving: {model_name: code}\n"
        (tmp_path / "recipe.yaml").write_text(RECIPE + named)
        launch = make_plan(tmp_path / "recipe.yaml", backend=backend).resolved.launch
        assert launch
        return launch

    return plan


def deployed(launch: ServerLaunch) -> Deployment:
    kind, name = kind_of(launch.backend), launch.served_model_name
    return Deployment("pair", BUILD, name, kind, ports=Ports(openai=OPENAI), start_s=1800)


def shown(argv: tuple[str, ...], folder: Path) -> str:
    first, *options = options_of(argv)
    text = f"{first}\n" + "".join(f"    --{option}\n" for option in options)
    return text.replace(str(folder), "/models")


@pytest.mark.parametrize("by", [DOCKER_OF_ROOT, engine(*KINDS["podman, rootless"])], ids=["docker", "podman"])
@pytest.mark.parametrize("backend", SERVERS)
def test_command_lines_of_server_containers_match_the_golden_files(
    backend: str, by: ContainerEngine, launched: Callable[[str], ServerLaunch], tmp_path: Path
) -> None:
    """Of folders, with a key where the server takes one; and what models of the Hub add."""
    launch = launched(backend)
    key = "KEY" if backend == "vllm" else None
    deployment = deployed(launch)
    gpus = ("0", "1") if by.program.name == "podman" else ("GPU-0", "GPU-1")
    made = run_words(
        container_of(deployment, EngineServerLaunch(launch, key=key), launch.image, gpus), by, detach=True
    )
    assert "KEY" not in made
    hub = run_words(
        container_of(deployment, EngineServerLaunch(launch, HUB, key), launch.image, gpus), by, detach=True
    )
    more = "".join(f"    with --{one}\n" for one in options_of(hub)[1:] if one not in options_of(made)[1:])
    text = shown(made, tmp_path) + "models of the Hub:\n" + more
    golden(f"containers/{by.program.name}/{backend}.txt", text)


def test_the_repository_of_vllm_under_triton_matches_the_golden_files(
    launched: Callable[[str], ServerLaunch], tmp_path: Path
) -> None:
    launch = launched("vllm")
    files = triton_vllm.files(launch)
    config = text_format.Parse(files["code/config.pbtxt"], pb.ModelConfig())
    assert config.backend == "vllm"
    text = "".join(f"{name}:\n{text}" for name, text in files.items())
    golden("repository/vllm.txt", text.replace(str(tmp_path), "/models"))
    deployment = Deployment("pair", BUILD, "code", key="KEY", ports=Ports())
    under = TritonLaunch(models=EngineServerLaunch(launch))
    made = container_of(deployment, under, triton_vllm.IMAGE, ("GPU-0", "GPU-1"))
    golden("containers/docker/triton_vllm.txt", shown(run_words(made, DOCKER_OF_ROOT, detach=True), tmp_path))


def test_a_model_of_the_build_is_seen_with_it(launched: Callable[[str], ServerLaunch]) -> None:
    """As the layers of the target that are its draft."""
    launch = launched("vllm")
    target, _ = launch.models
    inside = replace(launch, models=(target, str(BUILD / "draft/model")))
    made = container_of(deployed(inside), EngineServerLaunch(inside), inside.image, ())
    assert [mount.folder for mount in made.mounts] == [BUILD, Path(target)]
