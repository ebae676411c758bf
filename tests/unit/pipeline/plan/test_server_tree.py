"""A tree of drafts, which SGLang is told by two flags that a recipe passes on."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.pipeline.plan.conftest import Planned
from trtspec.backends.importing import Imported, recipe_of
from trtspec.backends.table import loads
from trtspec.base.errors import RecipeError
from trtspec.pipeline.plan.memory import budget
from trtspec.pipeline.plan.speed import unforeseeable

HERE = Path("recipe.yaml")
SIZES = "--speculative-num-steps 3 --speculative-eagle-topk 4 --speculative-num-draft-tokens 8"
TREE = ["--speculative-eagle-topk", "4", "--speculative-num-draft-tokens", "8"]
BREADTH = "--speculative-ngram-max-bfs-breadth"
FOUR, EIGHT = "--speculative-eagle-topk, '4'", "--speculative-num-draft-tokens, '8'"


def engine(*words: str) -> str:
    return f"{{backend: sglang, max_seq_len: 4096, extra_args: [{', '.join(words)}]}}"


def read(flags: str, backend: str | None = None) -> Imported:
    return recipe_of(f"python -m sglang.launch_server --model org/big {flags}", HERE, backend=backend)


def missing(found: Imported) -> list[str]:
    return [note.subject for note in found.missing]


@pytest.mark.parametrize("method", ["EAGLE3", "EAGLE", "STANDALONE"])
def test_a_tree_is_passed_on(method: str) -> None:
    drafts = f"--speculative-algorithm {method} --speculative-draft-model-path org/small"
    found = read(f"{drafts} {SIZES} --attention-backend fa3")
    recipe = loads(found.text.encode(), HERE).recipe
    assert recipe.engine.extra_args == ["--attention-backend", "fa3", *TREE]
    assert recipe.speculation.max_draft_len == 3
    assert not found.missing


@pytest.mark.parametrize(
    ("flags", "lost"),
    [
        (f"--speculative-algorithm NEXTN {SIZES.replace('-topk 4', '-topk 1')}", []),
        (f"--speculative-algorithm NEXTN {SIZES.replace('-topk 4', '-topk x')}", [TREE[0]]),
        ("--speculative-algorithm NEXTN --speculative-num-steps 3 --speculative-eagle-topk 4", [TREE[0]]),
        (f"--speculative-algorithm EAGLE3 {SIZES}", [TREE[0], TREE[2]]),
        (f"--speculative-algorithm NGRAM {BREADTH} 8 --speculative-num-draft-tokens 12", []),
    ],
)
def test_flags_that_make_no_tree_of_drafts_are_not_passed_on(flags: str, lost: list[str]) -> None:
    found = read(flags)
    words = loads(found.text.encode(), HERE).recipe.engine.extra_args
    assert words == ([BREADTH, "8"] if "NGRAM" in flags else [])
    assert [flag for flag in missing(found) if flag in TREE] == lost


def test_another_engine_has_no_such_flags() -> None:
    flags = f"--speculative-algorithm NEXTN {SIZES} --attention-backend fa3"
    found = read(flags, "vllm")
    assert missing(found) == [TREE[0], TREE[2]]
    assert loads(found.text.encode(), HERE).recipe.engine.extra_args == []
    assert "vllm has other flags" in {note.fate.removeprefix("left out: ") for note in found.notes}


def test_a_plan_has_room_for_the_whole_tree(planned: Planned) -> None:
    speculation = "{num_draft_tokens: 3}"
    chain = planned(speculation=speculation, engine=engine())
    found = planned(speculation=speculation, engine=engine(FOUR, EIGHT))
    assert found.launch
    assert found.launch.arguments[-4:] == tuple(TREE)
    assert chain.num_draft_tokens == found.num_draft_tokens == 3
    assert (chain.target.options.max_draft_len, found.target.options.max_draft_len) == (3, 11)
    before, after = budget(chain), budget(found)
    assert before
    assert after
    assert after.tokens_per_request - before.tokens_per_request == 8
    assert after.tokens < before.tokens
    assert unforeseeable(chain) is None
    assert "a tree of drafts" in (unforeseeable(found) or "")


@pytest.mark.parametrize(
    ("words", "speculation"),
    [
        ((FOUR,), "{}"),
        ((EIGHT,), "{}"),
        ((FOUR.replace("4", "1"), EIGHT), "{}"),
        ((FOUR, EIGHT), "{method: ngram}"),
    ],
)
def test_its_flags_are_refused_where_drafts_are_chains(
    planned: Planned, words: tuple[str, ...], speculation: str
) -> None:
    draft = "null" if "ngram" in speculation else "{model: ./draft}"
    with pytest.raises(RecipeError, match=r"is not passed on: speculation says it, unless both"):
        planned(speculation=speculation, draft=draft, engine=engine(*words))


@pytest.mark.parametrize(("steps", "most"), [(1, 5), (2, 21), (3, 37)])
def test_more_tokens_than_the_steps_propose_are_refused(planned: Planned, steps: int, most: int) -> None:
    def tree(tokens: int) -> str:
        return engine(FOUR, EIGHT.replace("8", str(tokens)))

    speculation = f"{{num_draft_tokens: {steps}}}"
    planned(speculation=speculation, engine=tree(most))
    shape = f"--speculative-eagle-topk 4 and speculation.num_draft_tokens: {steps}"
    told = f"engine.extra_args: .* {most + 1} is more than the {most} that {shape} make"
    with pytest.raises(RecipeError, match=told) as refused:
        planned(speculation=speculation, engine=tree(most + 1))
    assert refused.value.repair == f"at most {most} there, or a larger speculation.num_draft_tokens"
