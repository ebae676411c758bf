"""Sampled text in the bls layout, through a real Triton, of engines that verify as NVIDIA's kernels do."""

from __future__ import annotations

import itertools
import json
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

from tests.contract.test_sampled_drafts import DRAFT, LIMITS, PROMPT, TARGET, TOKENS, VOCAB_SIZE, exact
from tests.contract.test_sampling import p_value
from tests.e2e.conftest import Deploy, wait_until
from tests.fakes.cpp_backend_build import LETTERS, write_build
from tests.fakes.engine_dir import write_engine
from tests.support.ports import free_ports
from trtspec.deployment.deploy import serve_triton
from trtspec.deployment.deployment import Deployment
from trtspec.deployment.triton.install import find_wheel
from trtspec.deployment.triton.launch import TritonLaunch
from trtspec.gateway.ports import Ports
from trtspec.serving.executor import SamplingConfig

DRAWS, END = 300, 2
WARM = SamplingConfig(temperature=1.0)
HEARD = Path("model_repository/tensorrt_llm/heard.jsonl")


@pytest.fixture(scope="module")
def build(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sampled")
    of_draft = {**LIMITS, "max_draft_len": 0, "speculative_decoding_mode": 1}
    write_engine(folder / "target/engine", TARGET, **LIMITS)
    write_engine(folder / "draft/engine", DRAFT, **of_draft)
    return write_build(folder, ("target", "draft"), LIMITS["max_batch_size"], drafting=None)


@pytest.fixture(scope="module")
def server(build: Path) -> Iterator[Deploy]:
    ports = free_ports()
    deployment = Deployment("sampled", build, "speculative_llm", ports=Ports(*ports))
    with serve_triton(deployment, TritonLaunch(), find_wheel(), gpus=0) as start:
        wait_until(start().is_ready, "the server ready")
        # Clients need no process.
        yield Deploy(None, deployment.log, ports)  # type: ignore[arg-type]
    assert "Traceback" not in deployment.log.read_text()


def said(server: Deploy, **values: float) -> tuple[int, ...]:
    prompt = "".join(LETTERS[token] for token in PROMPT)
    return tuple(map(LETTERS.index, server.generate(prompt, max_tokens=TOKENS, end_id=END, **values)))


@pytest.mark.sweep
def test_sampled_text_is_the_targets_by_one_hot_logits(server: Deploy, build: Path) -> None:
    with ThreadPoolExecutor(LIMITS["max_batch_size"]) as pool:
        texts = list(pool.map(lambda seed: said(server, temperature=1.0, seed=seed * 7919), range(DRAWS)))
    counts, wanted = Counter(texts), exact(WARM, END)
    assert counts.keys() <= wanted.keys()
    observed = list(itertools.chain.from_iterable([i] * counts[text] for i, text in enumerate(wanted)))
    assert p_value(observed, torch.tensor(list(wanted.values()), dtype=torch.float64)) > 1e-3

    heard = [json.loads(line) for line in (build / HEARD).read_text().splitlines()]
    assert len(heard) > DRAWS / 2
    for asked in heard:
        draft = asked["draft"]
        assert asked["is_sampled"]
        assert asked["rows"] == {"shape": [1, len(draft), VOCAB_SIZE], "dtype": "float32"}
        assert asked["hot"] == [[token, 1] for token in draft]


@pytest.mark.sweep
def test_greedy_text_is_verified_without_logits(server: Deploy, build: Path) -> None:
    before = len((build / HEARD).read_text().splitlines())
    assert said(server) == said(server, num_draft_tokens=0)
    heard = [json.loads(line) for line in (build / HEARD).read_text().splitlines()[before:]]
    assert heard
    assert not any(asked["is_sampled"] or asked["rows"] for asked in heard)
