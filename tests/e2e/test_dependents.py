"""Drafts that live in their target, under a real Triton: layers of it, and heads on it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.conftest import TINY, Deploy, served_build, wait_until
from tests.fakes.heads import write_head_for

MAX_TOKENS = 48
PROMPTS = ("def fib(n):\n", "import json\n\n\ndef load(path):\n", "class Stack:\n", "for name in names:\n")
DRAFTS = {
    "layers": "draft: {layers_of_target: [0, 1, 3, 4, 7, 8, 9]}",
    "chosen layers": "draft: {layers_of_target: auto, layer_search: {samples: 2, max_tokens: 12, tries: 10}}",
    "speculators": "draft: {model: ./head}",
    "eagle": "draft: {model: ./head}",
    "medusa": "draft: {model: ./head}",
}
METHODS = {"speculators": "eagle3", "eagle": "eagle", "medusa": "medusa"}


def write_recipe(folder: Path, draft: str) -> Path:
    if draft in METHODS:
        write_head_for(TINY / "target", folder / "head", draft)
    recipe = folder / "recipe.yaml"
    recipe.write_text(
        f"name: tiny\ntarget: {{model: {TINY / 'target'}, dtype: float32}}\n{DRAFTS[draft]}\n"
        f"speculation: {{method: {METHODS.get(draft, 'draft_model')}, max_draft_len: 4}}\n"
        "engine: {max_batch_size: 4, max_seq_len: 512}\nhardware: {gpu: none}\n"
    )
    return recipe


@pytest.fixture(
    scope="module",
    params=[pytest.param(name, marks=pytest.mark.sweep) for name in DRAFTS],
)
def served(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deploy]:
    folder = tmp_path_factory.mktemp("dependent")
    recipe = write_recipe(folder, request.param)
    with served_build(recipe, folder) as deploy:
        yield deploy


@pytest.mark.parametrize("length", [pytest.param(1, marks=pytest.mark.sweep), 3])
def test_layers_and_heads_that_draft_leave_the_greedy_text_unchanged(
    served: Deploy, request: pytest.FixtureRequest, length: int
) -> None:
    before = served.metric("spec_decode_num_draft_tokens")
    for prompt in PROMPTS:
        alone = served.generate(prompt, max_tokens=MAX_TOKENS, num_draft_tokens=0)
        assert served.generate(prompt, max_tokens=MAX_TOKENS, num_draft_tokens=length) == alone
    # Metrics are exported once a second.
    wait_until(lambda: served.metric("spec_decode_num_draft_tokens") > before, "drafts")
    if "layers" in request.node.callspec.params["served"]:  # The heads are random.
        wait_until(lambda: served.metric("spec_decode_num_accepted_tokens") > 0, "accepted tokens")
