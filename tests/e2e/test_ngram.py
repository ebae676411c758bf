"""Drafts from the text itself, under a real Triton: the text is the target's own, and drafts are accepted."""

from __future__ import annotations

import sysconfig
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.conftest import LAYOUTS, TINY, Deploy, served_build, wait_until

LIBRARY = Path(sysconfig.get_paths()["stdlib"])
MAX_TOKENS = 32
FEW, MANY = 6, 60  # prompts
ROLES = {"ngram": ("target",), "hybrid": ("target", "draft")}
SERVED = [
    pytest.param((method, layout), id=f"{method}-{layout}", marks=marks)
    for method, layout in product(ROLES, LAYOUTS)
    for marks in ([] if (method, layout) == ("hybrid", "in_process") else [pytest.mark.sweep],)
]


def prompts(count: int) -> list[str]:
    """Lines of files that the pair was not trained on, each after itself, as if they were to be edited."""
    texts = [(LIBRARY / line).read_text() for line in (TINY / "heldout.txt").read_text().split()]
    cuts = []
    for number in range(count):
        text = texts[number % len(texts)]
        start = text.index("\n", (number * 7919) % (len(text) - 600)) + 1
        piece = text[start : start + 100 + (number * 53) % 200]
        cuts.append(f"{piece}\n\n{piece[: len(piece) // 2]}")
    return cuts


def write_recipe(folder: Path, method: str, layout: str) -> Path:
    recipe = folder / "recipe.yaml"
    models = "".join(f"{role}: {{model: {TINY / role}, dtype: float32}}\n" for role in ROLES[method])
    recipe.write_text(
        f"name: tiny\n{models}speculation: {{method: {method}, max_draft_len: 8}}\n"
        f"engine: {{max_batch_size: 8, max_seq_len: 1024}}\nserving: {{layout: {layout}}}\n"
        "hardware: {gpu: none}\n"
    )
    return recipe


@pytest.fixture(scope="module", params=SERVED)
def served(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deploy]:
    """A server of this method and layout, which must stop cleanly after the tests."""
    method, layout = request.param
    folder = tmp_path_factory.mktemp(f"{method}-{layout}")
    recipe = write_recipe(folder, method, layout)
    with served_build(recipe, folder) as deploy:
        yield deploy


def said(server: Deploy, texts: list[str], concurrency: int, **values: Any) -> list[str]:
    with ThreadPoolExecutor(concurrency) as pool:
        return list(pool.map(lambda text: server.generate(text, max_tokens=MAX_TOKENS, **values), texts))


def counted(server: Deploy, **labels: str) -> list[float]:
    """The tokens that were drafted, and accepted."""
    return [server.metric(f"spec_decode_num_{kind}_tokens", **labels) for kind in ("draft", "accepted")]


def test_drafts_from_the_text_itself_are_accepted_and_leave_greedy_text_unchanged(
    served: Deploy, request: pytest.FixtureRequest
) -> None:
    method, _ = request.node.callspec.params["served"]
    alone = said(served, prompts(FEW), 1, num_draft_tokens=0)
    assert len(set(alone)) > 1
    assert served.metric("spec_decode_num_draft_tokens") == 0

    for values in ({}, {"num_draft_tokens": 8}):
        assert said(served, prompts(FEW), 8, **values) == alone

    readings: list[list[float]] = []

    def reading() -> list[float]:
        readings.append(counted(served))
        return readings[-1]

    # The metrics are told within a twentieth of a second when nothing runs any more.
    drafted, accepted = wait_until(lambda: [reading()] * 8 == readings[-8:] and readings[-1], "counts", 10)
    assert drafted >= accepted > drafted / 10
    engine, lookup = (counted(served, origin=origin) for origin in ("engine", "lookup"))
    assert [engine[0] + lookup[0], engine[1] + lookup[1]] == [drafted, accepted]
    assert lookup[0] >= lookup[1] > 0
    assert engine[0] >= engine[1] > 0 if method == "hybrid" else engine == [0, 0]
    assert served.metric("draft_available") == 1
    for reason in ("draft_failed", "draft_timed_out"):
        assert served.metric("fallbacks", reason=reason) == 0


def test_a_stream_is_the_same_text_in_pieces(served: Deploy) -> None:
    values = {"max_tokens": MAX_TOKENS, "num_draft_tokens": 8, "return_perf_metrics": True}
    drafted = accepted = 0
    for prompt in prompts(FEW):
        events = served.stream(prompt, **values)
        assert "".join(event["text_output"] for event in events) == served.generate(
            prompt, max_tokens=MAX_TOKENS, num_draft_tokens=0
        )
        drafted += events[-1]["total_draft_tokens"]
        accepted += events[-1]["total_accepted_draft_tokens"]
    assert 0 < accepted <= drafted


def test_drafts_from_the_text_itself_leave_a_seeded_text_unchanged(served: Deploy) -> None:
    sampling = {"temperature": 0.8, "top_k": 20, "seed": 7, "end_id": -1}
    texts = prompts(FEW)[:3]
    assert said(served, texts, 8, **sampling) == said(served, texts, 1, num_draft_tokens=0, **sampling)


@pytest.mark.sweep
@pytest.mark.parametrize("num_draft_tokens", [1, 3, 5, 8])
def test_greedy_text_is_the_target_alone_in_60_places(served: Deploy, num_draft_tokens: int) -> None:
    alone = said(served, prompts(MANY), 8, num_draft_tokens=0)
    assert said(served, prompts(MANY), 16, num_draft_tokens=num_draft_tokens) == alone
