"""NVIDIA's own BLS coordinator, unchanged, over the engines of the bls layout.

Its models are not part of this repository: NVIDIA_MODELS names a folder with `tensorrt_llm_bls`,
`preprocessing` and `postprocessing` of tensorrtllm_backend's `all_models/inflight_batcher_llm`.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from tests.e2e.conftest import Deploy, wait_until
from tests.support.ports import free_ports
from trtspec.deployment.deploy import serve_triton
from trtspec.deployment.deployment import Deployment
from trtspec.deployment.triton.install import find_wheel
from trtspec.deployment.triton.launch import TritonLaunch
from trtspec.gateway.ports import Ports
from trtspec.pipeline.build.plan import make_plan
from trtspec.pipeline.repository.writer import write_repository
from trtspec.pipeline.steps.write_repository import repository_spec

MODELS = os.environ.get("NVIDIA_MODELS", "")
PROMPTS = [f"def function_{i}(value, other_{i}):\n    " for i in range(12)]
# Without an instance of its own a request waits, since NVIDIA's coordinator serves one at a time.
INSTANCES = 4

pytestmark = pytest.mark.skipif(not MODELS, reason="NVIDIA_MODELS names no folder with NVIDIA's models")


def fill(template: Path, values: dict[str, str]) -> None:
    """As NVIDIA's `fill_template.py`, with its default for what the text path has no use for."""
    text = template.read_text()
    for name, value in values.items():
        text = text.replace(f"${{{name}}}", value)
    assert not re.search(r"^\s*\w+: \$\{", text, re.MULTILINE), text
    template.write_text(text)


@pytest.fixture(scope="module")
def nvidias(
    tiny_build: Path, tiny_recipe: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Deploy]:
    """Our engines under NVIDIA's coordinator."""
    if "bls" not in tiny_recipe.read_text().rpartition("layout")[2]:
        pytest.skip("the engines are no models of their own")
    folder = tmp_path_factory.mktemp("nvidia")
    spec = repository_spec(make_plan(tiny_recipe).resolved)
    engines = tuple(
        replace(engine, engine_dir=str(tiny_build / engine.engine_dir.removeprefix("../../")))
        for engine in spec.engines
    )
    repository = folder / "model_repository"
    write_repository(repository, replace(spec, engines=engines))
    shutil.rmtree(repository / spec.model_name)
    for name in ("tensorrt_llm_bls", "preprocessing", "postprocessing"):
        shutil.copytree(Path(MODELS, name), repository / name)
        values = {
            "triton_max_batch_size": "16",
            "max_queue_delay_microseconds": "0",
            "max_queue_size": "0",
            "decoupled_mode": "false",
            "logits_datatype": "TYPE_FP32",
            "tokenizer_dir": str(tiny_build / "tokenizer"),
            "add_special_tokens": "true",
            "skip_special_tokens": "true",
            "preprocessing_instance_count": "1",
            "postprocessing_instance_count": "1",
            "bls_instance_count": str(INSTANCES),
            "tensorrt_llm_model_name": engines[0].name,
            "tensorrt_llm_draft_model_name": engines[1].name,
        }
        fill(repository / name / "config.pbtxt", values)
    ports = free_ports()
    deployment = Deployment("nvidia", folder, "tensorrt_llm_bls", ports=Ports(*ports))
    with serve_triton(deployment, TritonLaunch(), find_wheel(), gpus=0) as start:
        wait_until(start().is_ready, "the server ready")
        # Clients need no process.
        yield Deploy(None, deployment.log, ports, "tensorrt_llm_bls")  # type: ignore[arg-type]


def test_nvidias_coordinator_gives_the_same_text_as_ours(nvidias: Deploy, server: Deploy) -> None:
    def said(prompt: str, num_draft_tokens: int) -> str:
        values = {"max_tokens": 24, "num_draft_tokens": num_draft_tokens, "stream": False, "top_k": 1}
        return nvidias.generate(prompt, bad_words="", stop_words="", **values)

    with ThreadPoolExecutor(INSTANCES) as pool:
        for length in (1, 4, 8):
            texts = list(pool.map(said, PROMPTS, [length] * len(PROMPTS)))
            assert texts == [prompt + server.generate(prompt, max_tokens=24) for prompt in PROMPTS]


def test_nvidias_coordinator_decodes_without_drafts_too(nvidias: Deploy, server: Deploy) -> None:
    said = nvidias.generate(PROMPTS[0], max_tokens=24, stream=False, exclude_input_in_output=True)

    assert said == server.generate(PROMPTS[0], max_tokens=24)


def test_its_stop_words_reach_the_engine(nvidias: Deploy, server: Deploy) -> None:
    text = server.generate(PROMPTS[0], max_tokens=40)
    word = text.split()[2]
    said = nvidias.generate(
        PROMPTS[0], max_tokens=40, stream=False, stop_words=[word], exclude_input_in_output=True
    )

    assert said == text[: text.index(word) + len(word)]
