"""What both layouts serve is the target's text, whatever the drafts, and however the engines are cut."""

from __future__ import annotations

import subprocess
import sysconfig
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.conftest import BLS, EACH_LAYOUT, TINY, TRTSPEC, Deploy, Deployer, Until, at_work
from trtspec.client.scrape import parse
from trtspec.serving.triton.agreement import NOT_UNICODE

LIBRARY = Path(sysconfig.get_paths()["stdlib"])
FILES = [LIBRARY / line for line in (TINY / "heldout.txt").read_text().split()]
FEW, MANY = 30, 200  # prompts
MAX_TOKENS = 16


def prompts(count: int) -> list[str]:
    """Beginnings of 40 to 400 characters, from files that the pair was not trained on."""
    texts = [file.read_text(encoding="utf-8") for file in FILES]
    cuts = []
    for number in range(count):
        text = texts[number % len(texts)]
        start = (number * 7919) % max(1, len(text) - 400)
        cuts.append(text[start : start + 40 + (number * 53) % 361])
    return cuts


def said(server: Deploy, texts: list[str], concurrency: int, **values: Any) -> list[str]:
    with ThreadPoolExecutor(concurrency) as pool:
        return list(pool.map(lambda text: server.generate(text, max_tokens=MAX_TOKENS, **values), texts))


@pytest.fixture(scope="module")
def plain_text(server: Deploy) -> list[str]:
    """What the target alone says after the first few prompts."""
    return said(server, prompts(FEW), 1, num_draft_tokens=0)


@EACH_LAYOUT
@pytest.mark.parametrize(
    ("num_draft_tokens", "concurrency"),
    [*(pytest.param(*case, marks=pytest.mark.sweep) for case in ((1, 16), (4, 1))), (8, 32)],
)
def test_every_draft_length_serves_the_greedy_text_of_the_target_alone(
    server: Deploy, plain_text: list[str], num_draft_tokens: int, concurrency: int
) -> None:
    assert said(server, prompts(FEW), concurrency, num_draft_tokens=num_draft_tokens) == plain_text


@pytest.fixture(scope="module")
def much_plain_text(server: Deploy) -> list[str]:
    return said(server, prompts(MANY), 1, num_draft_tokens=0)


@pytest.mark.sweep
@pytest.mark.parametrize("concurrency", [1, 16])
@pytest.mark.parametrize("num_draft_tokens", range(1, 9))
def test_every_draft_length_serves_the_greedy_text_of_the_target_for_many_prompts(
    server: Deploy, much_plain_text: list[str], num_draft_tokens: int, concurrency: int
) -> None:
    assert said(server, prompts(MANY), concurrency, num_draft_tokens=num_draft_tokens) == much_plain_text


@EACH_LAYOUT
def test_a_seed_gives_the_same_served_text_with_and_without_drafts(server: Deploy) -> None:
    texts, sampling = prompts(20), {"temperature": 0.8, "top_k": 20, "seed": 7, "end_id": -1}

    alone = said(server, texts, 1, num_draft_tokens=0, **sampling)

    assert said(server, texts, 16, num_draft_tokens=4, **sampling) == alone


@pytest.mark.sweep
@BLS
def test_engines_of_several_ranks_say_the_same(
    server: Deploy, deployer: Deployer, until: Until, tmp_path: Path
) -> None:
    """On the torch backend their ranks are put together again."""
    recipe = tmp_path / "recipe.yaml"
    parallel = "parallel: {tensor: 2, pipeline: 2}"
    recipe.write_text(
        "name: parallel\n"
        f"target: {{model: {TINY / 'target'}, dtype: float32, {parallel}}}\n"
        f"draft: {{model: {TINY / 'draft'}, dtype: float32}}\n"
        "engine: {max_batch_size: 16, max_seq_len: 1024}\n"
        "hardware: {gpu: none}\n"
    )
    build = tmp_path / "build"
    subprocess.run([TRTSPEC, "build", recipe, "--output", build], check=True, capture_output=True)
    assert (build / "model_repository" / "tensorrt_llm_draft").is_dir()
    assert (build / "target" / "engine" / "rank3.safetensors").is_file()

    other = deployer(build, recipe=recipe)
    until(lambda: other.is_ready, "the other server ready")

    assert said(other, prompts(8), 8) == said(server, prompts(8), 8)


@pytest.mark.parametrize("tiny_recipe", ["bls"], indirect=True)
def test_models_of_engines_tell_how_full_their_kv_cache_is(server: Deploy, until: Until) -> None:
    """By the name under which NVIDIA's C++ backend does (`custom_metrics_reporter`)."""

    def told() -> dict[str, float]:
        _, text = server.request("GET", "/metrics", port=2)
        rows = parse(text, 0).of("nv_trt_llm_kv_cache_block_metrics", kv_cache_block_type="fraction")
        return {labels["model"]: use for labels, use in rows}

    with at_work(server, *(f"def f{number}(" for number in range(4))):
        until(lambda: (now := told()) and all(0 < use < 1 for use in now.values()), "both at work")
    assert told().keys() == {"tensorrt_llm", "tensorrt_llm_draft"}
    until(lambda: set(told().values()) == {0}, "an idle server")


@pytest.mark.parametrize("tiny_recipe", ["bls"], indirect=True)
def test_an_id_that_is_not_unicode_is_an_engines_refusal_of_that_request_alone(server: Deploy) -> None:
    """An exception would end what else Triton hands to the engine's model at the time."""
    alone = server.generate("import ", max_tokens=30)
    path = "/v2/models/tensorrt_llm/generate"
    body = b'{"input_ids": [1], "input_lengths": 1, "request_output_len": 2, "id": "\xff"}'
    with ThreadPoolExecutor(8) as pool:
        refused = [pool.submit(server.request, "POST", path, body) for _ in range(40)]
        served = [pool.submit(server.generate, "import ", max_tokens=30) for _ in range(8)]
        assert {answer.result() for answer in served} == {alone}
    for answer in refused:
        status, text = answer.result()
        assert status == 400
        assert NOT_UNICODE in text
